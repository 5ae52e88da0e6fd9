package runner

import (
	"context"
	"errors"
	"slices"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// caller is the client that waits for a run on this replica, in Call or in Reattach. The run owns it.
// run.mu guards stream, waiting and newest; the methods that return an Answered belong to the goroutine of Call.
type caller struct {
	run    *Run
	stream shim.Stream // takes messages for the client before there is a handle; may be nil
	// telling is had while the stream takes a message, which waits for a client that reads slowly. run.mu is free meanwhile.
	telling work.Turn
	repeat  shim.Repeat // zero once the client waits no more
	// waiting is how many clients wait here: that of Call, or those that came back. newest numbers the latter.
	waiting, newest int
	// news tells Call to look at the run before the reply is there.
	news chan struct{}
	// leave stops following the end of the client's context. It is AfterFunc's stop function.
	leave func() bool
}

// errorForCaller returns the error for a caller that waits for the call here. It invites a repeat of
// the call only if the server cannot have it.
func (c *caller) errorForCaller(err error) error {
	switch {
	case errors.Is(err, node.ErrTaskCancelled): // another replica ended the record
		return errLost
	case !errors.Is(err, shim.ErrDetached) && !errors.Is(err, shim.ErrDraining):
		return err
	case !c.run.sent.Load():
		return shim.ErrDraining
	case c.run.core.Life.Ctx.Err() != nil:
		return errShutDown
	}
	return errLost // another replica has the call
}

// handTask gives the task to the client. If the client has left in the meantime, the task has no
// reader: it is cancelled, except with Stay.
func (c *caller) handTask(ctx context.Context, t shim.Task) (shim.Answered, error) {
	r := c.run
	c.awaitTold()
	if ctx.Err() == nil || r.Call.Stay && !errors.Is(context.Cause(ctx), shim.ErrCancelled) {
		t = t.ShownAt(t.CreatedAt)
		return shim.Answered{Task: &t}, nil
	}
	r.Cancel(node.ErrTaskCancelled)
	r.core.Life.Work.Go(func() { r.core.CancelUntold(t.ID, node.LeftMessage, 0, "") })
	return shim.Answered{}, context.Cause(ctx)
}

// lookAtNews looks for the reason why the client was woken: a task was made of its call, or the call
// has questions for it. done says that the result is the client's answer.
func (c *caller) lookAtNews(ctx context.Context) (a shim.Answered, err error, done bool) {
	r := c.run
	r.mu.Lock()
	switch {
	case !r.record.exists():
		r.mu.Unlock()
		return shim.Answered{}, nil, false
	case r.record.Visible:
		t := r.record.Task
		r.mu.Unlock()
		a, err = c.handTask(ctx, t)
		return a, err, true
	}
	open := r.box.openQuestions()
	if r.Call.Asking != shim.AskPark || len(open) == 0 {
		r.mu.Unlock()
		return shim.Answered{}, nil, false
	}
	c.releaseClient()
	c.waiting = 0
	parked := &shim.Parked{ID: r.record.ID, Questions: open, Until: r.record.ExpiresAt()}
	r.mu.Unlock()
	c.awaitTold()
	if ctx.Err() != nil {
		r.Cancel(context.Cause(ctx))
		return shim.Answered{}, context.Cause(ctx), true
	}
	return shim.Answered{Parked: parked}, nil, true
}

// AttachStream gives the stream of a client that came back the server's messages until it leaves, if
// the call is hidden. Of several such clients the newest hears them.
func (c *caller) AttachStream(stream shim.Stream) (leave func()) {
	c.run.mu.Lock()
	defer c.run.mu.Unlock()
	if !c.run.record.isHidden() {
		return func() {}
	}
	c.waiting++
	c.newest++
	c.stream = stream
	number := c.newest
	return func() {
		c.run.mu.Lock()
		if number == c.newest {
			c.stream = nil
		}
		c.waiting--
		c.run.mu.Unlock()
		c.awaitTold()
	}
}

// tellStream has the stream take a message, if a client listens here. The messages come one after the other.
func (c *caller) tellStream(tell func(shim.Stream)) {
	c.telling.Take()
	defer c.telling.Give()
	c.run.mu.Lock()
	s := c.stream
	c.run.mu.Unlock()
	if s != nil {
		tell(s)
	}
}

// awaitTold waits for the message that the stream takes now. A stream that was let go takes none after it.
func (c *caller) awaitTold() {
	c.telling.Take()
	c.telling.Give()
}

// detachStream notes that the client has stopped waiting and listening here.
func (c *caller) detachStream() {
	c.run.mu.Lock()
	c.forget()
	c.run.mu.Unlock()
	c.awaitTold()
}

// forget is detachStream with run.mu held.
func (c *caller) forget() { c.stream, c.repeat, c.waiting = nil, shim.Repeat{}, 0 }

// releaseClient lets go of the client: the call is independent of its context, and its stream ends with
// its answer. run.mu is held.
func (c *caller) releaseClient() {
	c.leave()
	c.stream, c.repeat = nil, shim.Repeat{}
}

// askOnStream sends those questions of the hidden record that are open to a client that is asked on its stream.
func (c *caller) askOnStream(keys []string) {
	if c.run.Call.Asking != shim.AskStream {
		return
	}
	c.tellHidden(func(s shim.Asker, id shim.ID) {
		c.run.mu.Lock()
		open := slices.DeleteFunc(c.run.box.openQuestions(), func(q shim.Question) bool { return !slices.Contains(keys, q.Key) })
		c.run.mu.Unlock()
		if len(open) > 0 {
			s.Ask(id, open)
		}
	})
}

// tellWithdrawn tells the stream that had the questions that they are withdrawn.
func (c *caller) tellWithdrawn(keys []string) {
	if len(keys) > 0 {
		c.tellHidden(func(s shim.Asker, id shim.ID) { s.Withdrawn(id, keys) })
	}
}

// tellHidden has a stream that takes questions told something of the hidden record.
func (c *caller) tellHidden(tell func(s shim.Asker, id shim.ID)) {
	c.tellStream(func(s shim.Stream) {
		c.run.mu.Lock()
		id, hidden := c.run.record.ID, c.run.record.isHidden()
		c.run.mu.Unlock()
		if s, ok := s.(shim.Asker); ok && hidden {
			tell(s, id)
		}
	})
}

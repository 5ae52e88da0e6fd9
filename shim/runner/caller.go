package runner

import (
	"context"
	"errors"

	"taskgate/shim"
	"taskgate/shim/node"
)

// caller is the client that waits for a run on this replica, in Call or in Reattach. The run owns it.
// run.mu guards stream, waiting and newest; the methods that return an Answered belong to the goroutine of Call.
type caller struct {
	run    *Run
	stream shim.Stream // takes messages for the client before there is a handle; may be nil
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
		defer c.run.mu.Unlock()
		if number == c.newest {
			c.stream = nil
		}
		c.waiting--
	}
}

// detachStream notes that the client has stopped waiting and listening here.
func (c *caller) detachStream() {
	c.run.mu.Lock()
	defer c.run.mu.Unlock()
	c.stream, c.waiting = nil, 0
}

// releaseClient lets go of the client: the call is independent of its context, and its stream ends with
// its answer. run.mu is held, as for all below.
func (c *caller) releaseClient() {
	c.leave()
	c.stream = nil
}

// askOnStream sends questions of the hidden record to a client that is asked on its stream.
func (c *caller) askOnStream(q []shim.Question) {
	if s, ok := c.stream.(shim.Asker); ok && c.run.Call.Asking == shim.AskStream && c.run.record.isHidden() && len(q) > 0 {
		s.Ask(c.run.record.ID, q)
	}
}

// tellWithdrawn tells the stream that had the questions that they are withdrawn.
func (c *caller) tellWithdrawn(keys []string) {
	if s, ok := c.stream.(shim.Asker); ok && c.run.record.isHidden() && len(keys) > 0 {
		s.Withdrawn(c.run.record.ID, keys)
	}
}

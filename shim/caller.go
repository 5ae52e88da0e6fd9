package shim

import (
	"context"
	"errors"
	"math"
	"time"

	"taskgate/internal/work"
)

// retryCreate is the pause before creating a task is tried again while the store is down (design.md
// 0.13).
const retryCreate = time.Second

// never is the grace of a call that blocks however long it takes.
const never = time.Duration(math.MaxInt64)

// leftMessage is the status message of a task whose client left before it got the handle.
const leftMessage = "the client left before it was given the task"

// caller is the client that waits for a run on this replica, in Call or in Reattach. The run owns it.
// run.mu guards stream, waiting and newest; the methods that return an Answered belong to the goroutine of Call.
type caller struct {
	run    *run
	stream Stream // takes messages for the client before there is a handle; may be nil
	// waiting is how many clients wait here: that of Call, or those that came back. newest numbers the latter.
	waiting, newest int
	// news tells Call to look at the run before the reply is there.
	news chan struct{}
	// leave stops following the end of the client's context. It is AfterFunc's stop function.
	leave func() bool
}

// sendBlocking runs a call on the client's own goroutine; it stays a plain call.
func (c *caller) sendBlocking() (Answered, error) {
	defer c.run.discard()
	reply, err := c.run.rounds.sendRounds()
	return Answered{Reply: reply}, c.errorForCaller(err)
}

// awaitTurn waits for a slot, for at most Server.QueueWait. After an error the call is over.
func (c *caller) awaitTurn() error {
	r := c.run
	if !r.ticket.isQueued() {
		return nil
	}
	full := &BusyError{Key: "concurrency", Limit: busyServer, RetryAfter: retryBusy}
	ctx, stop := context.WithTimeoutCause(r.ctx, r.srv.QueueWait, full)
	defer stop()
	err := r.awaitSlot(ctx)
	if err != nil {
		r.discard()
	}
	return c.errorForCaller(err)
}

// taskFirst makes the task first and then sends the call. If making the task fails, a client that
// insisted on one gets the error, and the call stays unsent; for any other client the call is sent, and
// making a task is tried again.
func (c *caller) taskFirst(ctx context.Context) (Answered, error) {
	r := c.run
	if r.ticket.isQueued() {
		r.outbox.message = messageQueued
	}
	r.firm = r.call.Demand || r.policy.Tasks == Required
	t, err := r.creation.ensureRecord(true)
	switch {
	case err == nil:
		r.core.life.work.Go(r.executeCall)
		return c.handTask(ctx, t)
	case r.firm:
		r.discard()
		return Answered{}, err
	}
	return c.awaitReply(ctx, retryCreate)
}

// awaitReply sends the call and waits for its reply, for the client to leave or to be asked, or, after
// grace, for a task to be made of it. A reply within the grace goes straight back, and the store stays
// untouched.
func (c *caller) awaitReply(ctx context.Context, grace time.Duration) (Answered, error) {
	r := c.run
	r.core.life.work.Go(r.executeCall)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for attempt := 0; ; {
		select {
		case <-r.done:
			return Answered{Reply: r.reply}, c.errorForCaller(r.err)
		case <-r.ctx.Done():
			if work.IsClosed(r.done) { // the end of the run ends the context, too
				return Answered{Reply: r.reply}, c.errorForCaller(r.err)
			}
			// The client hears nothing more; executeCall ends by the same context.
			c.detachStream()
			return Answered{}, c.errorForCaller(r.findCause(r.ctx.Err()))
		case <-c.news:
			if work.IsClosed(r.done) {
				return Answered{Reply: r.reply}, c.errorForCaller(r.err)
			}
			if a, err, done := c.lookAtNews(ctx); done {
				return a, err
			}
			continue
		case <-timer.C:
		}
		t, err := r.creation.ensureRecord(true)
		if err == nil {
			return c.handTask(ctx, t)
		}
		if !errors.Is(err, errEnded) && attempt == 0 {
			r.core.log.WarnContext(ctx, "no task could be made of a slow call; it goes on blocking", "tool", r.call.Request.Name, "err", err)
		}
		attempt++
		timer.Reset(retryCreate)
	}
}

// errorForCaller returns the error for a caller that waits for the call here. It invites a repeat of
// the call only if the server cannot have it.
func (c *caller) errorForCaller(err error) error {
	switch {
	case errors.Is(err, errTaskCancelled): // another replica ended the record
		return errLost
	case !errors.Is(err, ErrDetached) && !errors.Is(err, ErrDraining):
		return err
	case !c.run.sent.Load():
		return ErrDraining
	case c.run.core.life.ctx.Err() != nil:
		return errShutDown
	}
	return errLost // another replica has the call
}

// handTask gives the task to the client. If the client has left in the meantime, the task has no
// reader: it is cancelled, except with Stay.
func (c *caller) handTask(ctx context.Context, t Task) (Answered, error) {
	r := c.run
	if ctx.Err() == nil || r.call.Stay && !errors.Is(context.Cause(ctx), ErrCancelled) {
		t = t.shownAt(t.CreatedAt)
		return Answered{Task: &t}, nil
	}
	r.cancel(errTaskCancelled)
	r.core.life.work.Go(func() { r.core.cancelUntold(t.ID, leftMessage, 0, "") })
	return Answered{}, context.Cause(ctx)
}

// lookAtNews looks for the reason why the client was woken: a task was made of its call, or the call
// has questions for it. done says that the result is the client's answer.
func (c *caller) lookAtNews(ctx context.Context) (a Answered, err error, done bool) {
	r := c.run
	r.mu.Lock()
	switch {
	case r.record == nil:
		r.mu.Unlock()
		return Answered{}, nil, false
	case !r.record.hidden:
		made := r.record.made
		r.mu.Unlock()
		a, err = c.handTask(ctx, made)
		return a, err, true
	case r.call.Asking != AskPark || len(openQuestions(r.box.open)) == 0:
		r.mu.Unlock()
		return Answered{}, nil, false
	}
	c.releaseClient()
	c.waiting = 0
	parked := &Parked{ID: r.record.id, Questions: r.box.open, Until: r.box.read.expires}
	r.mu.Unlock()
	if ctx.Err() != nil {
		r.cancel(context.Cause(ctx))
		return Answered{}, context.Cause(ctx), true
	}
	return Answered{Parked: parked}, nil, true
}

// attachStream gives the stream of a client that came back the server's messages until it leaves, if
// the call is hidden. Of several such clients the newest hears them.
func (c *caller) attachStream(stream Stream) (leave func()) {
	c.run.mu.Lock()
	defer c.run.mu.Unlock()
	if !c.run.record.hidden {
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
func (c *caller) askOnStream(q []Question) {
	if s, ok := c.stream.(Asker); ok && c.run.call.Asking == AskStream && c.run.record.hidden && len(q) > 0 {
		s.Ask(c.run.record.id, q)
	}
}

// tellWithdrawn tells the stream that had the questions that they are withdrawn.
func (c *caller) tellWithdrawn(keys []string) {
	if s, ok := c.stream.(Asker); ok && c.run.record.hidden && len(keys) > 0 {
		s.Withdrawn(c.run.record.id, keys)
	}
}

package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// The life of a call has two goroutines. One belongs to the caller, and ends with the caller's answer. The other one
// belongs to the call, and ends with its record.
//
//	caller                                           call
//	TaskFirst: makes the record, or goes on
//	AwaitReply: ───────────────────────────────────▶ executeCall
//	  waits for the first of                           a slot
//	    the reply ◀──────────────────────────────────  Upstream.Call, and again with answers (rounds.go)
//	    the end of the call's context                    (Resume and the ladder of an adopted one: recover.go)
//	    news: it is a task now, or it asks             settle: the last change of the record, if there is one
//	    the grace, and makes a task of it              Discard
//	    the client, which gives up: the call is kept for a repeat (linger.go)

// AwaitReply sends the call and waits for its reply, for the client to leave or to be asked, or, after
// grace, for a task to be made of it. A reply within the grace goes straight back, and the store stays
// untouched.
func (c *caller) AwaitReply(ctx context.Context, grace time.Duration) (shim.Answered, error) {
	r := c.run
	broken := c.repeat.Gone
	defer r.linger.begin(grace)()
	r.core.Life.Work.Go(r.executeCall)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for attempt := 0; ; {
		select {
		case <-r.done:
			return shim.Answered{Reply: r.reply}, c.errorForCaller(r.err)
		case <-r.Ctx.Done():
			if work.IsClosed(r.done) { // the end of the run ends the context, too
				return shim.Answered{Reply: r.reply}, c.errorForCaller(r.err)
			}
			// The client hears nothing more; executeCall ends by the same context.
			c.detachStream()
			return shim.Answered{}, c.errorForCaller(r.findCause(r.Ctx.Err()))
		case <-r.linger.gone:
			c.detachStream()
			return shim.Answered{}, fmt.Errorf("%w: %w", shim.ErrKept, context.Cause(ctx))
		case <-broken:
			broken = nil
			r.linger.giveUp(nil)
			continue
		case <-c.news:
			if work.IsClosed(r.done) {
				return shim.Answered{Reply: r.reply}, c.errorForCaller(r.err)
			}
			if a, err, done := c.lookAtNews(ctx); done {
				return a, err
			}
			continue
		case <-timer.C:
		}
		t, err := r.Creation.EnsureRecord(true)
		if err == nil {
			return c.handTask(ctx, t)
		}
		if !errors.Is(err, errEnded) && attempt == 0 {
			r.core.Log.WarnContext(ctx, "no task could be made of a slow call; it goes on blocking", "tool", r.Call.Request.Name, "err", err)
		}
		attempt++
		timer.Reset(node.RetryCreate)
	}
}

// executeCall waits for a slot, makes the upstream call and, if a task was made of it by then, records
// how it ended.
func (r *Run) executeCall() {
	reply, err := r.rounds.sendRounds()
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.turn.await() // an attempt that is under way decides whether this is a task
	r.reply, r.err = reply, err
	close(r.done)
	r.ticket.DropSlot() // the store may take its time
	if r.RecordID() != "" {
		r.settle()
		r.linger.endAfter()
	}
	r.Discard()
}

// TaskFirst makes the task first and then sends the call. If making the task fails, a client that
// insisted on one gets the error, and the call stays unsent; for any other client the call is sent, and
// making a task is tried again.
func (c *caller) TaskFirst(ctx context.Context) (shim.Answered, error) {
	r := c.run
	if r.ticket.IsQueued() {
		r.record.StatusMessage = shim.MessageQueued
	}
	if r.Call.Demand || r.policy.Tasks == shim.Required {
		r.record.says = unsent
	}
	t, err := r.Creation.EnsureRecord(true)
	switch {
	case err == nil:
		r.core.Life.Work.Go(r.executeCall)
		return c.handTask(ctx, t)
	case r.record.says == unsent:
		r.Discard()
		return shim.Answered{}, err
	}
	return c.AwaitReply(ctx, node.RetryCreate)
}

// AwaitPlain is AwaitReply of a call that never becomes a task. It waits for a slot for at most Server.QueueWait. A
// call that cannot ask, and that no repeat picks up, goes on with the client's own goroutine.
func (c *caller) AwaitPlain(ctx context.Context) (shim.Answered, error) {
	r := c.run
	r.Call.Request.NoTask = true
	if r.ticket.IsQueued() {
		full := &shim.BusyError{Key: "concurrency", Limit: node.BusyServer, RetryAfter: shim.RetryBusy}
		bounded, stop := context.WithTimeoutCause(r.Ctx, r.Srv.QueueWait, full)
		err := r.awaitSlot(bounded)
		stop()
		if err != nil {
			r.Discard()
			return shim.Answered{}, c.errorForCaller(err)
		}
	}
	if r.Call.Asking != shim.AskNever || r.linger.isPossible() {
		return c.AwaitReply(ctx, node.Never) // on another goroutine, as it may go on without the client
	}
	defer r.Discard()
	reply, err := r.rounds.sendRounds()
	return shim.Answered{Reply: reply}, c.errorForCaller(err)
}

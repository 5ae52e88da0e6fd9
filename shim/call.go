package shim

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"taskgate/internal/semconv"
)

// Call runs a tools/call: by the tool's policy and the caller's abilities it blocks, or becomes a task
// (design.md 0.3).
func (s *Shim) Call(ctx context.Context, c Call) (Answered, error) {
	begun := time.Now()
	a, err := s.makeCall(ctx, c)
	if srv, unknown := s.findServer(c.Upstream); unknown == nil && c.Request.Method == callTool {
		srv.metrics.Called(ctx, c.Request.Name, answerOf(ctx, a, err), time.Since(begun))
	}
	return a, err
}

func (s *Shim) makeCall(ctx context.Context, c Call) (Answered, error) {
	if !s.life.work.Enter() {
		return Answered{}, ErrRefused
	}
	defer s.life.work.Leave() // a call that is being made counts as work, or a drain would miss it
	srv, err := s.findServer(c.Upstream)
	if err == nil && srv.Removed {
		err = ErrRemoved
	}
	if err != nil {
		return Answered{}, err
	}
	if c.Principal.NoTasks {
		c.Handle, c.Demand, c.After, c.Block = false, false, 0, true
	}
	p := srv.policyFor(c.Request)
	switch {
	case c.Demand && p.Tasks == Never:
		return Answered{}, ErrForbidsTask
	case p.Tasks == Required && !c.Handle && !c.Demand && !c.Block && c.After == 0:
		return Answered{}, ErrNeedsTask
	}
	var tk ticket // unlimited for other requests than tools/call
	if c.Request.Method == callTool {
		if tk, err = srv.slots.reserveSlot(c.Request.Name, p.Concurrency, false); err != nil {
			return Answered{}, err
		}
	}
	r := newRun(ctx, s.core, s.runs, srv, c, p, tk)
	switch {
	case c.Demand, c.Handle && p.Tasks == Always, (c.Handle || c.After > 0) && p.Tasks == Required:
		return r.caller.taskFirst(ctx)
	case c.Handle && p.Tasks == Auto:
		return r.caller.awaitReply(ctx, srv.graceFor(c.Request, p))
	case !c.Handle && c.After > 0 && p.Tasks != Never:
		return r.caller.awaitReply(ctx, c.After)
	}
	r.call.Request.NoTask = true
	if err := r.caller.awaitTurn(); err != nil {
		return Answered{}, err
	}
	if c.Asking == AskNever {
		return r.caller.sendBlocking()
	}
	return r.caller.awaitReply(ctx, never) // on another goroutine, as it may go on without the client
}

// answerOf names the caller's answer for the metric. ctx is the caller's.
func answerOf(ctx context.Context, a Answered, err error) string {
	switch {
	case err != nil && (errors.Is(err, ErrCancelled) || errors.Is(ctx.Err(), context.Canceled)):
		return semconv.AnswerCancelled
	case err != nil:
		return semconv.AnswerError
	case a.Task != nil:
		return semconv.AnswerTask
	case a.Parked != nil, a.Reply.InputRequired:
		return semconv.AnswerInputRequired
	}
	return semconv.AnswerReply
}

// A server may ask a question outside of its calls. The question has a hidden record, like a call that
// waits for an answer, and a run that goes on from a checkpoint with only the question in it (design.md
// 0.16). So the answer comes by Answer, is delivered at most once, and has the same time as every
// answer. If the replica is lost, another one goes on.

// AskSession asks a client the question in a checkpoint of the upstream client, and returns once the
// question is stored. Of c it takes Upstream, Principal, Origin, Asking, and of the request the method
// and the session. The question is over when it has been answered or withdrawn, has run out of time, or
// when ctx ends with cause ErrCancelled. done is called when this replica has finished with it; over is
// false if another replica may go on. ErrDraining, ErrUnavailable, *BusyError.
func (s *Shim) AskSession(ctx context.Context, c Call, checkpoint json.RawMessage, done func(id ID, over bool)) (ID, error) {
	if !s.life.work.Enter() {
		return "", ErrDraining
	}
	defer s.life.work.Leave()
	srv, err := s.findServer(c.Upstream)
	if err != nil {
		return "", err
	}
	c.Stay, c.Stream = true, nil
	r := newRun(ctx, s.core, s.runs, srv, c, srv.policyFor(c.Request), ticket{})
	r.checkpoint, r.unsaved = checkpoint, true
	t, err := r.creation.ensureRecord(false)
	if err != nil {
		r.discard()
		return "", err
	}
	t.Checkpoint = checkpoint
	s.life.work.Go(func() {
		r.finishAs(t)
		done(t.ID, !errors.Is(context.Cause(r.ctx), ErrDetached))
	})
	return t.ID, nil
}

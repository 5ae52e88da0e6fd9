package engine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"taskgate/internal/semconv"
	"taskgate/shim"
	"taskgate/shim/node"
	"taskgate/shim/runner"
)

// Call runs a tools/call: by the tool's policy and the caller's abilities it blocks, or becomes a task
// (design.md 0.3).
func (s *Shim) Call(ctx context.Context, c shim.Call) (shim.Answered, error) {
	begun := time.Now()
	a, err := s.makeCall(ctx, c)
	if srv, unknown := s.findServer(c.Upstream); unknown == nil && c.Request.Method == shim.CallTool {
		srv.Metrics.Called(ctx, c.Request.Name, answerOf(ctx, a, err), time.Since(begun))
	}
	return a, err
}

func (s *Shim) makeCall(ctx context.Context, c shim.Call) (shim.Answered, error) {
	if !s.Life.Work.Enter() {
		return shim.Answered{}, shim.ErrRefused
	}
	defer s.Life.Work.Leave() // a call that is being made counts as work, or a drain would miss it
	srv, err := s.findServer(c.Upstream)
	if err == nil && srv.Removed {
		err = shim.ErrRemoved
	}
	if err != nil {
		return shim.Answered{}, err
	}
	if c.Principal.NoTasks {
		c.Handle, c.Demand, c.After, c.Block = false, false, 0, true
	}
	p := srv.PolicyFor(c.Request)
	if a, err, done := (repeater{s}).pickUp(ctx, srv, c, p); done {
		return a, err
	}
	if err := s.pauses.refuseCall(ctx, c.Upstream, c.Request); err != nil { // after what a repeat picks up: that runs already
		return shim.Answered{}, err
	}
	switch {
	case c.Demand && p.Tasks == shim.Never:
		return shim.Answered{}, shim.ErrForbidsTask
	case p.Tasks == shim.Required && !c.Handle && !c.Demand && !c.Block && c.After == 0:
		return shim.Answered{}, shim.ErrNeedsTask
	}
	var tk node.Ticket // unlimited for other requests than tools/call
	if c.Request.Method == shim.CallTool {
		if tk, err = srv.Slots.ReserveSlot(c.Request, p.Concurrency, false); err != nil {
			return shim.Answered{}, err
		}
	}
	r := runner.NewRun(ctx, s.Core, s.runs, srv, c, p, tk)
	switch {
	case c.Demand, c.Handle && p.Tasks == shim.Always, (c.Handle || c.After > 0) && p.Tasks == shim.Required:
		return r.Caller.TaskFirst(ctx)
	case c.Handle && p.Tasks == shim.Auto:
		return r.Caller.AwaitReply(ctx, srv.GraceFor(c.Request, p))
	case !c.Handle && c.After > 0 && p.Tasks != shim.Never:
		return r.Caller.AwaitReply(ctx, c.After)
	}
	return r.Caller.AwaitPlain(ctx)
}

// answerOf names the caller's answer for the metric. ctx is the caller's.
func answerOf(ctx context.Context, a shim.Answered, err error) string {
	switch {
	case err != nil && (errors.Is(err, shim.ErrCancelled) || errors.Is(ctx.Err(), context.Canceled)):
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
// false if another replica may go on. ErrNoAsk where there is no room for so large a question, ErrDraining, ErrUnavailable,
// *BusyError.
func (s *Shim) AskSession(ctx context.Context, c shim.Call, checkpoint json.RawMessage, done func(id shim.ID, over bool)) (shim.ID, error) {
	if !s.Life.Work.Enter() {
		return "", shim.ErrDraining
	}
	defer s.Life.Work.Leave()
	srv, err := s.findServer(c.Upstream)
	if err != nil {
		return "", err
	}
	c.Stay, c.Stream = true, nil
	r := runner.NewRun(ctx, s.Core, s.runs, srv, c, srv.PolicyFor(c.Request), node.Ticket{})
	if !r.RoomToAsk(len(checkpoint)) {
		r.Discard()
		return "", shim.ErrNoAsk
	}
	r.BeginAt(checkpoint)
	t, err := r.Creation.EnsureRecord(false)
	if err != nil {
		r.Discard()
		return "", err
	}
	s.Life.Work.Go(func() {
		r.FinishAsRecorded()
		done(t.ID, !errors.Is(context.Cause(r.Ctx), shim.ErrDetached))
	})
	return t.ID, nil
}

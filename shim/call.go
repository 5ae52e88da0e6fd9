package shim

import (
	"context"
	"errors"
	"time"

	"taskgate/internal/semconv"
)

// Causes with which the context of an upstream call ends, besides ErrDetached and
// that of the caller.
var (
	errTaskCancelled = errors.New("the task was cancelled")
	errTimedOut      = &UpstreamError{Kind: KindTimeout, Message: "the call ran into its time limit"}
)

// Call runs a tools/call: it blocks, or becomes a task, as the tool's policy and
// the caller's abilities have it (design.md 0.3).
func (s *Shim) Call(ctx context.Context, c Call) (Answered, error) {
	begun := time.Now()
	a, err := s.makeCall(ctx, c)
	if srv, unknown := s.findServer(c.Upstream); unknown == nil && c.Request.Method == callTool {
		srv.metrics.Called(ctx, c.Request.Name, answerOf(a, err), time.Since(begun))
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
	var tk ticket // of no limit, for what is no tools/call
	if c.Request.Method == callTool {
		if tk, err = srv.reserveSlots(c.Request.Name, p, false); err != nil {
			return Answered{}, err
		}
	}
	r := s.newRun(ctx, srv, c, p, tk)
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
	return r.caller.awaitReply(ctx, never) // it may go on without the client, so not on its goroutine
}

// answerOf is what a caller got, for the metric.
func answerOf(a Answered, err error) string {
	switch {
	case err != nil:
		return semconv.AnswerError
	case a.Task != nil:
		return semconv.AnswerTask
	case a.Parked != nil, a.Reply.InputRequired:
		return semconv.AnswerInputRequired
	}
	return semconv.AnswerReply
}

// cancelUntold cancels a task that nobody was told of. A record that this replica does
// not run, though it lives, would stay working for ever. token is what Shim.bringToken has returned.
func (s *Shim) cancelUntold(id ID, message string, retain time.Duration, token string) {
	change := Change{Op: s.newOp(), To: Cancelled, StatusMessage: &message, Retain: retain, Token: token, Moments: []Moment{{Kind: KindCancelled, Detail: message}}}
	_, err := retry(s.life.writes, func(ctx context.Context) (Task, error) { return s.store.Apply(ctx, id, nil, change) })
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrFinal) {
		s.log.Warn("a task that nobody was told of may remain", "task_id", id, "err", err)
	}
}

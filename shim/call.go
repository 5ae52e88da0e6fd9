package shim

import (
	"context"
	"errors"
	"math"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// retryCreate is how often creating a task is tried again while the store is down
// (design.md 0.13).
const retryCreate = time.Second

// Causes with which the context of an upstream call ends, besides ErrDetached and
// that of the caller.
var (
	errTaskCancelled = errors.New("the task was cancelled")
	errTimedOut      = &UpstreamError{Kind: "timeout", Message: "the call ran into its time limit"}
)

// Call runs a tools/call: it blocks, or becomes a task, as the tool's policy and
// the caller's abilities have it (design.md 0.3).
func (s *Shim) Call(ctx context.Context, c Call) (Answered, error) {
	if !s.work.admit() {
		return Answered{}, ErrDraining
	}
	defer s.work.end() // a call that is being made counts as work, or a drain would miss it
	srv, err := s.server(c.Upstream)
	if err != nil {
		return Answered{}, err
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
		if tk, err = srv.reserve(c.Request.Name, p, false); err != nil {
			return Answered{}, err
		}
	}
	r := s.newRun(ctx, srv, c, p, tk)
	switch {
	case c.Demand, c.Handle && p.Tasks == Always, (c.Handle || c.After > 0) && p.Tasks == Required:
		return s.callAsTask(ctx, r)
	case c.Handle && p.Tasks == Auto:
		return s.race(ctx, r)
	case !c.Handle && c.After > 0 && p.Tasks != Never:
		return s.await(ctx, r, c.After)
	case c.Asking != AskNever:
		return s.attend(ctx, r)
	default:
		return s.block(r)
	}
}

// block runs a call that never becomes a task, on the caller's own goroutine.
func (s *Shim) block(r *run) (Answered, error) {
	defer r.discard()
	if r.ticket.queued() {
		if err := r.queueUp(r.srv.QueueWait); err != nil {
			return Answered{}, err
		}
	}
	reply, err := r.send()
	return Answered{Reply: reply}, err
}

// attend runs a call that never becomes a task but may have to ask its caller: it
// may go on without the caller then, so it is not run on the caller's goroutine.
func (s *Shim) attend(ctx context.Context, r *run) (Answered, error) {
	if r.ticket.queued() {
		if err := r.queueUp(r.srv.QueueWait); err != nil {
			r.discard()
			return Answered{}, err
		}
	}
	return s.await(ctx, r, never)
}

// queueUp waits at most d for a slot.
func (r *run) queueUp(d time.Duration) error {
	full := &BusyError{Limit: busyServer, RetryAfter: retryBusy}
	ctx, stop := context.WithTimeoutCause(r.ctx, d, full)
	defer stop()
	return r.ticket.wait(ctx)
}

// callAsTask makes the task first and then sends the call. Where creating fails,
// a caller that insisted on a task gets the error before the upstream is called;
// any other is served as in a race that has not been lost yet.
func (s *Shim) callAsTask(ctx context.Context, r *run) (Answered, error) {
	if r.ticket.queued() {
		r.message = "queued"
	}
	r.firm = r.call.Demand || r.policy.Tasks == Required
	t, err := r.becomeTask()
	switch {
	case err == nil:
		r.ctx = trace.ContextWithSpan(r.ctx, r.task.span)
		s.work.Go(r.exec)
		return s.hand(ctx, r, t)
	case r.call.Demand || r.policy.Tasks == Required:
		r.discard()
		return Answered{}, err
	}
	return s.await(ctx, r, retryCreate)
}

// race gives the call its grace: an answer in time goes straight back and no store
// is touched.
func (s *Shim) race(ctx context.Context, r *run) (Answered, error) {
	return s.await(ctx, r, r.policy.Grace)
}

// never is the grace of a call that is not made a task for its length.
const never = time.Duration(math.MaxInt64)

// await sends the call and waits for its reply, for the caller to leave or to be
// asked, or, after grace, for a task to be made of it.
func (s *Shim) await(ctx context.Context, r *run, grace time.Duration) (Answered, error) {
	s.work.Go(r.exec)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for attempt := 0; ; {
		select {
		case <-r.done:
			return Answered{Reply: r.reply}, r.err
		case <-r.ctx.Done():
			if r.answered() {
				return Answered{Reply: r.reply}, r.err
			}
			// Whoever left hears nothing more; exec ends by the same context.
			r.mute()
			return Answered{}, r.why(r.ctx.Err())
		case <-r.news:
			if r.answered() {
				return Answered{Reply: r.reply}, r.err
			}
			if a, err, done := s.asked(ctx, r); done {
				return a, err
			}
			continue
		case <-timer.C:
		}
		t, err := r.becomeTask()
		if err == nil {
			return s.hand(ctx, r, t)
		}
		if !errors.Is(err, errEnded) && attempt == 0 {
			s.log.WarnContext(ctx, "no task could be made of a slow call; it goes on blocking", "tool", r.call.Request.Name, "err", err)
		}
		attempt++
		timer.Reset(retryCreate)
	}
}

// leftMessage is the status message of a task that nobody was told of.
const leftMessage = "the client left before it was given the task"

// hand gives the task to the caller, unless that one has left in the meantime:
// then nobody knows the task, and it ends as the caller's leaving says.
func (s *Shim) hand(ctx context.Context, r *run, t Task) (Answered, error) {
	if ctx.Err() == nil || r.call.Stay && !errors.Is(context.Cause(ctx), ErrCancelled) {
		return Answered{Task: &t}, nil
	}
	r.cancel(errTaskCancelled)
	s.work.Go(func() { s.withdraw(t.ID, leftMessage, 0) })
	return Answered{}, context.Cause(ctx)
}

// withdraw cancels a task that nobody was told of. A record that this replica does
// not run, though it lives, would stay working for ever.
func (s *Shim) withdraw(id ID, message string, retain time.Duration) {
	change := Change{Op: s.op(), To: Cancelled, StatusMessage: &message, Retain: retain}
	err := s.retry(s.writes, func(ctx context.Context) error {
		_, err := s.store.Apply(ctx, id, nil, change)
		return err
	})
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrFinal) {
		s.log.Warn("a task that nobody was told of may remain", "task", id, "err", err)
	}
}

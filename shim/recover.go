package shim

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// adoptAtOnce is how many tasks one Adopt asks for.
const adoptAtOnce = 64

// mostRuns bounds how often a call is begun under recover: retry.
const mostRuns = 3

// leastRun is what an adopted task has at least left to run, so that a resumed call
// which is about to answer is not cut off for its age.
const leastRun = time.Minute

// errLost is how a task ends whose call cannot be learned of any more
// (design.md 0.5).
var errLost = &UpstreamError{Kind: "lost", Message: "the replica that ran this call was lost; the upstream may have finished the work"}

// adopt takes over the tasks of replicas that are gone, for at most one expiry of the
// heartbeat; what is left then has its turn after the next beat. That some of them cannot
// be had is logged once, until all can be. Only tend calls it.
func (s *Shim) adopt(ctx context.Context) {
	names := slices.Sorted(maps.Keys(s.servers))
	ctx, stop := context.WithTimeoutCause(ctx, s.heartbeat, ErrUnavailable)
	defer stop()
	for s.pulse.steady(time.Now(), s.heartbeat) && !s.draining.Load() && ctx.Err() == nil {
		tasks, err := s.store.Adopt(ctx, s.replica, names, adoptAtOnce)
		if err != nil {
			if !errors.Is(context.Cause(ctx), context.Canceled) && !s.hindered {
				s.hindered = true
				s.log.Warn("tasks of lost replicas could not be adopted, or not all of them", "err", err)
			}
			return
		}
		if s.hindered && len(tasks) == 0 { // some may come although others are out of reach
			s.hindered = false
			s.log.Info("tasks of lost replicas can be adopted again")
		}
		for _, t := range tasks {
			s.takeOver(t)
		}
		if len(tasks) < adoptAtOnce {
			return
		}
	}
}

// takeOver makes an adopted task a run of this replica. One that this replica runs, as
// far as it knows, it either goes on with, or ends first.
func (s *Shim) takeOver(t Task) {
	s.mu.Lock()
	old := s.runs[t.ID]
	s.mu.Unlock()
	switch {
	case t.Status.Final(): // since it was adopted, of which the reply was lost
		return
	case old == nil:
		s.goOnWith(s.adoptedRun(t), t)
		return
	case old.goesOnWith(t.Lease):
		return
	}
	s.log.Info("another replica has had a task since, which runs here still", "task", t.ID)
	s.expect(t.ID)
	old.cancel(ErrDetached)
	s.work.Go(func() {
		<-old.task.over
		s.goOnWith(s.adoptedRun(t), t)
	})
}

// goesOnWith reports whether a run is still its task's although this replica has just
// adopted that, and then has it hold the new lease: the store went back in time, to before
// it had the old one, and no lease of it is newer. A newer one says that another replica
// has had the task meanwhile: it has been answered there, or sent again, of which this run
// knows nothing. A run that was cancelled, or has ended, goes on with nothing.
func (r *run) goesOnWith(l Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.ctx.Err() != nil || l.Adoption > r.task.lease.Adoption {
		return false
	}
	r.task.lease = l
	return true
}

// goOnWith has an adopted task run. What others did to it before it had a run is read.
func (s *Shim) goOnWith(r *run, t Task) {
	s.log.Info("took over a task", "task", t.ID, "tool", t.Tool, "adoption", t.Lease.Adoption)
	r.review(0)
	s.work.Go(func() { r.finishAs(t) })
}

// finishAs goes on with a call as its record says, and records how it ends.
func (r *run) finishAs(t Task) {
	r.reply, r.err = r.goOn(t)
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	close(r.done)
	r.settle()
	r.discard()
}

// adoptedRun is a run without a caller, in the place of the one that was lost.
func (s *Shim) adoptedRun(t Task) *run {
	srv, err := s.server(t.Upstream)
	if err != nil {
		srv = newServer(t.Upstream, Server{})
	}
	var rec callRecord
	if err := json.Unmarshal(t.Call, &rec); err != nil {
		s.log.Error("the stored call of a task cannot be read", "task", t.ID, "err", err)
	}
	r := &run{
		s: s, srv: srv, runs: max(rec.Runs, 1), firm: rec.Firm,
		call: Call{
			Upstream: t.Upstream, Request: rec.Request, Origin: t.Origin, Handle: t.Visible || rec.Handle,
			Partials: rec.Partials, Streaming: rec.Streaming, Asking: rec.Asking,
			ProgressToken: t.Progress.Token,
		},
		box:     mailbox{until: rec.Until, made: rec.Keys},
		round:   rec.Round,
		leave:   func() bool { return true },
		message: t.StatusMessage,
		mark:    t.Checkpoint,
	}
	if r.round != nil {
		r.round.noted = true
	}
	r.channels()
	if srv.Policy != nil {
		r.policy = srv.policyFor(Request{Method: t.Method, Name: t.Tool})
	}
	r.batcher = newBatcher(r.call, r.policy.Partials)
	r.batcher.resumeAt(t.Position)
	ctx, span := s.resumeSpan(t)
	r.base = ctx
	r.bind(trace.ContextWithSpan(ctx, span), max(leastRun, r.policy.Timeout-t.UpdatedAt.Sub(t.CreatedAt)))
	r.adoptTask(t, &taskState{id: t.ID, made: t, hidden: !t.Visible, lease: t.Lease, span: span, counted: s.count(srv, t.Owner)})
	return r
}

// goOn is the ladder of design.md 0.5, best rung first: a call that was not yet
// sent is sent, a stream that can be resumed is resumed, a call whose owner allows
// it is run again, and any other is lost.
func (r *run) goOn(t Task) (Reply, error) {
	if r.srv.Upstream == nil || r.call.Request.Method == "" {
		return Reply{}, errLost
	}
	switch {
	case r.round != nil: // nothing is on its way: the server waits for a retry
		return r.sendAnew()
	case t.Checkpoint == nil && r.firm:
		return r.sendAnew()
	case t.Checkpoint == nil && r.mayRunAgain(t):
		return r.runAgain()
	case t.Checkpoint == nil:
		return Reply{}, errLost
	}
	reply, err := r.srv.Upstream.Resume(r.ctx, r.request(nil), t.Checkpoint, r)
	switch {
	case errors.Is(err, ErrNotSent):
		return r.sendAnew()
	case !errors.Is(err, ErrNotResumable):
		return reply, r.why(err)
	case !r.mayRunAgain(t):
		return Reply{}, errLost
	}
	return r.runAgain()
}

// mayRunAgain: the owner allows it, it has not been tried too often, and nothing
// of the first run has been streamed to anyone. A call that is no task has a caller
// who is to be told that it was lost. r.mu is held, or this is the goroutine of the
// upstream call.
func (r *run) mayRunAgain(t Task) bool {
	return r.policy.Retry && r.runs < mostRuns && t.Position == (Position{}) && t.Visible
}

func (r *run) runAgain() (Reply, error) {
	r.mu.Lock()
	r.runs++
	r.mu.Unlock()
	r.say("started again after its replica was lost")
	if err := r.persist(r.ctx, func() Change { return Change{Call: r.callRecord(true), Durable: true} }); err != nil {
		return Reply{}, err
	}
	return r.sendAnew()
}

// sendAnew sends a call that this replica does not have in flight yet. It waits
// for its turn like any other, but is not refused: the task was acknowledged.
func (r *run) sendAnew() (Reply, error) {
	var err error
	if r.ticket, err = r.srv.reserve(r.call.Request.Name, r.policy, true); err != nil {
		return Reply{}, err
	}
	return r.queueAndSend()
}

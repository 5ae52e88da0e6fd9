package shim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"taskgate/internal/budget"
	"taskgate/internal/semconv"
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

// recovery finds the tasks that this replica is to run and does not: those of replicas
// that are gone, and its own that have no run (audit.go). The Shim owns it; run works it.
type recovery struct {
	s *Shim
	// wake has run look for orphans, and audit what is due, at once.
	wake chan struct{}
	// epoch counts how often events may have been lost, or the store have gone back: only
	// versions of one epoch can be compared.
	epoch atomic.Int64
	// hindered: the latest Adopt that found no task has failed. It is run's alone.
	hindered bool

	due atomic.Int64 // parts to be audited without waiting for their turn
}

// leastAdoptTime is how long one adopt may take at least, however short the heartbeat is: it
// has to look through the shards, and begins anew each time.
const leastAdoptTime = 5 * time.Second

// adoptTasks takes over the tasks of replicas that are gone. It works for at most one expiry of
// the heartbeat, or leastAdoptTime; tasks that are left then have their turn after the next
// beat. If some cannot be adopted, that is logged once, until all can be. Only run calls it.
func (rv *recovery) adoptTasks(ctx context.Context) {
	s := rv.s
	names := slices.Sorted(maps.Keys(*s.servers.Load()))
	ctx, stop := context.WithTimeoutCause(ctx, max(s.Heart.expiry, leastAdoptTime), ErrUnavailable)
	defer stop()
	for s.Heart.IsSteady() && !s.draining.Load() && ctx.Err() == nil {
		tasks, err := s.store.Adopt(ctx, s.replica, names, adoptAtOnce)
		if err != nil {
			if !errors.Is(context.Cause(ctx), context.Canceled) && !rv.hindered {
				rv.hindered = true
				s.log.Warn("tasks of lost replicas could not be adopted, or not all of them", "err", err)
			}
			return
		}
		if rv.hindered && len(tasks) == 0 { // some may come although others are out of reach
			rv.hindered = false
			s.log.Info("tasks of lost replicas can be adopted again")
		}
		for _, t := range tasks {
			rv.beginAdopted(t)
		}
		if len(tasks) < adoptAtOnce {
			return
		}
	}
}

// beginAdopted makes an adopted task a run of this replica. If the task has a run here already,
// that run goes on, or it is ended first.
func (rv *recovery) beginAdopted(t Task) {
	s := rv.s
	old := s.runs.get(t.ID)
	switch {
	case t.Status.Final(): // since it was adopted, of which the reply was lost
		return
	case old == nil:
		rv.startAdopted(s.adoptedRun(t), t)
		return
	case old.continuesUnder(t.Lease):
		return
	}
	s.observer.logTask(t, slog.LevelInfo, "another replica has had a task since, which runs here still")
	s.runs.expectTask(t.ID)
	old.cancel(ErrDetached)
	s.life.work.Go(func() {
		<-old.record.over
		rv.startAdopted(s.adoptedRun(t), t)
	})
}

// startAdopted has an adopted task run. What others did to it before it had a run is read.
func (rv *recovery) startAdopted(r *run, t Task) {
	r.trace.logRun(slog.LevelInfo, "took over a task", "attempt", t.Lease.Adoption+1, "from", string(t.From), "event", KindAdopted.eventName())
	r.meter.adopted = true
	r.srv.metrics.Adopted(r.ctx)
	r.inbox.reviewVersion(0)
	rv.s.life.work.Go(func() { r.finishAs(t) })
}

// continuesUnder reports whether a run may go on with its task although this replica has just
// adopted that task, and then has the run hold the new lease. It may if the store only went
// back in time, to before it had the run's lease: then the new lease is not newer. A newer
// one says that another replica has had the task meanwhile, and may have answered its
// questions or sent it again. A run that was cancelled, or has ended, does not go on.
func (r *run) continuesUnder(l Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.ctx.Err() != nil || l.Adoption > r.record.lease.Adoption {
		return false
	}
	r.record.lease = l
	return true
}

// finishAs goes on with a call as its record says, and records how it ends.
func (r *run) finishAs(t Task) {
	if r.reply, r.err = r.recoverCall(t); r.err == errLost {
		r.meter.countRecovery(semconv.RecoveryLost)
	}
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	close(r.done)
	r.settle()
	r.discard()
}

// adoptedRun is a run without a caller, in the place of the one that was lost.
func (s *Shim) adoptedRun(t Task) *run {
	srv, err := s.findServer(t.Upstream)
	if err != nil {
		srv = newServer(t.Upstream, Server{}, nil)
	}
	var rec callRecord
	if err := json.Unmarshal(t.Call, &rec); err != nil {
		s.observer.logTask(t, slog.LevelError, "the stored call of a task cannot be read", "err", err)
	}
	r := &run{
		s: s, srv: srv, runs: max(rec.Runs, 1), firm: rec.Firm, incomplete: rec.Trimmed,
		call: Call{
			Upstream: t.Upstream, Request: rec.Request, Origin: t.Origin, Handle: t.Visible || rec.Handle,
			Partials: rec.Partials, Asking: rec.Asking,
			ProgressToken: t.Progress.Token,
		},
		checkpoint: t.Checkpoint,
	}
	if srv.Policy != nil {
		r.policy = srv.policyFor(Request{Method: t.Method, Name: t.Tool})
	}
	r.policy.Retry = rec.Retry
	r.assembleParts()
	r.box.until, r.box.made = rec.Until, rec.Keys
	r.rounds.goOn(rec.Round)
	r.status.message, r.status.params = t.StatusMessage, t.Progress.Params
	r.pieces.resumeAt(t.Position)
	r.trace.adoptTrace(t)
	ctx := trace.ContextWithRemoteSpanContext(s.life.ctx, r.trace.above)
	if s.budget != nil {
		r.hold = s.budget.Hold()
		ctx = budget.With(ctx, r.hold)
	}
	if srv.Represent != nil {
		ctx = srv.Represent(ctx, rec.Request.Session)
	}
	r.base = ctx
	r.bindContext(ctx, max(leastRun, r.policy.Timeout-t.UpdatedAt.Sub(t.CreatedAt)))
	srv.tasks.Force(t.Owner)
	r.token.at.Store(t.TokenAt) // those before went to the runner before
	r.setRecord(t, &record{id: t.ID, made: t, hidden: !t.Visible, lease: t.Lease})
	return r
}

// recoverCall is the ladder of design.md 0.5, best rung first: a call that was not yet
// sent is sent, a stream that can be resumed is resumed, a call whose owner allows
// it is run again, and any other is lost.
func (r *run) recoverCall(t Task) (Reply, error) {
	if r.srv.Upstream == nil || r.call.Request.Method == "" {
		return Reply{}, errLost
	}
	if t.Checkpoint == nil && !r.firm && r.rounds.open == nil && !r.mayRunAgain(t) {
		return Reply{}, errLost
	}
	switch {
	case r.rounds.open != nil: // nothing is on its way: the server waits for a retry
		r.trace.setKind(semconv.AttemptResume)
		return r.sendAnew(semconv.RecoverySent)
	case t.Checkpoint == nil && r.firm:
		r.trace.setKind(semconv.AttemptSend)
		return r.sendAnew(semconv.RecoverySent)
	case t.Checkpoint == nil:
		return r.runAgain()
	}
	if r.srv.Upstream.Resumable(t.Checkpoint) {
		r.trace.setKind(semconv.AttemptResume)
		r.trace.logRun(slog.LevelInfo, "the call of a task is resumed", "event", KindResumed.eventName())
		r.trace.noteMoment(KindResumed, "")
	}
	r.meter.countRecovery(semconv.RecoveryResumed)
	reply, err := r.srv.Upstream.Resume(r.ctx, r.upstreamRequest(nil), t.Checkpoint, r)
	switch {
	case errors.Is(err, ErrNotSent):
		r.trace.setKind(semconv.AttemptSend)
		return r.sendAnew(semconv.RecoverySent)
	case !errors.Is(err, ErrNotResumable):
		return reply, r.findCause(err)
	case !r.mayRunAgain(t):
		return Reply{}, errLost
	}
	return r.runAgain()
}

// mayRunAgain: the owner allows it, it has not been tried too often, and nothing
// of the first run has been streamed to anyone. A call that is no task has a caller
// who is to be told that it was lost. run.mu is held, or this is the goroutine of the
// upstream call.
func (r *run) mayRunAgain(t Task) bool {
	return r.policy.Retry && r.runs < mostRuns && t.Position == 0 && t.Visible
}

func (r *run) runAgain() (Reply, error) {
	r.mu.Lock()
	r.runs++
	runs := r.runs
	r.mu.Unlock()
	r.trace.setKind(semconv.AttemptRetry)
	r.trace.logRun(slog.LevelInfo, "the call of a task is sent again", "runs", runs, "event", KindRetried.eventName())
	r.trace.noteMoment(KindRetried, "")
	r.status.setMessage("started again after its replica was lost")
	if err := r.record.persistChange(r.ctx, func() Change { return Change{Call: r.callRecord(true), Durable: true} }); err != nil {
		return Reply{}, err
	}
	return r.sendAnew(semconv.RecoveryRetried)
}

// sendAnew sends a call that this replica does not have in flight yet. It waits
// for its turn like any other, but is not refused: the task was acknowledged. how is a value of
// semconv.Recovery.
func (r *run) sendAnew(how string) (Reply, error) {
	if r.incomplete {
		return Reply{}, errLost
	}
	r.meter.countRecovery(how)
	r.mu.Lock()
	r.trace.told = told{heard: r.trace.told.heard, progress: r.trace.told.progress}
	r.mu.Unlock()
	if r.rounds.open == nil { // else it waits for its turn once it has the answers
		var err error
		if r.ticket, err = r.srv.reserveSlots(r.call.Request.Name, r.policy, true); err != nil {
			return Reply{}, err
		}
	}
	return r.queueAndSend()
}

// messageWaits is the status message of a task that goes on with the next request of its owner.
const messageWaits = "waits for its owner to sign in again: the token that the call came with is no longer good, or was lost with its replica"

// waitsKey is the key of the context value that SayWaiting reads.
type waitsKey struct{}

// SayWaiting has the task of whose call ctx is say that it waits for its owner to sign in, until over is
// called.
func SayWaiting(ctx context.Context) (over func()) {
	r, ok := ctx.Value(waitsKey{}).(*run)
	if !ok {
		return func() {}
	}
	r.mu.Lock()
	before := r.status.message
	r.mu.Unlock()
	if before == messageWaits { // of another request of the call, or of the runner before this one
		before = ""
	}
	r.status.setMessage(messageWaits)
	return func() { r.status.setMessage(before) }
}

package runner

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/semconv"
	"taskgate/shim"
	"taskgate/shim/node"
)

// mostRuns bounds how often a call is begun under recover: retry.
const mostRuns = 3

// errLost ends a task whose call has an outcome that stays unknown (design.md 0.5).
var errLost = &shim.UpstreamError{Kind: "lost", Message: "the replica that ran this call was lost; the upstream may have finished the work"}

// ContinuesUnder reports whether a run may go on after this replica has just adopted its task, and then
// gives the run the new lease. It may if the store only went back in time, to before the run's lease:
// then the new lease is older or the same. A newer one says that another replica has had the task
// meanwhile, and may have answered its questions or sent it again. A run that was cancelled, or has
// ended, stops here.
func (r *Run) ContinuesUnder(l shim.Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.Ctx.Err() != nil || l.Adoption > r.record.Lease.Adoption {
		return false
	}
	r.record.Lease = l
	return true
}

// FinishAsRecorded goes on with a call as its record says, and records how it ends.
func (r *Run) FinishAsRecorded() {
	if r.linger.left {
		r.core.Life.Work.Go(r.linger.keepAdopted)
	}
	if r.reply, r.err = r.recoverCall(); r.err == errLost {
		r.Observed.countRecovery(semconv.RecoveryLost)
	}
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	close(r.done)
	r.settle()
	r.linger.endAfter()
	r.Discard()
}

// recoverCall is the ladder of design.md 0.5, best rung first: an unsent call is sent, a stream that
// can be resumed is resumed, a call whose owner allows it is run again, and any other is lost.
func (r *Run) recoverCall() (shim.Reply, error) {
	r.mu.Lock()
	checkpoint, says := r.record.Checkpoint, r.record.says
	r.mu.Unlock()
	if r.Srv.Upstream == nil || r.Call.Request.Method == "" {
		return shim.Reply{}, errLost
	}
	if checkpoint == nil && says != unsent && r.rounds.open == nil && !r.mayRunAgain() {
		return shim.Reply{}, errLost
	}
	switch {
	case r.rounds.open != nil: // the server waits for a retry
		r.Observed.setKind(semconv.AttemptResume)
		return r.sendAnew(semconv.RecoverySent)
	case checkpoint == nil && says == unsent:
		r.Observed.setKind(semconv.AttemptSend)
		return r.sendAnew(semconv.RecoverySent)
	case checkpoint == nil:
		return r.runAgain()
	}
	r.Observed.noteResumed(r.Srv.Upstream.Resumable(checkpoint))
	reply, err := r.Srv.Upstream.Resume(r.Ctx, r.upstreamRequest(nil), checkpoint, r)
	switch {
	case !errors.Is(err, shim.ErrNotResumable):
		return reply, r.findCause(err)
	case !r.mayRunAgain():
		return shim.Reply{}, errLost
	}
	return r.runAgain()
}

// mayRunAgain reports whether the owner allows another run, the number of runs is below mostRuns, and
// the first one showed no pieces. The caller of a hidden call is told that it was lost, unless it has given up.
func (r *Run) mayRunAgain() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policy.Retry && r.begun < mostRuns && r.record.Position == 0 && (r.record.Visible || r.linger.left)
}

func (r *Run) runAgain() (shim.Reply, error) {
	r.mu.Lock()
	r.begun++
	runs := r.begun
	r.mu.Unlock()
	r.Observed.noteRetried(runs)
	r.outbox.setMessage("started again after its replica was lost")
	if _, err := r.record.applyChange(r.Ctx, func() shim.Change { return shim.Change{Call: r.callRecord(true), Durable: true} }); err != nil {
		return shim.Reply{}, err
	}
	reply, err := r.sendAnew(semconv.RecoveryRetried)
	if errors.Is(err, shim.ErrNotRepeatable) {
		err = errLost
	}
	return reply, err
}

// sendAnew sends an adopted call itself. It waits for its turn like any other, but is always admitted:
// the task was acknowledged. how is a value of semconv.Recovery.
func (r *Run) sendAnew(how string) (shim.Reply, error) {
	if r.Call.Request.Params == nil { // it was sent, and its record has dropped them
		return shim.Reply{}, errLost
	}
	r.Observed.noteUnsent(how)
	if r.rounds.open == nil { // else it waits for its turn once it has the answers
		var err error
		if r.ticket, err = r.Srv.Slots.ReserveSlot(r.Call.Request, r.policy.Concurrency, true); err != nil {
			return shim.Reply{}, err
		}
	}
	return r.rounds.sendRounds()
}

// messageWaits is the status message of a task that waits for the next request of its owner.
const messageWaits = "waits for its owner to sign in again: the token that the call came with is no longer good, or was lost with its replica"

// SayWaiting sets the status message of the task: it waits for its owner to sign in, until over is called.
func (t *tokenInbox) SayWaiting() (over func()) {
	r := t.run
	r.mu.Lock()
	before := r.record.StatusMessage
	r.mu.Unlock()
	if before == messageWaits { // from another request of the call, or from the previous runner
		before = ""
	}
	r.outbox.setMessage(messageWaits)
	return func() { r.outbox.setMessage(before) }
}

// leastRun is the least time that an adopted task has left, so that a resumed call which is about to
// answer still can.
const leastRun = time.Minute

// AdoptRun returns a run without a caller, in place of the lost one.
func AdoptRun(s *node.Core, rs *node.Runs[Run], srv *node.Served, bytes *budget.Bytes, t shim.Task) *Run {
	var rec CallRecord
	if err := json.Unmarshal(t.Call, &rec); err != nil {
		s.Observer.LogTask(t, slog.LevelError, "the stored call of a task cannot be read", "err", err)
	}
	r := &Run{
		core: s, runs: rs, Srv: srv, begun: max(rec.Runs, 1),
		Call: shim.Call{
			Upstream: t.Upstream, Principal: shim.Principal{Subject: t.Owner}, Request: rec.Request, Origin: t.Origin, Handle: t.Visible || rec.Handle,
			Partials: rec.Partials, Asking: rec.Asking,
			ProgressToken: t.Progress.Token,
		},
		record: record{Task: t},
	}
	if rec.Firm && !t.Doubted {
		r.record.says = unsent
	}
	if srv.Policy != nil {
		r.policy = srv.PolicyFor(shim.Request{Method: t.Method, Name: t.Tool, Says: rec.Request.Says})
	}
	r.policy.Retry, r.policy.IfRepeatable, r.policy.Timeout = rec.Retry, rec.IfRepeatable, cmp.Or(rec.Timeout, r.policy.Timeout)
	r.assembleParts()
	if e := rec.Linger; e != nil && !t.Visible {
		r.linger.entry, r.linger.left = *e, true
		r.linger.entry.ID = t.ID
	}
	r.box.until, r.box.made = rec.Until, rec.Keys
	if !t.Doubted {
		r.rounds.goOn(rec.Round)
	}
	r.outbox.made, r.keeping.arguments = int(t.Position), len(t.Arguments)
	r.observeRun(s.Life.Ctx)
	ctx := r.Observed.adoptTrace(t)
	r.hold = bytes.Hold()
	ctx = budget.With(ctx, r.hold)
	if srv.Represent != nil {
		ctx = srv.Represent(ctx, rec.Request.Session)
	}
	r.base = ctx
	r.bindContext(ctx, max(leastRun, r.policy.Timeout-t.UpdatedAt.Sub(t.CreatedAt)))
	srv.Tasks.Force(r.Call.Principal.Share())
	if t.Visible {
		r.keeping.forceRoom()
	}
	r.Token.at.Store(t.TokenAt) // earlier tokens went to the previous runner
	r.record.beginRecord(t)
	return r
}

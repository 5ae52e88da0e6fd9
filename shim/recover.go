package shim

import (
	"context"
	"errors"

	"taskgate/internal/semconv"
)

// mostRuns bounds how often a call is begun under recover: retry.
const mostRuns = 3

// errLost ends a task whose call has an outcome that stays unknown (design.md 0.5).
var errLost = &UpstreamError{Kind: "lost", Message: "the replica that ran this call was lost; the upstream may have finished the work"}

// continuesUnder reports whether a run may go on after this replica has just adopted its task, and then
// gives the run the new lease. It may if the store only went back in time, to before the run's lease:
// then the new lease is older or the same. A newer one says that another replica has had the task
// meanwhile, and may have answered its questions or sent it again. A run that was cancelled, or has
// ended, stops here.
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
		r.observed.countRecovery(semconv.RecoveryLost)
	}
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	close(r.done)
	r.settle()
	r.discard()
}

// recoverCall is the ladder of design.md 0.5, best rung first: an unsent call is sent, a stream that
// can be resumed is resumed, a call whose owner allows it is run again, and any other is lost.
func (r *run) recoverCall(t Task) (Reply, error) {
	if r.srv.Upstream == nil || r.call.Request.Method == "" {
		return Reply{}, errLost
	}
	if t.Checkpoint == nil && !r.firm && r.rounds.open == nil && !r.mayRunAgain(t) {
		return Reply{}, errLost
	}
	switch {
	case r.rounds.open != nil: // the server waits for a retry
		r.observed.setKind(semconv.AttemptResume)
		return r.sendAnew(semconv.RecoverySent)
	case t.Checkpoint == nil && r.firm:
		r.observed.setKind(semconv.AttemptSend)
		return r.sendAnew(semconv.RecoverySent)
	case t.Checkpoint == nil:
		return r.runAgain()
	}
	r.observed.noteResumed(r.srv.Upstream.Resumable(t.Checkpoint))
	reply, err := r.srv.Upstream.Resume(r.ctx, r.upstreamRequest(nil), t.Checkpoint, r)
	switch {
	case !errors.Is(err, ErrNotResumable):
		return reply, r.findCause(err)
	case !r.mayRunAgain(t):
		return Reply{}, errLost
	}
	return r.runAgain()
}

// mayRunAgain reports whether the owner allows another run, the number of runs is below mostRuns, and
// the first one showed no pieces. The caller of a hidden call is told that it was lost. run.mu is held,
// or this is the goroutine of the upstream call.
func (r *run) mayRunAgain(t Task) bool {
	return r.policy.Retry && r.begun < mostRuns && t.Position == 0 && t.Visible
}

func (r *run) runAgain() (Reply, error) {
	r.mu.Lock()
	r.begun++
	runs := r.begun
	r.mu.Unlock()
	r.observed.noteRetried(runs)
	r.outbox.setMessage("started again after its replica was lost")
	if err := r.record.persistChange(r.ctx, func() Change { return Change{Call: r.callRecord(true), Durable: true} }); err != nil {
		return Reply{}, err
	}
	return r.sendAnew(semconv.RecoveryRetried)
}

// sendAnew sends an adopted call itself. It waits for its turn like any other, but is always admitted:
// the task was acknowledged. how is a value of semconv.Recovery.
func (r *run) sendAnew(how string) (Reply, error) {
	if r.call.Request.Params == nil { // it was sent, and its record has dropped them
		return Reply{}, errLost
	}
	r.observed.noteUnsent(how)
	if r.rounds.open == nil { // else it waits for its turn once it has the answers
		var err error
		if r.ticket, err = r.srv.slots.reserveSlot(r.call.Request.Name, r.policy.Concurrency, true); err != nil {
			return Reply{}, err
		}
	}
	return r.queueAndSend()
}

// messageWaits is the status message of a task that waits for the next request of its owner.
const messageWaits = "waits for its owner to sign in again: the token that the call came with is no longer good, or was lost with its replica"

// waitsKey is the context key of SayWaiting.
type waitsKey struct{}

// SayWaiting sets the status message of the task whose call ctx belongs to: it waits for its owner to
// sign in, until over is called.
func SayWaiting(ctx context.Context) (over func()) {
	r, ok := ctx.Value(waitsKey{}).(*run)
	if !ok {
		return func() {}
	}
	r.mu.Lock()
	before := r.outbox.message
	r.mu.Unlock()
	if before == messageWaits { // from another request of the call, or from the previous runner
		before = ""
	}
	r.outbox.setMessage(messageWaits)
	return func() { r.outbox.setMessage(before) }
}

package shim

import (
	"context"
	"errors"
)

// This file says what becomes of running calls when their replica stops: what
// another replica can go on with is left to it, everything else ends here and is
// told so (design.md 0.6).

// errShutDown is how a task ends whose replica stops while nobody else can go on
// with its call. As the cause of a context it has the call cancelled at the server:
// nobody is left who would take its answer.
var errShutDown = &UpstreamError{Kind: "shutdown", Message: "the gateway was shut down while this call ran; the upstream may have finished the work"}

// parting is the cause with which this replica's halt ends the call. Whether it has a
// record is waited for where that is being decided.
func (r *run) parting() error {
	r.mu.Lock()
	r.awaitMaking()
	kept := r.task != nil
	r.mu.Unlock()
	if kept && !r.goesOn() {
		return errShutDown
	}
	return ErrDetached
}

// goesOn reports whether another replica can go on with the call: the ladder of
// design.md 0.5 has a rung for it besides the last.
func (r *run) goesOn() bool {
	r.mu.Lock()
	mark, made := r.mark, r.task.made
	if r.batcher != nil {
		made.Position = r.batcher.at
	}
	goesOn := mark == nil || r.round != nil && r.round.noted || r.mayRunAgain(made)
	r.mu.Unlock()
	return goesOn || r.srv.Upstream == nil || r.srv.Upstream.Resumable(mark)
}

// handOver leaves the call to whoever adopts it, with the newest that is known of it:
// where it stands and what was said up to there, or that it was not sent. The
// goroutine of the upstream call does this once the call is over here, so that it
// stays true.
func (r *run) handOver() {
	r.mu.Lock()
	change, open := Change{Checkpoint: r.mark}, r.round != nil && r.round.noted
	r.mu.Unlock()
	switch {
	case open, r.mark == nil && r.firm:
		return // the record says so already
	case r.mark == nil:
		r.firm = true
		change.Call = r.callRecord(false)
	}
	if r.batcher != nil {
		change.Tail, change.At = r.batcher.batches()
	}
	err := r.persist(r.s.writes, func() Change { return change })
	if errors.Is(err, ErrPosition) { // the store has lost some of the stream
		r.refit(&change)
		err = r.persist(r.s.writes, func() Change { return change })
	}
	if err != nil && !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrFinal) {
		r.s.log.Warn("a call is handed over with what was known of it before", "task", r.task.id, "err", err)
	}
}

// lastLook is a Wait's last answer when this replica halts: the end of a task that
// ends with it, ErrDraining for any other.
func (s *Shim) lastLook(ctx context.Context, p Principal, upstream string, id ID) (Task, error) {
	s.mu.Lock()
	_, here := s.runs[id]
	s.mu.Unlock()
	if here {
		patient, stop := context.WithTimeout(ctx, s.storeTimeout)
		_ = s.work.Wait(patient) // what has not ended by then is reported as running
		stop()
	}
	t, err := s.Get(ctx, p, upstream, id)
	if err == nil && t.Status.Final() {
		return t, nil
	}
	return Task{}, ErrDraining
}

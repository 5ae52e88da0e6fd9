package shim

import (
	"context"
	"log/slog"

	"taskgate/internal/work"
)

// A replica compares, part by part, the tasks that the store has it run with those that it
// runs. So it learns of a change whose event was lost, and of a task that is its own by
// the record and that nobody runs: an adoption or a creation that the store made when its
// caller had given up, or an end that the store has lost. With one part at each beat, all
// parts have their turn in Parts/beatsPerExpiry expiries of the heartbeat (design.md 0.4).

// listenForChanges takes what others do to this replica's tasks, cancel them, answer them or adopt
// them, and who leaves tasks behind. An event only has a task read again: the inbox is
// that of all tasks, and waits for no read.
func (rv *recovery) listenForChanges(ctx context.Context) {
	s := rv.s
	// The store wakes it, also after each reconnect; the audit finds what is lost, within Parts beats (27 s).
	for e, err := range s.store.Inbox(ctx, s.replica) {
		switch {
		case err != nil:
			if ctx.Err() == nil {
				s.log.Error("this replica no longer hears of its tasks", "err", err)
			}
			return
		case e.Synced:
			rv.distrustAll()
			for _, id := range s.outcomes.heldIDs() {
				s.life.work.Go(func() { s.outcomes.assureEnding(s.life.writes, id) })
			}
			work.Signal(rv.wake)
		case e.Goodbye:
			work.Signal(rv.wake)
		default:
			if r := s.runs.findHeard(e.ID); r != nil {
				r.token.takeToken(e.Token, e.Version) // before the run reads what has come with it
				r.inbox.reviewVersion(e.Version)
			}
		}
	}
}

// adoptAndAudit adopts the tasks of replicas that are gone, and audits this one's own. It is apart
// from the heartbeat, which sets its pace, because both may wait for the store for long. Where an
// adoption has taken several beats, as many parts are audited.
func (rv *recovery) adoptAndAudit(ctx context.Context) {
	audited := rv.s.Heart.ticks.Load()
	for part := 0; ; {
		// A goodbye or a reconnect wakes it, and each beat of this replica (a third of the expiry).
		select {
		case <-ctx.Done():
			return
		case <-rv.wake:
		case <-rv.s.Heart.ticked:
		}
		rv.adoptTasks(ctx)
		ticks := rv.s.Heart.ticks.Load()
		n := max(ticks-audited, rv.due.Swap(0))
		audited = ticks
		for ; n > 0; n-- {
			told := rv.auditPart(ctx, part)
			part = (part + 1) % Parts
			if !told {
				break // the others go on at the next beat, and this one last
			}
		}
		rv.due.CompareAndSwap(0, n) // unless all are due by now
	}
}

// distrustAll has all parts audited at once, with what was seen before counting for nothing:
// events may have been lost, and a store that went back may count versions again.
func (rv *recovery) distrustAll() {
	rv.epoch.Add(1)
	rv.due.Store(Parts)
}

// auditPart compares one part and reports whether the store has told all of it.
func (rv *recovery) auditPart(ctx context.Context, part int) bool {
	s := rv.s
	if part == 0 { // once a round, and after each reconnect: the store may have lost its data
		s.marks.forgetEpoch()
	}
	mine, epoch := s.runs.inPart(part), rv.epoch.Load()
	held, err := withPatience(ctx, s, func(ctx context.Context) ([]Held, error) { return s.store.Running(ctx, s.replica, part) })
	for _, h := range held {
		r := mine[h.ID]
		delete(mine, h.ID)
		switch {
		case r == nil:
			rv.reclaimTask(ctx, h.ID)
		case !r.inbox.upToDate(h.Version, epoch):
			r.inbox.reviewVersion(h.Version)
		}
	}
	if err != nil {
		return false
	}
	for _, r := range mine { // ended, adopted or forgotten
		r.inbox.reviewVersion(0)
	}
	return true
}

// reclaimTask goes on with a task that is this replica's by its record, if it has no run.
func (rv *recovery) reclaimTask(ctx context.Context, id ID) {
	s := rv.s
	if s.runs.isKnown(id) {
		return
	}
	if _, held := s.outcomes.findEnding(id); held { // its run has ended before it was forgotten
		return
	}
	t, err := s.readRecord(ctx, id, WithRun)
	if err != nil || t.Status.Final() || t.Lease.Replica != s.replica || s.draining.Load() {
		return // the next audit finds it again, if it is still to be found
	}
	s.observer.logTask(t, slog.LevelWarn, "a task of this replica had no run")
	r := s.adoptedRun(t)
	// The record may be older than what became of the call: that it was not sent, or that
	// a round was open, proves nothing any more.
	r.firm, r.rounds.open = false, nil
	rv.startAdopted(r, t)
}

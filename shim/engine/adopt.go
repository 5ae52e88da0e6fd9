package engine

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
	"taskgate/shim/runner"
)

// recovery finds the tasks that this replica should start to run: those of lost replicas, and its own
// without a run. The Shim owns it; adoptAndAudit works it.
type recovery struct {
	s *Shim
	// wake has adoptAndAudit look for orphans, and audit the due parts, at once.
	wake chan struct{}
	// hindered: the latest Adopt with an empty result has failed. Only adoptAndAudit uses it.
	hindered bool

	due atomic.Int64 // parts to be audited ahead of their turn
}

// listenForChanges takes the changes that others make to this replica's tasks (cancellations, answers,
// adoptions), and the goodbyes of replicas. An event only has a task read again: the inbox serves all
// tasks, so a read must not hold it up.
func (rv *recovery) listenForChanges(ctx context.Context) {
	s := rv.s
	// The store wakes it, also after each reconnect; the audit finds lost events, within Parts beats
	// (27 s).
	for e, err := range s.Store.Inbox(ctx, s.Replica) {
		switch {
		case err != nil:
			if ctx.Err() == nil {
				s.Log.Error("this replica no longer hears of its tasks", "err", err)
			}
			return
		case e.Synced:
			rv.distrustAll()
			for _, id := range s.Outcomes.HeldIDs() {
				s.Life.Work.Go(func() { s.Outcomes.AssureEnding(s.Life.Writes, id) })
			}
			work.Signal(rv.wake)
		case e.Goodbye:
			work.Signal(rv.wake)
		case e.Linger != nil:
			s.Repeats.Hear(*e.Linger, heardFor)
		default:
			if r := s.runs.FindHeard(e.ID); r != nil {
				r.Token.TakeToken(e.Token, e.Version) // before the run reads the change that came with it
				r.Inbox.ReviewVersion(e.Version)
			}
		}
	}
}

// adoptAndAudit adopts the tasks of lost replicas, audits this replica's own, and reads again what it knows of the rest.
// The heartbeat sets its pace but is a separate goroutine, because both may wait for the store for long. If an adoption
// has taken several beats, as many parts are audited.
func (rv *recovery) adoptAndAudit(ctx context.Context) {
	audited := rv.s.Heart.Ticks.Load()
	for part := 0; ; {
		// A goodbye, a pause or a reconnect wakes it, and each beat of this replica (a third of the expiry).
		select {
		case <-ctx.Done():
			return
		case <-rv.wake:
		case <-rv.s.Heart.Ticked:
		}
		rv.s.pauses.readPauses(ctx)
		repeater{rv.s}.refreshRepeats(ctx)
		rv.adoptTasks(ctx)
		ticks := rv.s.Heart.Ticks.Load()
		n := max(ticks-audited, rv.due.Swap(0))
		audited = ticks
		for ; n > 0; n-- {
			told := rv.auditPart(ctx, part)
			part = (part + 1) % shim.Parts
			if !told {
				break // the others go on at the next beat, and this one last
			}
		}
		rv.due.CompareAndSwap(0, n) // the rest stays due; meanwhile distrustAll may have made all due
	}
}

// adoptAtOnce is how many tasks one Adopt asks for.
const adoptAtOnce = 64

// leastAdoptTime is the least time for one adoption, however short the heartbeat is: it has to look
// through the shards, and begins anew each time.
const leastAdoptTime = 5 * time.Second

// adoptTasks takes over the tasks of lost replicas. It works for at most one expiry of the heartbeat,
// or leastAdoptTime; tasks that are left have their turn after the next beat. A failure is logged once,
// until all can be adopted. Only adoptAndAudit calls it.
func (rv *recovery) adoptTasks(ctx context.Context) {
	s := rv.s
	names := slices.Sorted(maps.Keys(*s.servers.Load()))
	ctx, stop := context.WithTimeoutCause(ctx, max(s.Heart.Expiry, leastAdoptTime), shim.ErrUnavailable)
	defer stop()
	for s.Heart.IsSteady() && !s.draining.Load() && ctx.Err() == nil {
		tasks, err := s.Store.Adopt(ctx, s.Replica, names, adoptAtOnce)
		if err != nil {
			if !errors.Is(context.Cause(ctx), context.Canceled) && !rv.hindered {
				rv.hindered = true
				s.Log.Warn("tasks of lost replicas could not be adopted, or not all of them", "err", err)
			}
			return
		}
		if rv.hindered && len(tasks) == 0 { // with tasks, others may still be out of reach
			rv.hindered = false
			s.Log.Info("tasks of lost replicas can be adopted again")
		}
		for _, t := range tasks {
			rv.beginAdopted(t)
		}
		if len(tasks) < adoptAtOnce {
			return
		}
	}
}

// beginAdopted makes a run of an adopted task. If the task has a run here already, that run goes on, or
// is ended first.
func (rv *recovery) beginAdopted(t shim.Task) {
	s := rv.s
	old := s.runs.Get(t.ID)
	switch {
	case t.Status.Final(): // it ended after an adoption whose reply was lost
		return
	case old == nil:
		rv.startAdopted(s.adoptTask(t), t)
		return
	case old.ContinuesUnder(t.Lease):
		return
	}
	s.Observer.LogTask(t, slog.LevelInfo, "another replica has had a task since, which runs here still")
	s.runs.ExpectTask(t.ID)
	old.Cancel(shim.ErrDetached)
	s.Life.Work.Go(func() {
		<-old.Over()
		rv.startAdopted(s.adoptTask(t), t)
	})
}

// startAdopted starts the run of an adopted task. It reads the changes that others made before there
// was a run.
func (rv *recovery) startAdopted(r *runner.Run, t shim.Task) {
	r.Observed.NoteAdopted(t)
	r.Inbox.ReviewVersion(0)
	rv.s.Life.Work.Go(func() { r.FinishAsRecorded() })
}

// adoptTask returns a run of an adopted task.
func (s *Shim) adoptTask(t shim.Task) *runner.Run {
	srv, err := s.findServer(t.Upstream)
	if err != nil {
		srv = node.NewServer(t.Upstream, shim.Server{}, nil)
	}
	return runner.AdoptRun(s.Core, s.runs, srv, s.budget, t)
}

// Part by part, a replica compares the tasks that it runs with those that the store has it run. So it
// learns of a change whose event was lost, and of a task that is its own by the record but lacks a run:
// an adoption or a creation that the store made after its caller had given up, or an end that the store
// has lost. With one part at each beat, all parts have their turn in Parts/beatsPerExpiry expiries of
// the heartbeat (design.md 0.4).

// distrustAll has all parts audited at once, and the versions seen before distrusted: events may have
// been lost, and a store that went back may count versions again.
func (rv *recovery) distrustAll() {
	rv.s.Epoch.Add(1)
	rv.due.Store(shim.Parts)
}

// auditPart compares one part and reports whether the store has listed all of it.
func (rv *recovery) auditPart(ctx context.Context, part int) bool {
	s := rv.s
	if part == 0 { // once a round, and after each reconnect: the store may have lost its data
		s.Marks.ForgetEpoch()
	}
	mine, epoch := s.runs.InPart(part), rv.s.Epoch.Load()
	held, err := node.WithPatience(ctx, s.Core, func(ctx context.Context) ([]shim.Held, error) { return s.Store.Running(ctx, s.Replica, part) })
	for _, h := range held {
		r := mine[h.ID]
		delete(mine, h.ID)
		switch {
		case r == nil:
			rv.reclaimTask(ctx, h.ID)
		case !r.Inbox.UpToDate(h.Version, epoch):
			r.Inbox.ReviewVersion(h.Version)
		}
	}
	if err != nil {
		return false
	}
	for _, r := range mine { // ended, adopted or forgotten
		r.Inbox.ReviewVersion(0)
	}
	return true
}

// reclaimTask goes on with a task that is this replica's by its record, if it lacks a run.
func (rv *recovery) reclaimTask(ctx context.Context, id shim.ID) {
	s := rv.s
	if s.runs.IsKnown(id) {
		return
	}
	if e, held := s.Outcomes.FindEnding(id); held && e.End.To != "" { // its run has ended before it was forgotten
		return
	}
	t, err := s.ReadRecord(ctx, id, shim.WithRun)
	if err != nil || t.Status.Final() || t.Lease.Replica != s.Replica || s.draining.Load() {
		return // the next audit finds it again, if it is still to be found
	}
	s.Observer.LogTask(t, slog.LevelWarn, "a task of this replica had no run")
	// The record may be older than the state of the call: its word that the call is unsent, or that a
	// round is open, may be outdated.
	t.Doubted = true
	rv.startAdopted(s.adoptTask(t), t)
}

package shim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"taskgate/internal/work"
)

// record is the stored record of a run: the changes of the run go out one after the other, so that each
// arrives before the next. The run owns it. run.mu guards all fields but those that name another guard.
type record struct {
	run    *run
	id     ID
	made   Task // as it was created or adopted, with the newest TTL
	hidden bool // the call is still to become a task (design.md 0.13)
	lease  Lease
	over   chan struct{} // closed after the last write to the record
	born   time.Time     // by this process's clock; only differences count

	order int64 // number of the last change; guarded by run.turn
}

// setRecord makes a stored task the run's own.
func (r *run) setRecord(t Task, rec *record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.run = r
	rec.born = time.Now().Add(-max(0, t.UpdatedAt.Sub(t.CreatedAt)))
	rec.over = make(chan struct{})
	r.record = rec
	r.observed.setTask(t, rec.born)
	r.outbox.next = time.Now().Add(r.outbox.interval())
	if heard := r.runs.addRun(rec.id, r); heard {
		r.inbox.rereadRecord()
	}
}

func (rec *record) currentLease() Lease {
	rec.run.mu.Lock()
	defer rec.run.mu.Unlock()
	return rec.lease
}

// persistChange makes one change to the record, and repeats it while the store is unavailable. If the
// store's answer says so, it ends the upstream call. change is called once, when it is this change's
// turn.
func (rec *record) persistChange(ctx context.Context, change func() Change) error {
	_, err := rec.applyChange(ctx, change)
	return err
}

// applyChange is persistChange that returns the task after the change. Each change has a number, so
// that the store ignores one that arrives late.
func (rec *record) applyChange(ctx context.Context, change func() Change) (Task, error) {
	return rec.applyAnd(ctx, change, func(Task) {})
}

// applyAnd is applyChange that then calls after, with the task, before anything else is read or written of the
// record.
func (rec *record) applyAnd(ctx context.Context, change func() Change, after func(Task)) (Task, error) {
	if err := rec.run.turn.take(ctx); err != nil {
		return Task{}, err
	}
	defer rec.run.turn.give()
	t, err := rec.applyInTurn(ctx, change)
	if err == nil {
		after(t)
	}
	return t, err
}

// applyInTurn is applyChange while run.turn is held.
func (rec *record) applyInTurn(ctx context.Context, change func() Change) (Task, error) {
	rec.order++
	c := change()
	noted := rec.run.observed.takeMoments()
	c.Order, c.Moments = rec.order, slices.Concat(noted, c.Moments)
	var lease Lease
	t, err := retry(ctx, func(ctx context.Context) (Task, error) {
		for lease = rec.currentLease(); ; lease = rec.currentLease() {
			t, err := rec.run.core.store.Apply(ctx, rec.id, &lease, c)
			again := errors.Is(err, ErrLeaseLost) && lease != rec.currentLease()
			if errors.Is(err, ErrNotFound) {
				_, lost := rec.restoreTask(ctx)
				if again = lost == nil; !again && !isAnswer(lost) {
					return t, lost // the record may be written again in a moment
				}
			}
			if !again {
				return t, err
			}
		}
	})
	if err != nil {
		rec.run.observed.returnMoments(noted)
		rec.obeyRefusal(err, lease, t)
	}
	return t, err
}

// applyWithPieces is applyChange for a change that says how far the server is. The pieces that the server
// said before go with it, since a runner that goes on from there does not hear them again. change is
// called with run.mu held.
func (rec *record) applyWithPieces(ctx context.Context, change func() Change, after func(Task)) (Task, error) {
	r := rec.run
	return rec.applyPlaced(ctx, func() Change {
		r.mu.Lock()
		defer r.mu.Unlock()
		c := change()
		r.outbox.addUnstored(&c)
		return c
	}, func(t Task) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outbox.noteStored(t.Position)
		after(t)
	})
}

// applyPlaced is applyAnd for a change with pieces. If the store has lost some of the stream before them,
// the change is made again, with those pieces as well.
func (rec *record) applyPlaced(ctx context.Context, change func() Change, after func(Task)) (Task, error) {
	for {
		var at Position
		t, err := rec.applyAnd(ctx, func() Change {
			c := change()
			at = c.At
			return c
		}, after)
		if !errors.Is(err, ErrPosition) {
			return t, err
		}
		rec.run.outbox.goBack(at)
		if work.Pause(ctx, spreadPause(retryFirst)) != nil {
			return t, context.Cause(ctx)
		}
	}
}

// obeyRefusal ends the upstream call after a refused write under this lease said that this replica has
// no right to run the task any more. If the run has had another lease since, the refusal is ignored. An
// unknown record does not end the call: a running task never expires, so the store has forgotten it,
// and its end brings it back (design.md 0.20). t is the task as far as the refusal says it.
func (rec *record) obeyRefusal(err error, under Lease, t Task) {
	switch {
	case errors.Is(err, ErrLeaseLost):
		if under == rec.currentLease() {
			rec.run.cancel(ErrDetached)
		}
	case errors.Is(err, ErrFinal):
		rec.run.token.cancelRun(t)
	}
}

// readStored reads the record, and waits for the store as long as that takes.
func (rec *record) readStored() (Task, error) {
	s := rec.run.core
	return retry(s.life.writes, func(ctx context.Context) (Task, error) { return s.store.Get(ctx, rec.id, Summary) })
}

// leastRestored is the shortest retention of a task whose record is restored while it runs. A shorter
// one may have expired since another replica ended the task.
const leastRestored = time.Minute

// restoreTask writes the record of a call that runs here again, as it is known now, after the store has
// forgotten it. It returns ErrNotFound if the call has ended or its record is kept too briefly.
func (rec *record) restoreTask(ctx context.Context) (Task, error) {
	r := rec.run
	r.mu.Lock()
	t := rec.made
	if r.ended || r.ctx.Err() != nil || t.Retain < leastRestored {
		r.mu.Unlock()
		return Task{}, ErrNotFound
	}
	t.Lease, t.StatusMessage, t.Checkpoint, t.Questions = rec.lease, r.outbox.message, r.checkpoint, nil
	t.Call = r.callRecord(r.checkpoint != nil)
	t.Progress.Params = r.outbox.params
	r.mu.Unlock()
	// The store may have forgotten this replica as well, and nobody would miss it.
	if err := r.core.heart.sendBeat(ctx); err != nil && !errors.Is(err, ErrDraining) {
		return Task{}, err
	}
	stored, err := r.core.store.Create(ctx, t)
	if err == nil {
		r.core.observer.logTask(t, slog.LevelWarn, "the store had forgotten a task that runs; it is written again")
	}
	return stored, err
}

// revealTask makes a task of the record again, which a failover has hidden.
func (rec *record) revealTask() {
	r := rec.run
	r.mu.Lock()
	change := Change{Op: r.core.newOp(), Visible: true, TTL: rec.made.TTL, Retain: rec.made.Retain}
	r.mu.Unlock()
	_ = rec.persistChange(r.ctx, func() Change { return change }) // if it fails, the end of the task sets Visible
}

// noteShown notes that the hidden record is a task now: from then on the call is independent of the
// caller's context. r.mu is held.
func (r *run) noteShown(t Task) {
	rec := r.record
	r.caller.releaseClient()
	rec.hidden = false
	rec.made.Visible, rec.made.TTL, rec.made.Retain = true, t.TTL, t.Retain
	work.Signal(r.caller.news)
	r.observed.noteMade()
}

// retention returns how long the task is kept after its end.
func (rec *record) retention() time.Duration {
	rec.run.mu.Lock()
	defer rec.run.mu.Unlock()
	return rec.made.Retain
}

// closeRecord forgets the record: the task has ended, or another replica has it.
func (rec *record) closeRecord() {
	r := rec.run
	r.runs.removeRun(rec.id, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.srv.tasks.Leave(r.call.Principal.Share())
	close(rec.over)
}

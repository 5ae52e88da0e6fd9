package runner

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// record is the stored record of a run: the changes of the run go out one after the other, so that each
// arrives before the next. The run owns it. run.mu guards all fields but those that name another guard.
type record struct {
	run    *Run
	id     shim.ID
	made   shim.Task // as it was created or adopted, with the newest TTL
	hidden bool      // the call is still to become a task (design.md 0.13)
	lease  shim.Lease
	Over   chan struct{} // closed after the last write to the record
	born   time.Time     // by this process's clock; only differences count

	order int64 // number of the last change; guarded by run.turn
}

// setRecord makes a stored task the run's own.
func (r *Run) setRecord(t shim.Task, rec *record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.run = r
	rec.born = time.Now().Add(-max(0, t.UpdatedAt.Sub(t.CreatedAt)))
	rec.Over = make(chan struct{})
	r.Record = rec
	r.Observed.setTask(t, rec.born)
	r.outbox.next = time.Now().Add(r.outbox.interval())
	if heard := r.runs.AddRun(rec.id, r); heard {
		r.Inbox.rereadRecord()
	}
}

func (rec *record) currentLease() shim.Lease {
	rec.run.mu.Lock()
	defer rec.run.mu.Unlock()
	return rec.lease
}

// persistChange makes one change to the record, and repeats it while the store is unavailable. If the
// store's answer says so, it ends the upstream call. change is called once, when it is this change's
// turn.
func (rec *record) persistChange(ctx context.Context, change func() shim.Change) error {
	_, err := rec.applyChange(ctx, change)
	return err
}

// applyChange is persistChange that returns the task after the change. Each change has a number, so
// that the store ignores one that arrives late.
func (rec *record) applyChange(ctx context.Context, change func() shim.Change) (shim.Task, error) {
	return rec.applyAnd(ctx, change, func(shim.Task) {})
}

// applyAnd is applyChange that then calls after, with the task, before anything else is read or written of the
// record.
func (rec *record) applyAnd(ctx context.Context, change func() shim.Change, after func(shim.Task)) (shim.Task, error) {
	if err := rec.run.turn.take(ctx); err != nil {
		return shim.Task{}, err
	}
	defer rec.run.turn.give()
	t, err := rec.applyInTurn(ctx, change)
	if err == nil {
		after(t)
	}
	return t, err
}

// applyInTurn is applyChange while run.turn is held.
func (rec *record) applyInTurn(ctx context.Context, change func() shim.Change) (shim.Task, error) {
	rec.order++
	c := change()
	noted := rec.run.Observed.takeMoments()
	c.Order, c.Moments = rec.order, slices.Concat(noted, c.Moments)
	var lease shim.Lease
	t, err := node.Retry(ctx, func(ctx context.Context) (shim.Task, error) {
		for lease = rec.currentLease(); ; lease = rec.currentLease() {
			t, err := rec.run.core.Store.Apply(ctx, rec.id, &lease, c)
			again := errors.Is(err, shim.ErrLeaseLost) && lease != rec.currentLease()
			if errors.Is(err, shim.ErrNotFound) {
				_, lost := rec.restoreTask(ctx)
				if again = lost == nil; !again && !node.IsAnswer(lost) {
					return t, lost // the record may be written again in a moment
				}
			}
			if !again {
				return t, err
			}
		}
	})
	if err != nil {
		rec.run.Observed.returnMoments(noted)
		rec.obeyRefusal(err, lease, t)
	}
	return t, err
}

// applyWithPieces is applyChange for a change that says how far the server is. The pieces that the server
// said before go with it, since a runner that goes on from there does not hear them again. change is
// called with run.mu held.
func (rec *record) applyWithPieces(ctx context.Context, change func() shim.Change, after func(shim.Task)) (shim.Task, error) {
	r := rec.run
	return rec.applyPlaced(ctx, func() shim.Change {
		r.mu.Lock()
		defer r.mu.Unlock()
		c := change()
		r.outbox.addUnstored(&c)
		return c
	}, func(t shim.Task) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outbox.noteStored(t.Position)
		after(t)
	})
}

// applyPlaced is applyAnd for a change with pieces. If the store has lost some of the stream before them,
// the change is made again, with those pieces as well.
func (rec *record) applyPlaced(ctx context.Context, change func() shim.Change, after func(shim.Task)) (shim.Task, error) {
	for {
		var at shim.Position
		t, err := rec.applyAnd(ctx, func() shim.Change {
			c := change()
			at = c.At
			return c
		}, after)
		if !errors.Is(err, shim.ErrPosition) {
			return t, err
		}
		rec.run.outbox.goBack(at)
		if work.Pause(ctx, node.SpreadPause(node.RetryFirst)) != nil {
			return t, context.Cause(ctx)
		}
	}
}

// obeyRefusal ends the upstream call after a refused write under this lease said that this replica has
// no right to run the task any more. If the run has had another lease since, the refusal is ignored. An
// unknown record does not end the call: a running task never expires, so the store has forgotten it,
// and its end brings it back (design.md 0.20). t is the task as far as the refusal says it.
func (rec *record) obeyRefusal(err error, under shim.Lease, t shim.Task) {
	switch {
	case errors.Is(err, shim.ErrLeaseLost):
		if under == rec.currentLease() {
			rec.run.Cancel(shim.ErrDetached)
		}
	case errors.Is(err, shim.ErrFinal):
		rec.run.Token.cancelRun(t)
	}
}

// readStored reads the record, and waits for the store as long as that takes.
func (rec *record) readStored() (shim.Task, error) {
	s := rec.run.core
	return node.Retry(s.Life.Writes, func(ctx context.Context) (shim.Task, error) { return s.Store.Get(ctx, rec.id, shim.Summary) })
}

// leastRestored is the shortest retention of a task whose record is restored while it runs. A shorter
// one may have expired since another replica ended the task.
const leastRestored = time.Minute

// restoreTask writes the record of a call that runs here again, as it is known now, after the store has
// forgotten it. It returns ErrNotFound if the call has ended or its record is kept too briefly.
func (rec *record) restoreTask(ctx context.Context) (shim.Task, error) {
	r := rec.run
	r.mu.Lock()
	t := rec.made
	if r.ended || r.Ctx.Err() != nil || t.Retain < leastRestored {
		r.mu.Unlock()
		return shim.Task{}, shim.ErrNotFound
	}
	t.Lease, t.StatusMessage, t.Checkpoint, t.Questions = rec.lease, r.outbox.message, r.NewestCheckpoint, nil
	t.Call = r.callRecord(r.NewestCheckpoint != nil)
	t.Progress.Params = r.outbox.params
	r.mu.Unlock()
	// The store may have forgotten this replica as well, and nobody would miss it.
	if err := r.core.Heart.SendBeat(ctx); err != nil && !errors.Is(err, shim.ErrDraining) {
		return shim.Task{}, err
	}
	stored, err := r.core.Store.Create(ctx, t)
	if err == nil {
		r.core.Observer.LogTask(t, slog.LevelWarn, "the store had forgotten a task that runs; it is written again")
	}
	return stored, err
}

// revealTask makes a task of the record again, which a failover has hidden.
func (rec *record) revealTask() {
	r := rec.run
	r.mu.Lock()
	change := shim.Change{Op: r.core.NewOp(), Visible: true, TTL: rec.made.TTL, Retain: rec.made.Retain}
	r.mu.Unlock()
	_ = rec.persistChange(r.Ctx, func() shim.Change { return change }) // if it fails, the end of the task sets Visible
}

// noteShown notes that the hidden record is a task now: from then on the call is independent of the
// caller's context. r.mu is held.
func (r *Run) noteShown(t shim.Task) {
	rec := r.Record
	r.Caller.releaseClient()
	rec.hidden = false
	rec.made.Visible, rec.made.TTL, rec.made.Retain = true, t.TTL, t.Retain
	work.Signal(r.Caller.news)
	r.Observed.noteMade()
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
	r.runs.RemoveRun(rec.id, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Srv.Tasks.Leave(r.Call.Principal.Share())
	close(rec.Over)
}

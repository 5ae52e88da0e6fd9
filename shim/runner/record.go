package runner

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// record is the run's one copy of its record: the task as the store has it, but for the fields that lacks marks. What
// the server says comes into the copy first, and the next change brings it to the store. What the store says comes in
// by takeState. The run owns it, and run.mu guards all fields but those that name another guard.
type record struct {
	run       *Run
	shim.Task // its ID is "" until there is a record; Call is made anew for each change (callRecord)
	lacks     lacking
	says      sending       // what the record says of the sending
	born      time.Time     // when it was made, by this process's clock; only differences count
	over      chan struct{} // closed after the last write to the record

	order int64 // number of the last change; guarded by run.turn
}

// lacking marks the fields of the copy that are newer than the store's, as far as is known here. Each write that fails
// sets the marks of what it carried again.
type lacking struct {
	news       bool // StatusMessage, Progress
	checkpoint bool
}

// sending is what the record of a call says of its sending, beside a checkpoint.
type sending uint8

const (
	// unknown: a record without a checkpoint may be of a call that was sent. It is left behind by a creation whose
	// reply was lost while its call went on blocking.
	unknown sending = iota
	// unsent: without a checkpoint, the call was not sent, and an adopter sends it. So it is sent only after the store
	// has confirmed a checkpoint.
	unsent
	// sent: the record has a checkpoint, and has dropped the params that no later run needs.
	sent
)

// exists reports whether there is a record. run.mu is held, as for isHidden.
func (rec *record) exists() bool { return rec.ID != "" }

// isHidden reports whether there is a record whose call is still to become a task (design.md 0.13).
func (rec *record) isHidden() bool { return rec.exists() && !rec.Visible }

// beginRecord makes a stored task the run's own. What the server has said meanwhile is newer.
func (rec *record) beginRecord(t shim.Task) {
	r := rec.run
	r.mu.Lock()
	defer r.mu.Unlock()
	t.StatusMessage, t.Progress, t.Checkpoint, t.Position = rec.StatusMessage, rec.Progress, rec.Checkpoint, rec.Position
	t.Call, t.Arguments = nil, nil
	rec.Task = t
	rec.born = time.Now().Add(-max(0, t.UpdatedAt.Sub(t.CreatedAt)))
	rec.over = make(chan struct{})
	r.Observed.setTask(t, rec.born)
	r.outbox.next = time.Now().Add(r.outbox.interval())
	if heard := r.runs.AddRun(rec.ID, r); heard {
		r.Inbox.rereadRecord()
	}
}

// setCheckpoint takes a newer checkpoint. run.mu is held.
func (rec *record) setCheckpoint(cp json.RawMessage) {
	rec.Checkpoint, rec.lacks.checkpoint = cp, true
}

// storeCheckpoint writes the newest checkpoint to the record, if there is one.
func (rec *record) storeCheckpoint(ctx context.Context) error {
	r := rec.run
	if err := r.turn.take(ctx); err != nil { // an attempt that is under way may have an older one
		return err
	}
	r.mu.Lock()
	kept := rec.exists() && !r.linger.quiet
	r.mu.Unlock()
	r.turn.give()
	if !kept {
		return nil
	}
	return work.Apart(func() error {
		_, err := rec.applyWithPieces(ctx, func() shim.Change {
			rec.lacks.checkpoint = false
			job := r.policy.Job != nil // its id is all that leads to it
			if rec.says == sent {
				return shim.Change{Checkpoint: rec.Checkpoint, Durable: job}
			}
			// If the record says that the call was not sent, an adopter sends it. A failover must not bring
			// that back (design.md 0.20).
			return shim.Change{Checkpoint: rec.Checkpoint, Call: r.callRecord(true), Durable: job || rec.says == unsent}
		}, func() { rec.says = sent })
		if err == nil {
			r.Observed.logSent()
		}
		return err
	})
}

// newestProgress returns the newest progress for a change. It goes with the end of the task as well: progress
// just before the end, as in "10 of 10", gets no write of its own. run.mu is held.
func (rec *record) newestProgress() shim.TaskProgress {
	if rec.Progress.Params == nil {
		return shim.TaskProgress{}
	}
	return rec.Progress
}

// takeState takes a state of the record that has come from the store. run.turn and run.mu are held, so it is newer than
// those before it.
func (rec *record) takeState(t shim.Task) {
	r := rec.run
	if t.Visible && !rec.Visible {
		rec.Visible, rec.TTL, rec.Retain = true, t.TTL, t.Retain
		r.keeping.forceRoom()
		r.Caller.releaseClient() // from now on the call is independent of the caller's context
		work.Signal(r.Caller.news)
		r.Observed.noteMade()
	}
	if !rec.KeptUntil.Equal(t.KeptUntil) { // it was picked up, or given up again
		rec.KeptUntil = t.KeptUntil
		work.Signal(r.linger.news)
	}
	rec.Questions = r.box.withGiven(t.Questions)
	work.Signal(r.box.wake)
	if !t.Status.Final() { // else its tail is kept for the held ending
		r.outbox.noteStored(t.Position)
	}
}

// copyTask returns the copy as it is now.
func (rec *record) copyTask() shim.Task {
	rec.run.mu.Lock()
	defer rec.run.mu.Unlock()
	return rec.Task
}

func (rec *record) currentLease() shim.Lease { return rec.copyTask().Lease }

// applyChange makes one change to the record, repeats it while the store is unavailable, and returns the task after it.
// If the store's answer says so, it ends the upstream call. change is called with run.mu held, once it is this change's
// turn. Each change has a number, so that the store ignores one that arrives late.
func (rec *record) applyChange(ctx context.Context, change func() shim.Change) (shim.Task, error) {
	return rec.applyAnd(ctx, change, func() {})
}

// applyAnd is applyChange that then calls after, with run.mu held, before anything else is read or written of the
// record.
func (rec *record) applyAnd(ctx context.Context, change func() shim.Change, after func()) (shim.Task, error) {
	r := rec.run
	if err := r.turn.take(ctx); err != nil {
		return shim.Task{}, err
	}
	defer r.turn.give()
	r.mu.Lock()
	c := change()
	r.mu.Unlock()
	t, err := rec.applyInTurn(ctx, c)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		rec.lacks.checkpoint = rec.lacks.checkpoint || c.Checkpoint != nil
		rec.lacks.news = rec.lacks.news || c.StatusMessage != nil
		return t, err
	}
	rec.takeState(t)
	after()
	return t, nil
}

// applyInTurn makes a change while run.turn is held.
func (rec *record) applyInTurn(ctx context.Context, c shim.Change) (shim.Task, error) {
	rec.order++
	noted := rec.run.Observed.takeMoments()
	c.Order, c.Moments = rec.order, slices.Concat(noted, c.Moments)
	var lease shim.Lease
	t, err := node.Retry(ctx, func(ctx context.Context) (shim.Task, error) {
		for lease = rec.currentLease(); ; lease = rec.currentLease() {
			t, err := rec.run.core.Store.Apply(ctx, rec.ID, &lease, c)
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

// applyWithPieces is applyAnd for a change that says how far the server is. The pieces that the server
// said before go with it, since a runner that goes on from there does not hear them again.
func (rec *record) applyWithPieces(ctx context.Context, change func() shim.Change, after func()) (shim.Task, error) {
	return rec.applyPlaced(ctx, func() shim.Change {
		c := change()
		rec.run.outbox.addUnstored(&c)
		return c
	}, after)
}

// applyPlaced is applyAnd for a change with pieces. If the store has lost some of the stream before them,
// the change is made again, with those pieces as well.
func (rec *record) applyPlaced(ctx context.Context, change func() shim.Change, after func()) (shim.Task, error) {
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
	return node.Retry(s.Life.Writes, func(ctx context.Context) (shim.Task, error) { return s.Store.Get(ctx, rec.ID, shim.Summary) })
}

// leastRestored is the shortest retention of a task whose record is restored while it runs. A shorter
// one may have expired since another replica ended the task.
const leastRestored = time.Minute

// restoreTask writes the record of a call that runs here again, as it is known now, after the store has
// forgotten it. It returns ErrNotFound if the call has ended or its record is kept too briefly.
func (rec *record) restoreTask(ctx context.Context) (shim.Task, error) {
	r := rec.run
	r.mu.Lock()
	t := rec.Task
	if r.ended || r.Ctx.Err() != nil || t.Retain < leastRestored {
		r.mu.Unlock()
		return shim.Task{}, shim.ErrNotFound
	}
	t.Questions = nil // they are asked again
	t.Call = r.callRecord(t.Checkpoint != nil)
	if r.keeping.arguments > 0 {
		t.Arguments = r.keeping.encodeArguments()
	}
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

// revealTask makes a task of the record again, which a failover has hidden. If that fails, the end of the task sets
// Visible.
func (rec *record) revealTask() {
	_, _ = rec.applyChange(rec.run.Ctx, func() shim.Change {
		return shim.Change{Op: rec.run.core.NewOp(), Visible: true, TTL: rec.TTL, Retain: rec.Retain}
	})
}

// closeRecord forgets the record: the task has ended, or another replica has it.
func (rec *record) closeRecord() {
	r := rec.run
	r.runs.RemoveRun(rec.ID, r)
	r.keeping.dropRoom()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.linger.quiet {
		r.Srv.Tasks.Leave(r.Call.Principal.Share())
	}
	close(rec.over)
}

// Over is closed after the last write to the record. There must be one.
func (r *Run) Over() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record.over
}

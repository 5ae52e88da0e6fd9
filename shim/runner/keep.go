package runner

import (
	"context"
	"errors"

	"taskgate/shim"
	"taskgate/shim/node"
)

// keeping is the room of a run among the bytes that the store keeps of ended tasks: some is set aside when the call
// becomes a task, and its end waits for the rest. The run owns it.
type keeping struct {
	run  *Run
	room *node.Room // nil while the call is no task; run.mu guards it
}

// errNoRoom ends a task whose result could not be kept.
var errNoRoom = &shim.UpstreamError{Kind: "kept", Message: "the call has ended, and its result could not be kept: the results that are kept for this caller, or for all, are at their limit"}

// messageFull is the status message of a task that has ended and whose result waits for room.
const messageFull = "the call has ended; its result waits until earlier results have expired, since those that are kept for this caller, or for all, are at their limit"

// reserveRoom sets room aside for a task, or refuses it with a *BusyError. A hidden record needs none before its end: it
// is kept only briefly.
func (k *keeping) reserveRoom() (err error) {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	if k.room == nil {
		k.room, err = k.run.core.Kept.Reserve(k.run.Call.Principal.Share())
	}
	return err
}

// forceRoom has room set aside in any case. run.mu is held, or nobody else knows the run.
func (k *keeping) forceRoom() {
	if k.room == nil {
		k.room = k.run.core.Kept.Force(k.run.Call.Principal.Share())
	}
}

// dropRoom gives the room back, unless something is kept in it.
func (k *keeping) dropRoom() {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.room.Drop()
	k.room = nil
}

// awaitRoom waits until there is room for what is kept of the call after this end, unless this replica halts: then it is
// written all the same. It reports false if the call's time is over first, or the client of a call that is no task has
// left. Such a call waits for as long as its record is kept.
func (k *keeping) awaitRoom(end shim.Change) bool {
	r := k.run
	n, hidden := k.countBytes(end), r.isHidden()
	r.mu.Lock()
	k.forceRoom()
	room := k.room
	r.mu.Unlock()
	if room.Grow(n) {
		return true
	}
	ctx := r.Ctx
	if hidden {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, shim.HiddenRetain, errTimedOut)
		defer stop()
	} else {
		message := messageFull
		_, _ = r.record.applyChange(ctx, func() shim.Change { return shim.Change{Op: r.core.NewOp(), StatusMessage: &message} })
	}
	err := room.AwaitGrowth(ctx, n)
	return err == nil || errors.Is(err, node.ErrTaskCancelled) || r.core.Life.Ctx.Err() != nil
}

// countBytes is about how much the store keeps of the call after this end.
func (k *keeping) countBytes(end shim.Change) int {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	n := node.RecordBytes + int(k.run.outbox.total)
	if o := end.Outcome; o != nil {
		n += len(o.Result) + len(o.Error)
	}
	return n
}

// countEnd counts what the store keeps of the call after this end.
func (k *keeping) countEnd(end shim.Change) {
	n, retain := k.countBytes(end), k.run.record.copyTask().Retain
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.room.Keep(n, retain)
}

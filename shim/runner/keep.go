package runner

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/internal/semconv"
	"taskgate/shim"
	"taskgate/shim/node"
)

// keeping is the room of a run among the bytes that the store keeps of ended tasks: some is set aside when the call
// becomes a task, and its end waits for the rest. The run owns it.
type keeping struct {
	run  *Run
	room *node.Room // nil while the call is no task; run.mu guards it
	// arguments is how many bytes the record has for operators; run.mu guards it.
	arguments int
	// questions is how many bytes large questions have at most, in all places; run.mu guards it.
	questions int
}

// Questions of up to freeQuestions bytes need no room. Larger ones are there about questionCopies times: in the record, at
// its runner, in the checkpoint, and while they are asked.
const (
	freeQuestions  = 16 << 10
	questionCopies = 4
)

// KeptRequest is the content of Task.Arguments: what operators are shown of a call, and need to run it again.
type KeptRequest struct {
	Params json.RawMessage `json:"params"`
	// Shown and Says are those of the Request, and Legacy that of its Session.
	Shown  string     `json:"shown,omitempty"`
	Says   shim.Hints `json:"says,omitzero"`
	Legacy bool       `json:"legacy,omitempty"`
}

// encodeArguments returns what is kept of the call for operators, nil for nothing.
func (k *keeping) encodeArguments() json.RawMessage {
	r := k.run
	if !r.policy.ShowArguments && !r.policy.Rerun || r.Call.Request.Method != shim.CallTool || r.Call.Request.Params == nil {
		return nil
	}
	q := r.Call.Request
	b, _ := json.Marshal(KeptRequest{Params: q.Params, Shown: q.Shown, Says: q.Says, Legacy: q.Session.Legacy}) // Params are parsed JSON, so this succeeds
	return b
}

// makeRoomFor makes room for the arguments of a task, and reports whether there is. Without, the task does not keep
// them: what operators see turns no task away.
func (k *keeping) makeRoomFor(arguments int) bool {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	return k.room.Grow(node.RecordBytes + arguments)
}

// takeRoom takes room for the arguments of a record that becomes a task, where there is some: they are there already.
func (k *keeping) takeRoom() {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	_ = k.room.Grow(node.RecordBytes + k.arguments)
}

// hasRoomFor makes room for so many bytes of pieces while the task runs, and reports whether there is. run.mu is held.
func (k *keeping) hasRoomFor(pieces int64) bool {
	return k.room.Grow(node.RecordBytes + k.arguments + k.questions + int(pieces))
}

// hasRoomToAsk makes room for questions of n bytes until the call ends, and reports whether there is.
func (k *keeping) hasRoomToAsk(n int) bool {
	if n <= freeQuestions {
		return true
	}
	if k.reserveRoom() != nil {
		return false
	}
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.questions = max(k.questions, questionCopies*n)
	return k.hasRoomFor(k.run.outbox.total)
}

// setArguments notes how many bytes of arguments the record has.
func (k *keeping) setArguments(n int) {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.arguments = n
}

// outlastsEnd reports whether the arguments are kept after this end.
func (k *keeping) outlastsEnd(how finish) bool {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	p := k.run.policy
	return k.arguments > 0 && (p.ShowArguments && how.outcome == semconv.OutcomeUnknown || p.Rerun && how.status == shim.Failed)
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
// written all the same. The arguments wait for none, and go. It reports false if the call's time is over first, or the client of a call that is no task has
// left. Such a call waits for as long as its record is kept.
func (k *keeping) awaitRoom(end *shim.Change) bool {
	r := k.run
	hidden := r.isHidden()
	r.mu.Lock()
	k.forceRoom()
	room := k.room
	r.mu.Unlock()
	n := k.countBytes(*end)
	if room.Grow(n) {
		return true
	}
	if end.KeepArguments {
		end.KeepArguments = false
		return k.awaitRoom(end)
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
	if end.KeepArguments {
		n += k.run.keeping.arguments
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

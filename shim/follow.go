package shim

import (
	"context"
	"encoding/json"
	"errors"
)

// ErrBehind: pieces of a task are gone before they could be read, because the task has expired. The
// reader is told instead of missing them silently.
var ErrBehind = errors.New("what the task streamed has expired before it was read")

// Tracked is a task of a Set, with the updates that its reader wants.
type Tracked struct {
	ID ID
	// Hidden says that ID names a question that AskSession has stored, or a call that is not a task
	// yet. All task methods hide these. Of is its owner, if another than the reader.
	Hidden bool
	Of     *Principal
	// Outcome says that the final state comes with the outcome. All other states are summaries.
	Outcome bool
	// Pieces says that the reader wants the batches besides the state, by seq (SEP-2679).
	Pieces bool
	// From is the seq of the first piece for the reader; seqs begin at 0 (P4).
	From int64
	// Live says that a task that has ended at its first read comes as its state only (P2).
	Live bool
}

// Update is one step of a task that a Set yields: pieces of it, its state, or its loss.
type Update struct {
	ID ID
	// Task is the state; nil with Pieces or Gone.
	Task *Task
	// Pieces are the next ones, in order: JSON arrays of content blocks. First is the seq of the first.
	Pieces []json.RawMessage
	First  int64
	// Gone says that the task is unknown or hidden from the reader. It was removed from the set.
	Gone bool
}

// Set is a set of tasks that one reader follows. Tasks may be added and removed at any time, before Follow runs and
// while it runs, from any goroutine; these methods return at once. A task leaves the set by itself when its end has been
// yielded, or when it is gone. A Set is followed once.
type Set interface {
	// Add puts tasks into the set. A task that is in the set already stays as it is. A task that has left the set is
	// followed anew.
	Add(tasks ...Tracked)
	// Remove takes tasks out of the set. At most an update that is on its way already is still yielded.
	Remove(ids ...ID)
	// Close says that the set is complete: Follow returns when it is empty.
	Close()
	// Tasks returns the tasks in the set, in the order of their addition.
	Tasks() []Tracked
	// Follow yields the present state of each task, in the order of their addition, and then their state after every
	// change. Changes that come faster than yield takes them are merged: the newest state wins. Tasks that are added
	// later are followed from then on; the others go on as before.
	//
	// If the reader wants a task's pieces, all pieces from Tracked.From on come in order, each once, and before the
	// final state, which is the last update of the task (P2, P3). If a task expires before all its pieces are read,
	// Follow returns ErrBehind.
	//
	// yield is called from one goroutine, the caller's. A task that is unknown, another owner's, or expires on the way
	// is yielded once as Gone. While the store is down, yield is not called.
	//
	// Follow returns nil when the set has been closed and is empty. It returns the error of yield, or the cause of ctx,
	// before that.
	Follow(ctx context.Context, yield func(Update) error) error
}

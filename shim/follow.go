package shim

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

	"taskgate/internal/work"
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

// Update is one step of a task that FollowSet yields: pieces of it, its state, or its loss.
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

// Set is a set of tasks that one FollowSet follows. Tasks may be added and removed at any time, before
// FollowSet runs and while it runs, from any goroutine. Its methods return at once. A task leaves the
// set by itself when its end has been yielded, or when it is gone. Tasks that are added together share
// one subscription at the store, which ends when the last of them has left. A Set is followed once.
type Set struct {
	wake chan struct{} // holds one signal while a task is due

	mu     sync.Mutex
	closed bool
	added  int // number of additions
	tasks  map[ID]*followed
	stale  []*followed // tasks to read, in order; some may have left the set
}

// followed is a task of a Set. Set.mu guards the fields of the first group; the others belong to the
// follower.
type followed struct {
	number int    // Set.added at its addition; constant
	stale  bool   // it is in Set.stale
	unseen int64  // the newest version by the events since its last read; 0 if anything may have changed
	watch  *watch // the Watch that has its events; nil before the first read

	Tracked
	next  int64 // the number of the next piece
	seen  stamp // of the state last yielded
	short stamp // of a state that had fewer pieces than it said
}

// watch is one Store.Watch of a follower. It ends when the last of its tasks has left
// the set. left is guarded by Set.mu.
type watch struct {
	left int
	stop context.CancelFunc
}

// NewSet returns a set with these tasks.
func NewSet(tasks ...Tracked) *Set {
	s := &Set{wake: make(chan struct{}, 1), tasks: make(map[ID]*followed, len(tasks))}
	s.Add(tasks...)
	return s
}

// Add puts tasks into the set. A task that is in the set already stays as it is. A task that has left
// the set is followed anew.
func (s *Set) Add(tasks ...Tracked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tasks {
		s.addTask(&followed{Tracked: t, next: max(t.From, 0)})
	}
}

// addTask puts one task into the set. s.mu is held.
func (s *Set) addTask(k *followed) {
	if s.tasks[k.ID] == nil {
		s.added++
		s.tasks[k.ID], k.number = k, s.added
		s.markStale(k, 0)
	}
}

// Remove takes tasks out of the set. At most an update that is on its way already is still yielded.
func (s *Set) Remove(ids ...ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if k := s.tasks[id]; k != nil {
			s.dropTask(k)
		}
	}
}

// removeTask takes a task out of the set that has ended or is gone.
func (s *Set) removeTask(k *followed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks[k.ID] == k {
		s.dropTask(k)
	}
}

// dropTask takes a task out of the set. s.mu is held.
func (s *Set) dropTask(k *followed) {
	delete(s.tasks, k.ID)
	if w := k.watch; w != nil {
		if w.left--; w.left == 0 {
			w.stop()
		}
	}
	work.Signal(s.wake) // it may have been the last task of a closed set
}

// Close says that the set is complete: FollowSet returns when it is empty.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	work.Signal(s.wake)
}

// Tasks returns the tasks in the set, in the order of their addition.
func (s *Set) Tasks() []Tracked {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tasks []Tracked
	for _, k := range slices.SortedFunc(maps.Values(s.tasks), func(a, b *followed) int { return a.number - b.number }) {
		tasks = append(tasks, k.Tracked)
	}
	return tasks
}

func (s *Set) noteEvent(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.tasks[e.ID]; k != nil {
		s.markStale(k, e.Version)
	}
}

// distrustTasks has tasks read whatever their events say; nil means all.
func (s *Set) distrustTasks(tasks []*followed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tasks == nil {
		for _, k := range s.tasks {
			s.markStale(k, 0)
		}
	}
	for _, k := range tasks {
		s.markStale(k, 0)
	}
}

// markStale has a task read for an event with this version, or, with 0, whatever its version is. s.mu is held.
func (s *Set) markStale(k *followed, version int64) {
	switch {
	case !k.stale:
		k.stale, k.unseen = true, version
		s.stale = append(s.stale, k)
	case k.unseen == 0 || version == 0:
		k.unseen = 0
	default:
		k.unseen = max(k.unseen, version)
	}
	work.Signal(s.wake)
}

// due is a task to be read.
type due struct {
	*followed
	unseen int64 // followed.unseen, when it was taken
	new    bool  // its Watch has still to begin
}

// takeDue takes the tasks that are to be read, at a cost that grows with their number only. over says
// that the set is closed and empty.
func (s *Set) takeDue() (tasks []due, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.stale {
		k.stale = false
		if s.tasks[k.ID] == k {
			tasks = append(tasks, due{k, k.unseen, k.watch == nil})
		}
		k.unseen = 0
	}
	s.stale = nil
	return tasks, s.closed && len(s.tasks) == 0
}

// noteWatched notes that a Watch begins for those of these tasks that are still in the set, and returns
// them.
func (s *Set) noteWatched(w *watch, tasks []due) (in []*followed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range tasks {
		if d.new && s.tasks[d.ID] == d.followed {
			d.watch = w
			in = append(in, d.followed)
		}
	}
	w.left = len(in)
	return in
}

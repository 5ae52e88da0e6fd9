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

// ErrBehind: what was streamed of a task is gone before it could be read, because
// the task has expired. The reader is told instead of missing it silently.
var ErrBehind = errors.New("what the task streamed has expired before it was read")

// Tracked is a task of a Set, and what is wanted of it.
type Tracked struct {
	ID ID
	// Hidden says that ID names a question that AskSession has stored, or a call that is not
	// a task yet. All task methods hide these. Of is whose it is, if not the reader's.
	Hidden bool
	Of     *Principal
	// Outcome says that the state in which the task has ended comes with its outcome.
	// All other states are summaries.
	Outcome bool
	// Pieces says that its batches are wanted besides the state, by seq (SEP-2679).
	Pieces bool
	// From is the number of the first piece that is wanted: a seq, which begins at 0 (P4).
	From int64
	// Live says that no pieces are wanted of a task that has ended when it is first read
	// (P2).
	Live bool
}

// Update is one thing that FollowSet tells of a task: pieces of it, its state, or that
// it is gone.
type Update struct {
	ID ID
	// Task is the state; nil where there are pieces, or the task is gone.
	Task *Task
	// Pieces are the next ones, in order: JSON arrays of content blocks. First is the number
	// of the first.
	Pieces []json.RawMessage
	First  int64
	// Gone says that there is no such task, or none that the reader may know of. It was
	// removed from the set.
	Gone bool
}

// Set is a set of tasks that one FollowSet follows. Tasks may be added and removed at any
// time, before FollowSet runs and while it runs, from any goroutine. None of the methods
// waits. A task leaves the set by itself when its end has been yielded, or when it is
// gone. Tasks that are added together share one subscription at the store, which ends when
// the last of them has left. A Set is followed once.
type Set struct {
	wake chan struct{} // holds one signal while there is something to look at

	mu     sync.Mutex
	closed bool
	added  int // how often something was added
	tasks  map[ID]*followed
	stale  []*followed // to be looked at, in order; some may have left the set
}

// followed is a task of a Set. The fields of the first group are guarded by Set.mu; the
// others belong to the follower.
type followed struct {
	number int    // Set.added, when it was; not changed after
	stale  bool   // it is in Set.stale
	unseen unseen // what events have told since it was looked at
	watch  *watch // the Watch that hears of it; nil before the first look

	Tracked
	next  int64 // the number of the next piece
	seen  stamp // of the state last yielded
	short stamp // of a state that had less pieces than it said
}

// unseen is what events have told of a task since it was looked at: the version, 0 where
// anything may have happened, and what was appended.
type unseen struct {
	version int64
	added   Added
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

// Add puts tasks into the set. A task that is in the set already stays as it is. One that
// has left the set is followed anew.
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
		s.markStale(k, unseen{})
	}
}

// Remove takes tasks out of the set. Nothing more of them is yielded, but for an update
// that is on its way already.
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
	work.Signal(s.wake) // it may have been the last one of a closed set
}

// Close says that nothing more will be added: FollowSet returns when the set is empty.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	work.Signal(s.wake)
}

// Tasks returns the tasks that are in the set, in the order in which they were added.
func (s *Set) Tasks() []Tracked {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tasks []Tracked
	for _, k := range slices.SortedFunc(maps.Values(s.tasks), func(a, b *followed) int { return a.number - b.number }) {
		tasks = append(tasks, k.Tracked)
	}
	return tasks
}

// noteEvent notes an event.
func (s *Set) noteEvent(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.tasks[e.ID]; k != nil {
		s.markStale(k, unseen{e.Version, e.Added})
	}
}

// distrustTasks has tasks looked at, whatever was heard of them; nil means all.
func (s *Set) distrustTasks(tasks []*followed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tasks == nil {
		for _, k := range s.tasks {
			s.markStale(k, unseen{})
		}
	}
	for _, k := range tasks {
		s.markStale(k, unseen{})
	}
}

// markStale has a task looked at for what was heard of it. s.mu is held.
func (s *Set) markStale(k *followed, n unseen) {
	switch {
	case !k.stale:
		k.stale, k.unseen = true, n
		s.stale = append(s.stale, k)
	case k.unseen.version == 0 || n.version == 0:
		k.unseen = unseen{}
	default:
		k.unseen = unseen{max(k.unseen.version, n.version), k.unseen.added.Then(n.added)}
	}
	work.Signal(s.wake)
}

// due is a task that is to be looked at, and what was heard of it.
type due struct {
	*followed
	unseen unseen
	new    bool // nobody watches it yet
}

// takeDue takes the tasks that are to be looked at. What that costs grows with their number,
// and not with the size of the set. over says that nothing is left to be followed.
func (s *Set) takeDue() (tasks []due, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.stale {
		k.stale = false
		if s.tasks[k.ID] == k {
			tasks = append(tasks, due{k, k.unseen, k.watch == nil})
		}
		k.unseen = unseen{}
	}
	s.stale = nil
	return tasks, s.closed && len(s.tasks) == 0
}

// noteWatched notes that a Watch begins for those of these tasks that are still in the set,
// and returns them.
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

package engine

import (
	"context"
	"maps"
	"slices"
	"sync"

	"taskgate/internal/work"
	"taskgate/shim"
)

// set is a Set and its reader. Tasks that are added together share one subscription at the store, which ends when the
// last of them has left.
type set struct {
	s        *Shim
	p        shim.Principal
	upstream string

	wake chan struct{} // holds one signal while a task is due

	mu     sync.Mutex
	closed bool
	added  int // number of additions
	tasks  map[shim.ID]*followed
	stale  []*followed // tasks to read, in order; some may have left the set
}

// followed is a task of a set. set.mu guards the fields of the first group; the others belong to the
// follower.
type followed struct {
	number int    // set.added at its addition; constant
	stale  bool   // it is in set.stale
	unseen int64  // the newest version by the events since its last read; 0 if anything may have changed
	watch  *watch // the Watch that has its events; nil before the first read

	shim.Tracked
	next  int64 // the number of the next piece
	seen  stamp // of the state last yielded
	short stamp // of a state that had fewer pieces than it said
}

// watch is one Store.Watch of a follower. It ends when the last of its tasks has left
// the set. left is guarded by set.mu.
type watch struct {
	left int
	stop context.CancelFunc
}

// NewSet returns the set that p follows at an upstream, with these tasks.
func (s *Shim) NewSet(p shim.Principal, upstream string, tasks ...shim.Tracked) shim.Set {
	return s.newSet(p, upstream, tasks...)
}

func (s *Shim) newSet(p shim.Principal, upstream string, tasks ...shim.Tracked) *set {
	all := &set{s: s, p: p, upstream: upstream, wake: make(chan struct{}, 1), tasks: make(map[shim.ID]*followed, len(tasks))}
	all.Add(tasks...)
	return all
}

// Add puts tasks into the set. A task that is in the set already stays as it is. A task that has left
// the set is followed anew.
func (s *set) Add(tasks ...shim.Tracked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tasks {
		s.addTask(&followed{Tracked: t, next: max(t.From, 0)})
	}
}

// addTask puts one task into the set. s.mu is held.
func (s *set) addTask(k *followed) {
	if s.tasks[k.ID] == nil {
		s.added++
		s.tasks[k.ID], k.number = k, s.added
		s.markStale(k, 0)
	}
}

// Remove takes tasks out of the set. At most an update that is on its way already is still yielded.
func (s *set) Remove(ids ...shim.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if k := s.tasks[id]; k != nil {
			s.dropTask(k)
		}
	}
}

// removeTask takes a task out of the set that has ended or is gone.
func (s *set) removeTask(k *followed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks[k.ID] == k {
		s.dropTask(k)
	}
}

// dropTask takes a task out of the set. s.mu is held.
func (s *set) dropTask(k *followed) {
	delete(s.tasks, k.ID)
	if w := k.watch; w != nil {
		if w.left--; w.left == 0 {
			w.stop()
		}
	}
	work.Signal(s.wake) // it may have been the last task of a closed set
}

// Close says that the set is complete: FollowSet returns when it is empty.
func (s *set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	work.Signal(s.wake)
}

// Tasks returns the tasks in the set, in the order of their addition.
func (s *set) Tasks() []shim.Tracked {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tasks []shim.Tracked
	for _, k := range slices.SortedFunc(maps.Values(s.tasks), func(a, b *followed) int { return a.number - b.number }) {
		tasks = append(tasks, k.Tracked)
	}
	return tasks
}

func (s *set) noteEvent(e shim.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.tasks[e.ID]; k != nil {
		s.markStale(k, e.Version)
	}
}

// distrustTasks has tasks read whatever their events say; nil means all.
func (s *set) distrustTasks(tasks []*followed) {
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
func (s *set) markStale(k *followed, version int64) {
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
func (s *set) takeDue() (tasks []due, over bool) {
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
func (s *set) noteWatched(w *watch, tasks []due) (in []*followed) {
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

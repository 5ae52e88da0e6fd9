package node

import (
	"maps"
	"slices"
	"sync"

	"taskgate/shim"
)

// Runs are the tasks that this replica runs, or is about to run, with the run R of each. The Shim owns
// it; mu guards it.
type Runs[R any] struct {
	mu   sync.Mutex
	byID map[shim.ID]*R
	// coming are tasks that will soon have a run here: they are being created, or their previous run is
	// ending. true says that an event came meanwhile.
	coming map[shim.ID]bool
}

// NewRuns returns an empty table.
func NewRuns[R any]() *Runs[R] {
	return &Runs[R]{byID: make(map[shim.ID]*R), coming: make(map[shim.ID]bool)}
}

// Get returns the run of a task, nil for none.
func (rs *Runs[R]) Get(id shim.ID) *R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byID[id]
}

// AddRun stores the run of a task, and reports whether an event of the task came before.
func (rs *Runs[R]) AddRun(id shim.ID, r *R) (heard bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	heard = rs.coming[id]
	delete(rs.coming, id)
	rs.byID[id] = r
	return heard
}

// RemoveRun forgets a run if its task still has this one.
func (rs *Runs[R]) RemoveRun(id shim.ID, r *R) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID[id] == r {
		delete(rs.byID, id)
	}
}

// ExpectTask notes that a task is about to become this replica's.
func (rs *Runs[R]) ExpectTask(id shim.ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, ok := rs.coming[id]; !ok {
		rs.coming[id] = false
	}
}

// UnexpectTask takes back what ExpectTask noted, if the task got no run.
func (rs *Runs[R]) UnexpectTask(id shim.ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.coming, id)
}

// FindHeard returns the run of a task that has an event. If the task's run is still coming, the event
// is noted for it.
func (rs *Runs[R]) FindHeard(id shim.ID) *R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byID[id]
	if _, coming := rs.coming[id]; coming && r == nil {
		rs.coming[id] = true
	}
	return r
}

// IsKnown reports whether a task has a run, or will have one.
func (rs *Runs[R]) IsKnown(id shim.ID) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, coming := rs.coming[id]
	return rs.byID[id] != nil || coming
}

// ListRuns returns all runs that have a record.
func (rs *Runs[R]) ListRuns() []*R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Collect(maps.Values(rs.byID))
}

// InPart returns the runs whose tasks are in a part.
func (rs *Runs[R]) InPart(part int) map[shim.ID]*R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	mine := make(map[shim.ID]*R)
	for id, r := range rs.byID {
		if id.Part() == part {
			mine[id] = r
		}
	}
	return mine
}

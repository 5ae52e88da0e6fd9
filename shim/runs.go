package shim

import (
	"maps"
	"slices"
	"sync"
)

// runs are the tasks that this replica runs, or is about to run, and what runs each of them, an R. The Shim
// owns it; mu guards it.
type runs[R any] struct {
	mu   sync.Mutex
	byID map[ID]*R
	// coming are tasks that are about to have a run here: they are being created, or their
	// run before is ending. true says that an event came meanwhile.
	coming map[ID]bool
}

func newRuns[R any]() *runs[R] { return &runs[R]{byID: make(map[ID]*R), coming: make(map[ID]bool)} }

// get returns the run of a task, nil if there is none here.
func (rs *runs[R]) get(id ID) *R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byID[id]
}

// addRun makes a run its task's, and reports whether there was an event of the task before.
func (rs *runs[R]) addRun(id ID, r *R) (heard bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	heard = rs.coming[id]
	delete(rs.coming, id)
	rs.byID[id] = r
	return heard
}

// removeRun forgets a run, unless its task has another one by now.
func (rs *runs[R]) removeRun(id ID, r *R) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID[id] == r {
		delete(rs.byID, id)
	}
}

// expectTask notes that a task is about to become this replica's.
func (rs *runs[R]) expectTask(id ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, ok := rs.coming[id]; !ok {
		rs.coming[id] = false
	}
}

// unexpectTask takes back what expectTask noted, where no run has come of it.
func (rs *runs[R]) unexpectTask(id ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.coming, id)
}

// findHeard returns the run of a task of which there is an event. An event of a task that is
// about to have a run is kept until there is one.
func (rs *runs[R]) findHeard(id ID) *R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byID[id]
	if _, coming := rs.coming[id]; coming && r == nil {
		rs.coming[id] = true
	}
	return r
}

// isKnown reports whether there is a run of a task, or will be.
func (rs *runs[R]) isKnown(id ID) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, coming := rs.coming[id]
	return rs.byID[id] != nil || coming
}

// listRuns are all runs that have a record.
func (rs *runs[R]) listRuns() []*R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Collect(maps.Values(rs.byID))
}

// inPart are the runs whose tasks are in a part.
func (rs *runs[R]) inPart(part int) map[ID]*R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	mine := make(map[ID]*R)
	for id, r := range rs.byID {
		if id.Part() == part {
			mine[id] = r
		}
	}
	return mine
}

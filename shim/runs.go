package shim

import (
	"maps"
	"slices"
	"sync"
)

// runs are the tasks that this replica runs, or is about to run, with the run R of each. The Shim owns
// it; mu guards it.
type runs[R any] struct {
	mu   sync.Mutex
	byID map[ID]*R
	// coming are tasks that will soon have a run here: they are being created, or their previous run is
	// ending. true says that an event came meanwhile.
	coming map[ID]bool
}

func newRuns[R any]() *runs[R] { return &runs[R]{byID: make(map[ID]*R), coming: make(map[ID]bool)} }

func (rs *runs[R]) get(id ID) *R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byID[id]
}

// addRun stores the run of a task, and reports whether an event of the task came before.
func (rs *runs[R]) addRun(id ID, r *R) (heard bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	heard = rs.coming[id]
	delete(rs.coming, id)
	rs.byID[id] = r
	return heard
}

// removeRun forgets a run if its task still has this one.
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

// unexpectTask takes back what expectTask noted, if the task got no run.
func (rs *runs[R]) unexpectTask(id ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.coming, id)
}

// findHeard returns the run of a task that has an event. If the task's run is still coming, the event
// is noted for it.
func (rs *runs[R]) findHeard(id ID) *R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byID[id]
	if _, coming := rs.coming[id]; coming && r == nil {
		rs.coming[id] = true
	}
	return r
}

// isKnown reports whether a task has a run, or will have one.
func (rs *runs[R]) isKnown(id ID) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, coming := rs.coming[id]
	return rs.byID[id] != nil || coming
}

// listRuns returns all runs that have a record.
func (rs *runs[R]) listRuns() []*R {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Collect(maps.Values(rs.byID))
}

// inPart returns the runs whose tasks are in a part.
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

package shim

import (
	"maps"
	"slices"
	"sync"
)

// runs are the tasks that this replica runs, or is about to run. The Shim owns it; mu
// guards it.
type runs struct {
	mu   sync.Mutex
	byID map[ID]*run
	// coming are tasks that are about to have a run here: they are being created, or their
	// run before is ending. true says that an event came meanwhile.
	coming map[ID]bool
}

func newRuns() runs { return runs{byID: make(map[ID]*run), coming: make(map[ID]bool)} }

// get returns the run of a task, nil if there is none here.
func (rs *runs) get(id ID) *run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byID[id]
}

// addRun makes a run its task's, and reports whether there was an event of the task before.
func (rs *runs) addRun(r *run) (heard bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	heard = rs.coming[r.record.id]
	delete(rs.coming, r.record.id)
	rs.byID[r.record.id] = r
	return heard
}

// removeRun forgets a run, unless its task has another one by now.
func (rs *runs) removeRun(r *run) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID[r.record.id] == r {
		delete(rs.byID, r.record.id)
	}
}

// cancelCall ends the upstream call of a task, if this replica runs it.
func (rs *runs) cancelCall(id ID, cause error) {
	if r := rs.get(id); r != nil {
		r.cancel(cause)
	}
}

// expectTask notes that a task is about to become this replica's.
func (rs *runs) expectTask(id ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, ok := rs.coming[id]; !ok {
		rs.coming[id] = false
	}
}

// unexpectTask takes back what expectTask noted, where no run has come of it.
func (rs *runs) unexpectTask(id ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.coming, id)
}

// findHeard returns the run of a task of which there is an event. An event of a task that is
// about to have a run is kept until there is one.
func (rs *runs) findHeard(id ID) *run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byID[id]
	if _, coming := rs.coming[id]; coming && r == nil {
		rs.coming[id] = true
	}
	return r
}

// isKnown reports whether there is a run of a task, or will be.
func (rs *runs) isKnown(id ID) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, coming := rs.coming[id]
	return rs.byID[id] != nil || coming
}

// listRuns are all runs that have a record.
func (rs *runs) listRuns() []*run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Collect(maps.Values(rs.byID))
}

// inPart are the runs whose tasks are in a part.
func (rs *runs) inPart(part int) map[ID]*run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	mine := make(map[ID]*run)
	for id, r := range rs.byID {
		if id.Part() == part {
			mine[id] = r
		}
	}
	return mine
}

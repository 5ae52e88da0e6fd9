package node

import (
	"cmp"
	"time"

	"taskgate/internal/metrics"
	"taskgate/shim"
)

// server is a Server with this replica's counts, which stay when the Server changes.
type Served struct {
	shim.Server
	*counts
	Name string
}

// counts are this replica's counts of a server.
type counts struct {
	Slots   *Slots
	Tasks   shim.Bound     // the tasks that this replica runs
	Metrics *metrics.Tasks // nil: no measurement
	Graces  *Graces
}

// Defaults of Server.
const (
	defaultQueue     = 1000            // tasks, each of which is a goroutine and its arguments
	defaultQueueWait = 5 * time.Second // about as long as a caller takes for a slow answer
)

// NewServer makes the server of a name. It takes over the counts of the one before, if any.
func NewServer(name string, s shim.Server, before *Served) *Served {
	s.Queue, s.QueueWait = cmp.Or(s.Queue, defaultQueue), cmp.Or(s.QueueWait, defaultQueueWait)
	if before == nil {
		return &Served{Server: s, Name: name, counts: &counts{
			Graces: newGraces(),
			Slots:  &Slots{queue: s.Queue, server: bounded{most: s.Concurrency}, tools: make(map[string]*bounded)},
			Tasks:  shim.Bound{Key: "max_tasks", Most: s.MaxTasks, MostPerOwner: s.MaxTasksPerOwner, Halved: s.Halved, All: "tasks on this server", Own: "tasks of this caller"},
		}}
	}
	before.Tasks.Limit(s.MaxTasks, s.MaxTasksPerOwner, s.Halved)
	before.Slots.setLimits(s.Concurrency, s.Policy)
	return &Served{Server: s, Name: name, counts: before.counts}
}

// PolicyFor returns the operator's policy for a request.
func (s *Served) PolicyFor(r shim.Request) shim.Policy {
	p := s.Other
	if r.Method == shim.CallTool {
		p = s.Policy(r.Name, r.Says)
	} else {
		p.Tasks, p.Grace, p.Concurrency = shim.Never, 0, 0
	}
	p.PollInterval, p.InputTimeout = max(0, p.PollInterval), max(0, p.InputTimeout)
	return p
}

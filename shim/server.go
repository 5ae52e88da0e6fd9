package shim

import (
	"cmp"
	"context"
	"time"

	"taskgate/internal/metrics"
)

// Server is an upstream as the shim sees it.
type Server struct {
	Upstream Upstream
	// Represent, if set, gives the context in which the server is asked for a call that this replica
	// has adopted, in the name of the call's session. It does not block.
	Represent func(ctx context.Context, s Session) context.Context
	// SealToken, if set, returns the sealed token of a request that brings an answer or a cancellation,
	// for the call's run on any replica. BringToken gives that token to the context of the run.
	SealToken  func(ctx context.Context, call string) string
	BringToken func(ctx context.Context, call, token string)
	// Policy is the operator's policy for a tool. It may be asked several times during a call.
	Policy func(tool string) Policy
	// Other is the policy of all other requests than tools/call: they never become tasks, but can have
	// questions.
	Other Policy
	// Concurrency bounds the calls in flight (0 = unbounded), Queue the further calls that wait
	// (default 1000), and QueueWait how long a caller waits that cannot take a task (default 5s).
	Concurrency int
	Queue       int
	QueueWait   time.Duration
	// MaxTasks and MaxTasksPerOwner bound the tasks that this replica runs; 0 = unbounded.
	MaxTasks         int
	MaxTasksPerOwner int
	// Halved is that of the Bound.
	Halved bool
	// Removed says that new calls are refused: those under way end, and tasks can be read.
	Removed bool
	// Before are removed servers whose tasks are read, answered and cancelled as this one's.
	Before []string
}

// server is a Server with this replica's counts, which stay when the Server changes.
type server struct {
	Server
	*counts
	name string
}

// counts are this replica's counts of a server.
type counts struct {
	slots   *slots
	tasks   Bound          // the tasks that this replica runs
	metrics *metrics.Tasks // nil: no measurement
	graces  *graces
}

// Defaults of Server.
const (
	defaultQueue     = 1000            // tasks, each of which is a goroutine and its arguments
	defaultQueueWait = 5 * time.Second // about as long as a caller takes for a slow answer
)

// newServer makes the server of a name. It takes over the counts of the one before, if any.
func newServer(name string, s Server, before *server) *server {
	s.Queue, s.QueueWait = cmp.Or(s.Queue, defaultQueue), cmp.Or(s.QueueWait, defaultQueueWait)
	if before == nil {
		return &server{Server: s, name: name, counts: &counts{
			graces: newGraces(),
			slots:  &slots{queue: s.Queue, server: bounded{most: s.Concurrency}, tools: make(map[string]*bounded)},
			tasks:  Bound{Key: "max_tasks", Most: s.MaxTasks, MostPerOwner: s.MaxTasksPerOwner, Halved: s.Halved, All: "tasks on this server", Own: "tasks of this caller"},
		}}
	}
	before.tasks.Limit(s.MaxTasks, s.MaxTasksPerOwner, s.Halved)
	before.slots.setLimits(s.Concurrency, s.Policy)
	return &server{Server: s, name: name, counts: before.counts}
}

// policyFor returns the operator's policy for a request.
func (s *server) policyFor(r Request) Policy {
	p := s.Other
	if r.Method == callTool {
		p = s.Policy(r.Name)
	} else {
		p.Tasks, p.Grace, p.Concurrency = Never, 0, 0
	}
	p.PollInterval, p.InputTimeout = max(0, p.PollInterval), max(0, p.InputTimeout)
	return p
}

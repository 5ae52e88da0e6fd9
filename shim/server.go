package shim

import (
	"cmp"
	"context"
	"sync"
	"time"

	"taskgate/internal/metrics"
)

// Server is an upstream as the shim needs to know it.
type Server struct {
	Upstream Upstream
	// Represent, where it is not nil, gives the context in which the server is asked something for
	// a call that this replica has taken over, in the name of its session. It does not block.
	Represent func(ctx context.Context, s Session) context.Context
	// SealToken, where it is not nil, returns the token of a request that brings an answer or a
	// cancellation, for the run of its call on any replica; BringToken gives it to the context of that.
	SealToken  func(ctx context.Context, call string) string
	BringToken func(ctx context.Context, call, token string)
	// Policy is what the operator wants of a tool. It may be asked several times during
	// a call.
	Policy func(tool string) Policy
	// Other is the policy of requests that are no tools/call: they never become
	// tasks, but can have questions as well.
	Other Policy
	// Concurrency bounds the calls in flight (0 = unbounded), Queue how many more
	// may wait (default 1000), and QueueWait how long a caller waits that cannot take a
	// task (default 5s).
	Concurrency int
	Queue       int
	QueueWait   time.Duration
	// MaxTasks and MaxTasksPerOwner bound the tasks that this replica runs here;
	// 0 = unbounded.
	MaxTasks         int
	MaxTasksPerOwner int
	// Removed says that no calls are taken any more: those under way end, and tasks can be read.
	Removed bool
	// Before are servers that were removed, and whose tasks are read, answered and cancelled as this one's.
	Before []string
}

// server is a Server with what this replica counts about it, which stays when the Server changes.
type server struct {
	Server
	*counts
	name string
}

// counts are what this replica counts about a server.
type counts struct {
	slots   *slots
	tasks   Bound          // those that this replica runs
	metrics *metrics.Tasks // nil: nothing is measured
	graces  *graces

	mu    sync.Mutex
	tools map[string]*toolEntry // by tool, only where the policy bounds it
}

// Defaults of Server.
const (
	defaultQueue     = 1000            // tasks, each of which is a goroutine and its arguments
	defaultQueueWait = 5 * time.Second // about as long as a caller takes for a slow answer
)

// newServer makes the server of a name, in place of the one before; nil for none.
func newServer(name string, s Server, before *server) *server {
	s.Queue, s.QueueWait = cmp.Or(s.Queue, defaultQueue), cmp.Or(s.QueueWait, defaultQueueWait)
	if before == nil {
		return &server{Server: s, name: name, counts: &counts{
			graces: newGraces(), slots: newSlots(s.Concurrency, s.Queue), tools: make(map[string]*toolEntry),
			tasks: Bound{Key: "max_tasks", Most: s.MaxTasks, MostPerOwner: s.MaxTasksPerOwner, All: "tasks on this server", Own: "tasks of this caller"},
		}}
	}
	before.tasks.Limit(s.MaxTasks, s.MaxTasksPerOwner)
	before.slots.setLimit(s.Concurrency)
	before.limitTools(s.Policy)
	return &server{Server: s, name: name, counts: before.counts}
}

// policyFor is what the operator wants of a request.
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

package shim

import (
	"context"
	"time"
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
	// Policy is the operator's policy for a tool of which the server says this. It may be asked several times during a
	// call.
	Policy func(tool string, says Hints) Policy
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

package config

import "math"

// Limits bound how much there is of something at a time. A key that is left out, or 0, follows the memory limit
// of the process (docs/operations.md has the formulas), so only those who know need any of them.
type Limits struct {
	// MaxConnections is how many connections of clients each replica has. A further one is closed.
	MaxConnections int `yaml:"max_connections" min:"0"`

	// MaxCalls is how many requests each replica has in flight that wait for a server or for a task,
	// those included whose client has gone. A further one is refused with 503. Requests that make
	// room, such as those that cancel or answer, are not counted.
	MaxCalls int `yaml:"max_calls" min:"0"`

	// MaxStreams is how many streams clients listen to at each replica. A further one is refused with 503.
	MaxStreams int `yaml:"max_streams" min:"0"`

	// MaxStreamsPerOwner is how many of them one authenticated caller has. A further one is refused with 429.
	MaxStreamsPerOwner int `yaml:"max_streams_per_owner" min:"0"`

	// MaxSessions is how many client sessions of the 2025 protocol versions there are, at all
	// replicas together, which should agree on it.
	MaxSessions int `yaml:"max_sessions" min:"0"`

	// MaxTasks is how many tasks of one upstream each replica runs. A further call goes on
	// blocking, or is refused if the client or the tool insists on a task.
	MaxTasks int `yaml:"max_tasks" min:"0"`
}

// The limits of a process with much memory, and how much it has then. With less, it has as much less of each.
var (
	fullLimits = Limits{
		MaxConnections: 50_000, MaxCalls: 10_000, MaxStreams: 20_000, MaxStreamsPerOwner: 5000, MaxSessions: 100_000, MaxTasks: 20_000,
	}
	fullMemory float64 = 0.9 * 4 * (1 << 30) // what Go may use in a container of 4 GiB
)

// Sessions may take an eighth of the memory limit, at their measured cost in bytes.
const (
	sessionsShare = 8
	sessionCost   = 8200
)

// leastLimit is the least that a memory limit leaves of each limit.
const leastLimit = 100

// Within returns the limits with a value for each that is 0, for a process with a memory limit in bytes; 0 is none.
func (l Limits) Within(memory int64) Limits {
	if memory <= 0 {
		memory = math.MaxInt64
	}
	share := min(1, float64(memory)/fullMemory)
	fill := func(n *int, full int) {
		if *n == 0 {
			*n = max(leastLimit, int(share*float64(full)))
		}
	}
	fill(&l.MaxConnections, fullLimits.MaxConnections)
	fill(&l.MaxCalls, fullLimits.MaxCalls)
	fill(&l.MaxStreams, fullLimits.MaxStreams)
	fill(&l.MaxStreamsPerOwner, fullLimits.MaxStreamsPerOwner)
	fill(&l.MaxTasks, fullLimits.MaxTasks)
	if l.MaxSessions == 0 {
		l.MaxSessions = max(leastLimit, int(min(int64(fullLimits.MaxSessions), memory/sessionsShare/sessionCost)))
	}
	return l
}

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

	// MaxStreamsPerOwner is how many of them one owner has. A further one is refused with 429.
	MaxStreamsPerOwner int `yaml:"max_streams_per_owner" min:"0"`

	// MaxSessions is how many client sessions of the 2025 protocol versions there are, at all
	// replicas together, which should agree on it.
	MaxSessions int `yaml:"max_sessions" min:"0"`

	// MaxTasks is how many tasks of one upstream each replica runs. A further call goes on
	// blocking, or is refused if the client or the tool insists on a task.
	MaxTasks int `yaml:"max_tasks" min:"0"`

	// MaxKeptBytes is how many bytes each replica has the store keep of tasks that have ended, until their
	// ttl is over. Beyond it no task is made: a call goes on blocking, or is refused if the client or the tool
	// insists on a task. A Redis has no such limit by default.
	MaxKeptBytes Size `yaml:"max_kept_bytes" min:"0"`

	// MaxKeptBytesPerOwner is how many of them are of one owner.
	MaxKeptBytesPerOwner Size `yaml:"max_kept_bytes_per_owner" min:"0"`
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

// What is kept of ended tasks may take an eighth of the memory limit in a store that this process has for itself, and
// this much without one. In a Redis one owner has keptOfOwner at each replica.
const (
	keptShare   = 8
	fullKept    = 512 * MiB
	keptOfOwner = GiB
)

// Messages and their answers may take an eighth of the memory limit, and at most this much.
const (
	messagesShare = 8
	fullMessages  = 256 * MiB
)

// BytesInFlight is max_bytes_in_flight in a process with a memory limit in bytes; 0 is none. At least twice the largest
// call has room.
func (c *Config) BytesInFlight(memory int64) Size {
	switch {
	case c.MaxBytesInFlight > 0:
		return c.MaxBytesInFlight
	case memory <= 0:
		return fullMessages
	}
	return max(min(fullMessages, Size(memory/messagesShare)), 2*c.LargestCall())
}

// KeptBytes are max_kept_bytes, 0 for any number, and max_kept_bytes_per_owner in a process with a memory limit in
// bytes; 0 is none.
func (c *Config) KeptBytes(memory int64) (all, perOwner Size) {
	all, perOwner = c.Limits.MaxKeptBytes, c.Limits.MaxKeptBytesPerOwner
	switch {
	case all > 0 || !c.OwnsStore():
	case memory <= 0:
		all = fullKept
	default:
		all = Size(memory / keptShare)
	}
	if perOwner == 0 {
		if perOwner = all; all == 0 {
			perOwner = keptOfOwner
		}
	}
	return all, perOwner
}

// What is kept for the resumption of streams may take a sixteenth of the memory limit in a store that this process has for
// itself, and this much without one. So may the ends of tasks that a store has yet to take, and of streams.
const (
	logsShare = 16
	fullLogs  = 256 * MiB
	fullEnds  = 64 * MiB
)

// LogBytes is how many bytes all session logs have in a process with a memory limit in bytes, 0 for none; 0 is any number.
func (c *Config) LogBytes(memory int64) Size {
	switch {
	case !c.OwnsStore():
		return 0
	case memory <= 0:
		return fullLogs
	}
	return min(fullLogs, Size(memory/logsShare))
}

// EndBytes is how many bytes the ends of tasks that the store has yet to take have, and as many the ends of streams, in a
// process with a memory limit in bytes; 0 is none.
func EndBytes(memory int64) Size {
	if memory <= 0 {
		return fullEnds
	}
	return min(fullEnds, Size(memory/logsShare))
}

// What sessions with much to say of themselves or to subscribe to take more than others may be a 64th of the memory limit,
// and this much without one. It is there about four times.
const (
	statesShare = 64
	fullStates  = 64 * MiB
)

// StateBytes is how many bytes the large states of sessions have in a process with a memory limit in bytes; 0 is none.
func StateBytes(memory int64) Size {
	if memory <= 0 {
		return fullStates
	}
	return min(fullStates, Size(memory/statesShare))
}

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

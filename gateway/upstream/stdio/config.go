package stdio

import (
	"cmp"
	"log/slog"
	"time"
)

// Process says who shares a process of the server.
type Process string

// The values of Process. The empty one is ProcessAuto.
const (
	// ProcessAuto is ProcessShared for a modern server, whose process is no session, and
	// ProcessSession for a legacy one, whose process is one (protocol.md 5.3).
	ProcessAuto Process = "auto"
	// ProcessShared is one process for all.
	ProcessShared Process = "shared"
	// ProcessPrincipal is one for each principal. Anonymous callers share one, but for
	// legacy clients: each of their sessions has its own.
	ProcessPrincipal Process = "principal"
	// ProcessSession is one for each session with the server.
	ProcessSession Process = "session"
)

// Config says what to run, and how much of it.
type Config struct {
	// Name is the configured name of the upstream.
	Name string
	// Command is the program; one without a slash is looked up in the gateway's PATH.
	Command string
	// Args are its arguments, without its name.
	Args []string
	// Env is its whole environment, as NAME=value: nothing is inherited.
	Env []string
	// Dir is where it runs; "" is the gateway's own directory.
	Dir string

	// Process is ProcessAuto if empty.
	Process Process
	// MaxProcesses is how many processes run at a time; 32 if 0.
	MaxProcesses int
	// Idle is how long a process is kept that nobody uses; 0 is until the gateway ends.
	Idle time.Duration
	// MaxMessage bounds one message of the server, in bytes; 32 MiB if 0.
	MaxMessage int64
	// ReadTimeout is how long the server may take to read 64 KiB of what it is sent, and how
	// long the reader of a response may hold up the server; 10s if 0.
	ReadTimeout time.Duration
	// Silence is how long a server may take to answer a first server/discover before it is
	// taken for a legacy one; 5s if 0. A negative one says that the server is known to be
	// modern: silence, and its end, are errors then.
	Silence time.Duration

	// Logger takes what the server says on its standard error, and how it ends; nil
	// discards it.
	Logger *slog.Logger

	patience time.Duration // endPatience if 0
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	c.Process = cmp.Or(c.Process, ProcessAuto)
	c.MaxProcesses = cmp.Or(c.MaxProcesses, 32)
	c.MaxMessage = cmp.Or(c.MaxMessage, 32<<20)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 10*time.Second)
	c.Silence = cmp.Or(c.Silence, 5*time.Second)
	c.patience = cmp.Or(c.patience, endPatience)
	if c.Env == nil {
		c.Env = []string{} // nil would be the gateway's own
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = c.Logger.With("upstream", c.Name)
	return c
}

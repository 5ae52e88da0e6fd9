package stdio

import (
	"cmp"
	"log/slog"
	"time"
)

// Config says which program to run, and within which limits.
type Config struct {
	// Name is the configured name of the upstream.
	Name string
	// Command is the program; a name without a slash is looked up in the gateway's PATH, on Windows with PATHEXT.
	Command string
	// Args are its arguments, after its name.
	Args []string
	// Env is its whole environment, as NAME=value: nothing is inherited.
	Env []string
	// Dir is where it runs; "" is the gateway's own folder.
	Dir string

	// OneUser says that all anonymous callers are one user.
	OneUser bool
	// MaxProcesses is how many processes there are at a time; 32 if 0. A principal may have half of
	// them.
	MaxProcesses int
	// After is closed when a process may start, since earlier ones have ended that may hold a port
	// or a lock; nil is at once.
	After <-chan struct{}
	// Idle is how long an unused process is kept; 0 is until the gateway ends.
	Idle time.Duration
	// MaxMessage bounds one message of the server, in bytes; 32 MiB if 0.
	MaxMessage int64
	// Modern says that the server is known to be modern.
	Modern bool

	// Logger takes the server's standard error, and how it ends; nil discards it.
	Logger *slog.Logger

	patience time.Duration // endPatience if 0
}

// withDefaults fills in zero fields.
func (c Config) withDefaults() Config {
	c.MaxProcesses = cmp.Or(c.MaxProcesses, 32)
	c.MaxMessage = cmp.Or(c.MaxMessage, 32<<20)
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

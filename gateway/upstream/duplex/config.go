package duplex

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/shim"
)

// Config says how the servers of a Transport are opened, and how many.
type Config struct {
	// Open opens the Link to a server. running counts the goroutines that the Transport
	// waits for at its end, and hurry is closed when there is no time left to end in order.
	// first is the first message, of a request. An *Ending is a failed start, after which the
	// owner waits before the next; any other error is that of the request.
	Open func(ctx context.Context, first *transport.Message, running *sync.WaitGroup, hurry <-chan struct{}) (Link, error)
	// Owner names whom a server is for that the caller of a request needs. The requests of
	// the modern era with the same owner share a server. A legacy session has its own, and
	// the owner is whose starts are paused and counted. nil: all are one owner.
	Owner func(caller shim.Session, legacy bool) Owner

	// What is a server in an error: "the process of the server".
	What string
	// Prefix begins the ids of sessions.
	Prefix string
	// Max is how many servers there are at a time, those that are ending included. MaxKey is
	// the key of the configuration that says so, MaxWhat what they are: "processes of this
	// server". MaxOwner is how many of them a named owner may have; 0 is Max.
	Max, MaxOwner int
	MaxKey        string
	MaxWhat       string
	// Personal says that a Link is opened with what its first request signs in with: a server that has refused
	// a session is ended, and not kept for another one.
	Personal bool
	// NoProbe says that no server is sent a server/discover that it may not know: one that ends before it has said
	// anything is broken.
	NoProbe bool
	// Exclusive has a server of an owner be opened only when those before it that are
	// ending have ended: they may hold a port, or a lock.
	Exclusive bool

	// Idle is how long a server is kept that nobody uses; 0 is until the Transport ends.
	Idle time.Duration
	// FirstPause is the pause after a server that ended before it said anything. It doubles
	// with each one, up to LastPause. 1s and 30s if 0. A server that lived for less than
	// Short counts as well, from the second in a row; 0 is for none.
	FirstPause, LastPause, Short time.Duration

	// Logger takes how servers end; nil discards it.
	Logger *slog.Logger
}

// Owner is whom a server is for.
type Owner struct {
	Name string // "" for all that have no name
	// Kin names the owners that a server pauses for together which never said anything; "" for none.
	// It is for owners that come and go: each new one would start such a server again.
	Kin string
	// Private says that all its requests are of one user: what the server says to none of
	// them may be shown to any.
	Private bool
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	c.FirstPause = cmp.Or(c.FirstPause, time.Second)
	c.LastPause = cmp.Or(c.LastPause, 30*time.Second)
	if c.Owner == nil {
		c.Owner = func(shim.Session, bool) Owner { return Owner{} }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

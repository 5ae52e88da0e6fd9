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
	// Open opens the Link to a server. running counts the goroutines that the Transport waits for at its end;
	// hurry is closed when the time to end in order is over. first is the first message, a request. An
	// *Ending is a failed start, after which the owner waits before the next; any other error is the
	// request's.
	Open func(ctx context.Context, first *transport.Outgoing, running *sync.WaitGroup, hurry <-chan struct{}) (Link, error)
	// Owner says for which owner the server of a request runs. The requests of the modern era with the same
	// owner share a server. A legacy session has its own server, and its owner's starts are paused and
	// counted. If nil, all are one owner.
	Owner func(caller shim.Session, legacy bool) Owner

	// What names a server in an error: "the process of the server".
	What string
	// Prefix begins the ids of sessions.
	Prefix string
	// Max is how many servers there are at a time, including those that are ending. MaxKey is the
	// configuration key of that limit; MaxWhat names what is counted: "processes of this server". MaxOwner is
	// how many of them a named owner may have; 0 is Max.
	Max, MaxOwner int
	MaxKey        string
	MaxWhat       string
	// Personal says that a Link is opened with the credential of its first request: a server that has refused
	// a session is ended, instead of kept for another one.
	Personal bool
	// NoProbe says that every server knows server/discover, or is never sent it: a server that ends before it
	// has said anything is broken.
	NoProbe bool
	// Exclusive delays the opening of an owner's server until its earlier servers that are ending have ended:
	// they may hold a port, or a lock.
	Exclusive bool

	// Idle is how long an unused server is kept; 0 is until the Transport ends.
	Idle time.Duration
	// FirstPause is the pause after a server that ended before it said anything. It doubles with each such
	// server, up to LastPause. 1s and 30s if 0. From the second in a row, a server that lived for less than
	// Short counts as well; 0 turns Short off.
	FirstPause, LastPause, Short time.Duration

	// Logger takes how servers end; nil discards it.
	Logger *slog.Logger
}

// Owner is the one that a server runs for.
type Owner struct {
	Name string // "" for all unnamed owners
	// Kin names owners that pause together after a server that never said anything; "" if the owner pauses
	// alone. It is for owners that come and go: each new one would start such a server again.
	Kin string
	// Private says that all requests of the owner are one user's: a message from outside of any request may
	// be shown to any of them.
	Private bool
}

// withDefaults fills in zero fields.
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

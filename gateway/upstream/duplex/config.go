package duplex

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Config says how the servers of a Transport are opened, and how many.
type Config struct {
	// Open opens the Link to a server. running counts the goroutines that the Transport
	// waits for at its end, and hurry is closed when there is no time left to end in order.
	// header is that of the first request. An *Ending is a failed start, after which no
	// other is made for a while; any other error is that of the request.
	Open func(ctx context.Context, header http.Header, running *sync.WaitGroup, hurry <-chan struct{}) (Link, error)
	// Owner names who shares a server with the caller of a request. own says that nobody
	// does: the server is that of one session. nil: each session has its own.
	Owner func(ctx context.Context, legacy bool) (owner string, own bool)

	// What is a server in an error: "the process of the server".
	What string
	// Prefix begins the ids of sessions.
	Prefix string

	// Max is how many servers there are at a time, MaxKey the key of the configuration that
	// says so, and MaxWhat what they are: "processes of this server".
	Max     int
	MaxKey  string
	MaxWhat string
	// Idle is how long a server is kept that nobody uses; 0 is until the Transport ends.
	Idle time.Duration
	// ReadTimeout is how long the reader of a response may hold up the server; 10s if 0.
	ReadTimeout time.Duration
	// Silence is how long a server may take to answer a first server/discover before it is
	// taken for a legacy one; 5s if 0. A negative one says that silence, and the end of the
	// server, are errors then.
	Silence time.Duration
	// FirstPause is the pause after a server that ended before it said anything. It doubles
	// with each one, up to LastPause. 1s and 30s if 0.
	FirstPause, LastPause time.Duration

	// Logger takes how servers end; nil discards it.
	Logger *slog.Logger
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 10*time.Second)
	c.Silence = cmp.Or(c.Silence, 5*time.Second)
	c.FirstPause = cmp.Or(c.FirstPause, time.Second)
	c.LastPause = cmp.Or(c.LastPause, 30*time.Second)
	if c.Owner == nil {
		c.Owner = func(context.Context, bool) (string, bool) { return "session", true }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

package sse

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/duplex"
	"taskgate/gateway/upstream/streamable"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/mcp"
)

// Pauses after an event stream that ended before its first message. Opening one costs a server
// little, and the server may just have been restarted.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// prefix begins the ids of sessions that are connections of this process.
const prefix = "sse-of-this-gateway-"

// what names the thing that failed, in an error.
const what = "the event stream of the server"

// Config says which server is reached, and how.
type Config struct {
	// URL is that of the server.
	URL *url.URL
	// Endpoint replaces the origin and the path of the address that the server names for messages, behind a proxy that
	// has another path for it than the server knows; nil for that of the server.
	Endpoint *url.URL
	// Always says that the server is one of HTTP+SSE. Otherwise the Transport finds out.
	Always bool

	// Max is how many connections with event streams there are at a time; 1000 if 0.
	Max int
	// Idle is how long an unused connection is kept; 0 is until the Transport is closed.
	Idle time.Duration
	// MaxEvent bounds one event, in bytes; 32 MiB if 0.
	MaxEvent int64
	// Patience is how long the server may take to begin the event stream and name the
	// endpoint, and to take a notification or a response; 5s if 0.
	Patience time.Duration

	// Logger takes how connections end; nil discards it.
	Logger *slog.Logger
}

// Transport reaches a server that may speak Streamable HTTP or HTTP+SSE. It sends messages by
// Streamable HTTP until the server refuses an initialize with 400, 404 or 405 and no JSON-RPC
// error, and answers a GET with an event stream that begins with an endpoint event. From then on
// each initialize opens a connection, until a GET is answered otherwise.
//
// It is safe for concurrent use. Its owner closes it.
type Transport struct {
	// HTTP performs all requests, and is closed by Close.
	HTTP   *streamable.Transport
	cfg    Config
	older  *duplex.Transport
	speaks atomic.Bool // HTTP+SSE, as far as is known
}

var _ transport.Transport = (*Transport)(nil)

// New makes a transport over another one to the same server. It contacts nothing.
func New(http *streamable.Transport, c Config) *Transport {
	c.MaxEvent = cmp.Or(c.MaxEvent, 32<<20)
	c.Patience = cmp.Or(c.Patience, 5*time.Second)
	t := &Transport{HTTP: http, cfg: c}
	t.speaks.Store(c.Always)
	t.older = duplex.New(duplex.Config{
		Open: t.open, What: what, Prefix: prefix,
		Max: cmp.Or(c.Max, 1000), MaxKey: "max_sse_connections", MaxWhat: "connections to this server",
		Idle: c.Idle, NoProbe: true, Personal: true, FirstPause: firstPause, LastPause: lastPause, Logger: c.Logger,
	})
	return t
}

// Speaks reports whether the server speaks HTTP+SSE, as far as is known.
func (t *Transport) Speaks() bool { return t.speaks.Load() }

// Local reports whether a session of this id is a connection, which no other process can use.
func Local(session string) bool { return strings.HasPrefix(session, prefix) }

// Close closes all connections, and waits for their end.
func (t *Transport) Close(ctx context.Context) error {
	return errors.Join(t.older.Close(ctx), t.HTTP.Close(ctx))
}

// Reach returns an error if the server cannot be reached.
func (t *Transport) Reach(ctx context.Context) error { return t.HTTP.Reach(ctx) }

// Request sends a request.
func (t *Transport) Request(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	switch {
	case m.Method != mcp.MethodInitialize || m.Session != "":
		return t.carrierOf(m).Request(ctx, m)
	case t.cfg.Always:
		return t.older.Request(ctx, m)
	case t.speaks.Load():
		return t.tryNewer(ctx, m)
	}
	return t.tryOlder(ctx, m)
}

// Notify sends a notification or a response.
func (t *Transport) Notify(ctx context.Context, m *transport.Outgoing) error {
	return t.carrierOf(m).Notify(ctx, m)
}

// Listen opens the stream of a session for messages outside of any request.
func (t *Transport) Listen(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	return t.carrierOf(m).Listen(ctx, m)
}

// EndSession ends a session.
func (t *Transport) EndSession(ctx context.Context, m *transport.Outgoing) error {
	return t.carrierOf(m).EndSession(ctx, m)
}

// carrierOf returns the carrier of a session's messages.
func (t *Transport) carrierOf(m *transport.Outgoing) transport.Carrier {
	if Local(m.Session) {
		return t.older
	}
	return t.HTTP
}

// tryOlder sends an initialize by Streamable HTTP. If the answer leaves it open, a GET finds out
// whether the server is one of HTTP+SSE. Otherwise the answer stands.
func (t *Transport) tryOlder(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	s, err := t.HTTP.Request(ctx, m)
	if !isUnclear(err) {
		return s, err
	}
	older, failed := t.older.Request(ctx, m)
	if t.speaks.Load() {
		return older, failed
	}
	closeStream(older)
	return nil, err
}

// tryNewer opens a connection. If the server no longer speaks HTTP+SSE, the initialize goes to it
// by Streamable HTTP.
func (t *Transport) tryNewer(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	s, err := t.older.Request(ctx, m)
	if t.speaks.Load() {
		return s, err
	}
	closeStream(s)
	s, failed := t.HTTP.Request(ctx, m)
	if _, refused := err.(*transport.StatusError); err != nil && !refused && isUnclear(failed) {
		return nil, err // the server was one of HTTP+SSE, and had trouble
	}
	return s, failed
}

func closeStream(s transport.Stream) {
	if s != nil {
		s.Close()
	}
}

// learn notes the outcome of a GET.
func (t *Transport) learn(speaks bool) { t.speaks.Store(speaks || t.cfg.Always) }

// isUnclear reports whether an HTTP+SSE server may refuse an initialize like this, at the address
// of its event stream (protocol.md 2.10). It may say 405 in JSON-RPC (fast-mcp #160).
func isUnclear(err error) bool {
	se, ok := err.(*transport.StatusError)
	return ok && isUnclearStatus(se.Status) && (se.Said == nil || se.Status == http.StatusMethodNotAllowed)
}

func isUnclearStatus(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

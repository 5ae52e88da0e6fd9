package sse

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/duplex"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// Pauses after an event stream that ended before it said anything. To open one costs a server
// little, and it may just have been restarted.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// prefix begins the ids of sessions that are connections of this process.
const prefix = "sse-of-this-gateway-"

// what fails, in an error.
const what = "the event stream of the server"

// Config says which server is reached, and how.
type Config struct {
	// URL is that of the server, and Base reaches it.
	URL  *url.URL
	Base http.RoundTripper
	// Always says that the server is one of HTTP+SSE. Otherwise that is found out.
	Always bool

	// Max is how many connections with event streams there are at a time; 1000 if 0.
	Max int
	// Idle is how long one is kept that nobody uses; 0 is until the Transport is closed.
	Idle time.Duration
	// MaxEvent bounds one event, in bytes; 32 MiB if 0.
	MaxEvent int64
	// Patience is how long the server may take to begin the event stream and name the
	// endpoint, and to take a notification or a response; 5s if 0.
	Patience time.Duration

	// Logger takes how connections end; nil discards it.
	Logger *slog.Logger
}

// Transport is an http.RoundTripper for a server of which it is not known whether it speaks
// Streamable HTTP or HTTP+SSE. Requests go to it as they are, until it answers an initialize
// with 400, 404 or 405, without a JSON-RPC error, and a GET with an event stream that begins
// with an endpoint event. From then on each initialize opens a connection, until a GET is
// answered otherwise.
//
// It is safe for concurrent use. Its owner closes it.
type Transport struct {
	cfg    Config
	older  *duplex.Transport
	speaks atomic.Bool // HTTP+SSE, as far as is known
}

// New makes a transport. Nothing is contacted.
func New(c Config) *Transport {
	c.MaxEvent = cmp.Or(c.MaxEvent, 32<<20)
	c.Patience = cmp.Or(c.Patience, 5*time.Second)
	t := &Transport{cfg: c}
	t.speaks.Store(c.Always)
	t.older = duplex.New(duplex.Config{
		Open: t.open, What: what, Prefix: prefix,
		Max: cmp.Or(c.Max, 1000), MaxKey: "max_sse_connections", MaxWhat: "connections to this server",
		Idle: c.Idle, Silence: -1, Personal: true, FirstPause: firstPause, LastPause: lastPause, Logger: c.Logger,
	})
	return t
}

// Speaks reports whether the server speaks HTTP+SSE, as far as is known.
func (t *Transport) Speaks() bool { return t.speaks.Load() }

// Local reports whether a session of this id is a connection, which no other process can use.
func Local(session string) bool { return strings.HasPrefix(session, prefix) }

// Close closes all connections, and waits for their end.
func (t *Transport) Close(ctx context.Context) error { return t.older.Close(ctx) }

// RoundTrip answers one request.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	session := req.Header.Get(mcp.HeaderSession)
	switch {
	case Local(session):
		return t.askOlder(req)
	case session != "" || req.Method != http.MethodPost || req.Header.Get(mcp.HeaderMethod) != "":
		return t.cfg.Base.RoundTrip(req)
	case !t.speaks.Load():
		return t.tryOlder(req)
	case !initializes(req):
		return t.cfg.Base.RoundTrip(req)
	case t.cfg.Always:
		return t.askOlder(req)
	}
	return t.tryNewer(req)
}

// headerHost is where the name that a request asks for goes along with its header. net/http writes it from
// http.Request.Host alone.
const headerHost = "Host"

// askOlder has a connection answer a request.
func (t *Transport) askOlder(req *http.Request) (*http.Response, error) {
	if req.Host != "" && req.Host != t.cfg.URL.Host {
		req = req.Clone(req.Context())
		req.Header.Set(headerHost, req.Host)
	}
	return t.older.RoundTrip(req)
}

// tryOlder sends a request as it is. If the answer to an initialize leaves it open, a GET finds
// out whether the server is one of HTTP+SSE. If it is none, the answer stands.
func (t *Transport) tryOlder(req *http.Request) (*http.Response, error) {
	resp, err := t.cfg.Base.RoundTrip(req)
	if err != nil || !unclear(resp.StatusCode) || !initializes(req) {
		return resp, err
	}
	resp, body := whole(resp)
	if m, err := jsonrpc.ParseLenient(body); err == nil && m.Kind == jsonrpc.ErrorResponse {
		return resp, nil
	}
	older, err := t.askOlder(again(req))
	if t.speaks.Load() {
		return older, err
	}
	discard(older)
	return resp, nil
}

// tryNewer opens a connection. If the server turns out to be none of HTTP+SSE any more, the
// request goes to it as it is.
func (t *Transport) tryNewer(req *http.Request) (*http.Response, error) {
	resp, err := t.askOlder(req)
	if t.speaks.Load() {
		return resp, err
	}
	discard(resp)
	resp, failed := t.cfg.Base.RoundTrip(again(req))
	if err != nil && failed == nil && unclear(resp.StatusCode) { // it was one of HTTP+SSE, and had trouble
		discard(resp)
		return nil, err
	}
	return resp, failed
}

// learn takes note of what a GET has shown.
func (t *Transport) learn(speaks bool) { t.speaks.Store(speaks || t.cfg.Always) }

// unclear reports whether the status is one that an HTTP+SSE server may give to a POST at the
// address of its event stream (protocol.md 2.10).
func unclear(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

// initializes reports whether a POST opens a session.
func initializes(req *http.Request) bool {
	if req.GetBody == nil {
		return false
	}
	body, err := req.GetBody()
	if err != nil {
		return false
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		return false
	}
	m, err := jsonrpc.ParseLenient(b)
	return err == nil && m.Kind == jsonrpc.Request && m.Method == mcp.MethodInitialize
}

// again is a request to be made once more. initializes has been true of it.
func again(req *http.Request) *http.Request {
	next := req.Clone(req.Context())
	next.Body, _ = req.GetBody() // as it has before
	return next
}

func discard(resp *http.Response) {
	if resp != nil {
		resp.Body.Close()
	}
}

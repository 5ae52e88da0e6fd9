package upstream

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskgate/internal/mcp"
	"taskgate/internal/semconv"
	"taskgate/shim"
)

// HTTP reaches one MCP server over Streamable HTTP, in whichever era the server
// speaks. It is safe for concurrent use. It implements shim.Upstream.
type HTTP struct {
	cfg       Config
	url       *url.URL
	transport *http.Transport
	client    *http.Client
	log       *slog.Logger
	tracer    trace.Tracer
	attrs     []attribute.KeyValue
	dark      bool // no tracer was given
	serial    atomic.Int64

	eras  eras
	pool  pool
	tools tools
	seen  described
	gets  gets

	posing atomic.Pointer[Posing]

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // goroutines of spawn
}

var _ shim.Upstream = (*HTTP)(nil)

// New makes the leg for one server. It contacts nobody: the server is probed
// when it is first needed. The error says what is wrong with the configuration.
func New(c Config) (*HTTP, error) {
	c = c.withDefaults()
	u, err := c.check()
	if err != nil {
		return nil, err
	}
	h := &HTTP{cfg: c, url: u, transport: newTransport(c)}
	h.client = newClient(h.transport)
	h.log = c.Logger.With("upstream", c.Name)
	h.tracer = c.TracerProvider.Tracer(semconv.Scope)
	_, h.dark = c.TracerProvider.(noop.TracerProvider)
	h.attrs = fixedAttrs(c, &http.Request{URL: u})
	h.life, h.end = context.WithCancelCause(context.Background())
	h.pool.h, h.tools.h, h.eras.h = h, h, h
	return h, nil
}

// Server is what a server says of itself.
type Server struct {
	// Era is that of Version, the version agreed on.
	Era     mcp.Era
	Version string
	// Capabilities and Info are the ServerCapabilities and the Implementation
	// object as received; nil if the server sent none.
	Capabilities json.RawMessage
	Info         json.RawMessage
	Instructions string
	// Raw is the whole InitializeResult or DiscoverResult.
	Raw json.RawMessage
}

// Describe says what kind of server this is, for clients with these abilities.
// It finds that out if it must, and remembers it. For a legacy server that
// takes opening a session; one with Key "" that is not shared is ended again.
// Errors are *shim.UpstreamError.
func (h *HTTP) Describe(ctx context.Context, s shim.Session) (Server, error) {
	var last error
	for range 2 { // once more if the server turns out to be of the other era
		v, err := h.eras.get(ctx)
		if err != nil {
			return Server{}, public(err)
		}
		if v.era == mcp.Modern {
			return h.eras.describe(v)
		}
		srv, err := h.describeLegacy(ctx, s)
		if err == nil || !h.doubts(v, err) {
			return srv, public(err)
		}
		last = handshakeError(err)
	}
	return Server{}, public(last)
}

func (h *HTTP) describeLegacy(ctx context.Context, s shim.Session) (Server, error) {
	caps := fingerprint(s.Capabilities)
	if srv, ok := h.seen.get(caps); ok {
		return srv, nil
	}
	ses := h.pool.acquire(s)
	defer ses.release()
	l, err := ses.open(ctx)
	if err == nil && l.server.Raw == nil {
		return h.describeApart(ctx, s)
	}
	if err != nil {
		return Server{}, err
	}
	return l.server, nil
}

// describeApart asks the server in a session of its own, which it ends again, where the one
// that is open was adopted to resume a call: what the server said when that was opened is
// known to the replica that opened it.
func (h *HTTP) describeApart(ctx context.Context, s shim.Session) (Server, error) {
	s.Key = ""
	l, err := h.initialize(ctx, newSession(h, sessionKey{caps: fingerprint(s.Capabilities)}, s), 1)
	if err != nil {
		return Server{}, err
	}
	h.discard(l)
	return l.server, nil
}

// EndSession says that the session called key (Session.Key) has ended. Its
// upstream sessions are deleted once their last call has ended.
func (h *HTTP) EndSession(ctx context.Context, key string) {
	if key == "" {
		return
	}
	if !h.pool.end(key) && h.cfg.Sessions != nil {
		h.endLater(key) // another replica may have opened one
	}
	h.tools.endSession(key)
}

// Close deletes the upstream sessions that have no calls, closes idle
// connections, and waits until ctx ends for the goroutines of the leg. Calls in
// flight belong to their callers and are not touched; sessions that a detached
// call left behind are kept for whoever resumes it.
func (h *HTTP) Close(ctx context.Context) error {
	h.pool.close()
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends when the goroutines do: all of them are bounded
		h.running.Wait()
		close(done)
	}()
	h.end(errClosed)
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	h.transport.CloseIdleConnections()
	return err
}

// nextID makes the id of a request, which is also its progress token.
func (h *HTTP) nextID() string {
	return h.cfg.Replica + "-" + strconv.FormatInt(h.serial.Add(1), 10)
}

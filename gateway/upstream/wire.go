package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskgate/gateway/upstream/sse"
	"taskgate/gateway/upstream/streamable"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics"
	"taskgate/internal/semconv"
)

// wire is the way to one server: its transport, and what all messages to it have in common. It makes
// exchanges (request.go). The client owns it. After newWire it is constant, except for the counters of ids.
type wire struct {
	cfg     Config
	via     transport.Transport
	older   *sse.Transport // the same as via, if the server may be one of HTTP+SSE
	log     *slog.Logger
	tracer  trace.Tracer
	attrs   []attribute.KeyValue // of every span
	dark    bool                 // the tracer is a no-op
	metrics *metrics.Client      // nil turns measuring off
	serial  atomic.Int64
	numbers numbers
}

func newWire(c Config) (*wire, error) {
	c = c.withDefaults()
	w := &wire{cfg: c, log: c.Logger.With("upstream", c.Name), via: c.Transport}
	w.serial.Store(c.FirstID)
	w.numbers.log = w.log
	var u *url.URL
	if c.Transport == nil {
		var err error
		if u, err = url.Parse(c.URL); err != nil { // its text would repeat the URL, and a secret in it
			return nil, fmt.Errorf("upstream %s: url is not a URL", c.Name)
		}
		if err = w.openHTTP(u); err != nil {
			return nil, err
		}
	}
	w.tracer = c.TracerProvider.Tracer(semconv.Scope)
	_, w.dark = c.TracerProvider.(noop.TracerProvider)
	w.attrs = fixedAttrs(c, u)
	w.metrics = c.Metrics.Client(c.Name, w.attrs[1:]) // every measurement has the upstream already
	return w, nil
}

// openHTTP sets the transport over HTTP: Streamable HTTP alone, or with HTTP+SSE beside it (protocol.md
// 5.2).
func (w *wire) openHTTP(u *url.URL) (err error) {
	c := w.cfg
	direct := streamable.New(streamable.Config{URL: u, TLS: c.TLS, Header: c.Headers, Dial: c.Dial, MaxResult: c.MaxResult})
	w.via = direct
	if c.Way == WayHTTP || c.Era == EraModern {
		return nil
	}
	var endpoint *url.URL
	if c.SSEEndpoint != "" {
		if endpoint, err = url.Parse(c.SSEEndpoint); err != nil {
			return fmt.Errorf("upstream %s: the endpoint of HTTP+SSE is not a URL", c.Name)
		}
	}
	w.older = sse.New(direct, sse.Config{
		URL: u, Endpoint: endpoint, Always: c.Way == WaySSE, Idle: c.SessionIdle, MaxEvent: c.MaxResult,
		Patience: c.StartTimeout / 2, Logger: w.log,
	})
	w.via = w.older
	return nil
}

// isLocal reports whether sessions with the server are connections, as far as is known. Such a session is
// useless to other replicas.
func (w *wire) isLocal() bool { return w.older != nil && w.older.Speaks() }

// fixedAttrs are the attributes of every span of one upstream. u is nil for a server without an address.
func fixedAttrs(c Config, u *url.URL) []attribute.KeyValue {
	if u == nil {
		return []attribute.KeyValue{semconv.Upstream.String(c.Name), semconv.Transport.String(semconv.TransportPipe)}
	}
	attrs := []attribute.KeyValue{
		semconv.Upstream.String(c.Name),
		semconv.Transport.String(semconv.TransportTCP),
		semconv.ServerAddress.String(u.Hostname()),
	}
	if port, err := strconv.Atoi(u.Port()); err == nil {
		attrs = append(attrs, semconv.ServerPort.Int(port))
	}
	return attrs
}

// spellName is a name that distinguishes this client from all others.
func (w *wire) spellName() string { return w.cfg.Replica + "." + strconv.FormatInt(w.cfg.FirstID, 10) }

// nextID makes the id of a request, which is also its progress token: the text of a number below 2^31.
// Clients number their requests, and some servers read only that, such as Xcode's
// (github.com/can1357/oh-my-pi/pull/7107) and that of WordPress
// (github.com/WordPress/mcp-adapter/issues/143), or only numbers of that size.
func (w *wire) nextID(to target) string {
	if to.session != "" && !to.opened {
		return strconv.FormatInt(w.numbers.nextNumber(), 10)
	}
	return strconv.FormatInt(w.serial.Add(1), 10)
}

// slowContext bounds one request of a handshake.
func (w *wire) slowContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, w.cfg.StartTimeout, errSlow)
}

// tellServer sends a message that has no answer: a notification, or a response to a
// request of the server.
func (w *wire) tellServer(ctx context.Context, to target, body []byte) error {
	m := to.newMessage(body)
	return w.via.Notify(ctx, &m)
}

// tellSoon is tellServer for a message that the server can take at once.
func (w *wire) tellSoon(ctx context.Context, to target, body []byte) error {
	ctx, cancel := w.slowContext(ctx)
	defer cancel()
	return w.tellServer(ctx, to, body)
}

// outliveCaller bounds a message that outlives its caller: a cancellation, or the end of a session.
func outliveCaller(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// target says how to word a request: for which version, and in which session.
type target struct {
	era     mcp.Era
	version string // "" before it is negotiated
	session string // its id at a legacy server; "" for a server without sessions
	cookie  string // what a balancer in front of the server knows the session by
	gen     int64  // of a session that replicas share
	opened  bool   // by this client
}

func (to target) newMessage(body []byte) transport.Outgoing {
	return transport.Outgoing{Body: body, Session: to.session, Cookie: to.cookie, Version: to.version, Modern: to.era == mcp.Modern, Sender: transport.Nobody{}}
}

// beginCheckpoint returns the first checkpoint of a call to the target.
func (to target) beginCheckpoint(id string) checkpoint {
	return checkpoint{Era: to.era.String(), Version: to.version, Session: to.session, Cookie: to.cookie, Generation: to.gen, ID: id}
}

// The pauses between attempts.
const (
	firstRetry = 500 * time.Millisecond // where the server names no time
	maxRetry   = time.Minute            // whatever the server asks for
)

// backoffOf is how long to wait before the n-th attempt in a row, the first being 1: half a second, doubled
// each time and spread, so that those who lost the same server come back apart.
func backoffOf(n int) time.Duration {
	d := min(firstRetry<<min(max(n-1, 0), 10), maxRetry)
	return d/2 + rand.N(d/2+1)
}

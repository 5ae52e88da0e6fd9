package upstream

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/sse"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics"
	"taskgate/internal/semconv"
)

// wire is the way to one server: it words requests, sends them, and reads the heads of the
// responses. An exchange is made by it (exchange.go). The client owns it. It does not
// change after newWire, but for the counter of ids.
type wire struct {
	cfg       Config
	url       *url.URL
	transport *http.Transport
	older     *sse.Transport    // nil, unless it may be a server of HTTP+SSE
	via       http.RoundTripper // the one of these, or the configured Transport, that requests go to
	log       *slog.Logger
	tracer    trace.Tracer
	attrs     []attribute.KeyValue // of every span
	dark      bool                 // no tracer was given
	metrics   *metrics.Client      // nil: nothing is measured
	serial    atomic.Int64
}

func newWire(c Config) (*wire, error) {
	c = c.withDefaults()
	u, err := c.parseURL()
	if err != nil {
		return nil, err
	}
	w := &wire{cfg: c, url: u, transport: newTransport(c)}
	w.log = c.Logger.With("upstream", c.Name)
	switch {
	case c.Transport != nil:
		w.via = c.Transport
	case c.Way == WayHTTP || c.Era == EraModern:
		w.via = w.transport
	default:
		w.older = newOlder(w)
		w.via = w.older
	}
	w.tracer = c.TracerProvider.Tracer(semconv.Scope)
	_, w.dark = c.TracerProvider.(noop.TracerProvider)
	w.attrs = fixedAttrs(c, &http.Request{URL: u})
	w.metrics = c.Metrics.Client(c.Name, w.attrs[1:]) // without the upstream, which is in every measurement
	return w, nil
}

// nextID makes the id of a request, which is also its progress token.
func (w *wire) nextID() string {
	return w.cfg.Replica + "-" + strconv.FormatInt(w.serial.Add(1), 10)
}

// slowContext bounds one request of a handshake.
func (w *wire) slowContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, w.cfg.StartTimeout, errSlow)
}

// maxErrorBody bounds what is read of a response that is an error anyway.
const maxErrorBody = 64 << 10

// newRequest makes an HTTP request of the protocol. Headers of the configuration
// come first, so that they cannot replace those of the protocol.
func (w *wire) newRequest(ctx context.Context, method string, to target, body []byte) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "", r)
	if err != nil {
		return nil, err
	}
	req.URL, req.Host = w.url, w.url.Host
	for name, values := range w.cfg.Headers {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	forward.Write(req)
	set(req.Header, "Accept", mcp.TypeAccept)
	if body != nil {
		set(req.Header, "Content-Type", mcp.TypeJSON)
	}
	if to.session != "" {
		set(req.Header, mcp.HeaderSession, to.session)
	}
	if mcp.LookupVersion(to.version).HeaderVersion { // X7
		set(req.Header, mcp.HeaderProtocolVersion, to.version)
	}
	return req, nil
}

func set(h http.Header, canonical, value string) { h[canonical] = []string{value} }

// tellServer posts a message that has no answer: a notification, or a response to a
// request of the server. Any 2xx will do: servers exist that say 200 instead of
// 202 (go-sdk #736).
func (w *wire) tellServer(ctx context.Context, to target, body []byte) error {
	req, err := w.newRequest(ctx, http.MethodPost, to, body)
	if err != nil {
		return err
	}
	return w.finishRequest(req, to)
}

// tellSoon is tellServer for a peer that has nothing to think about.
func (w *wire) tellSoon(ctx context.Context, to target, body []byte) error {
	ctx, cancel := w.slowContext(ctx)
	defer cancel()
	return w.tellServer(ctx, to, body)
}

// finishRequest performs a request of whose response only the status counts.
func (w *wire) finishRequest(req *http.Request, to target) error {
	resp, err := w.performRequest(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		if mediaType(resp.Header) != mcp.TypeSSE {
			drainBody(resp.Body)
		}
		return nil
	}
	return readStatus(resp, "", to.session != "")
}

// drainBody reads what little there may be, so that the connection can be used
// again. A stream, which some servers open even for a notification, is not
// waited for.
func drainBody(body io.Reader) { _, _ = io.CopyN(io.Discard, body, 4<<10) }

// acceptHead looks at the head of a response to a request: JSON and event streams
// become readable, everything else is a *statusError.
func (w *wire) acceptHead(resp *http.Response, to target, r *reading) (*inbound, error) {
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, readStatus(resp, r.id, to.session != "")
	}
	se := &statusError{status: resp.StatusCode}
	switch kind := mediaType(resp.Header); {
	case kind == mcp.TypeSSE && resp.StatusCode == http.StatusOK:
		return newStream(resp.Body, w.cfg.MaxResult, r), nil
	case kind == mcp.TypeJSON && resp.StatusCode == http.StatusOK:
		return readJSON(resp, w.cfg.MaxResult, r)
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		se.reason = "it accepted a request without answering it"
	case kind == "":
		se.reason = "the answer has no content type"
	default:
		se.reason = "the answer is neither JSON nor an event stream"
	}
	resp.Body.Close()
	return nil, se
}

// mediaType is the content type without its parameters.
func mediaType(h http.Header) string {
	v := h.Get("Content-Type")
	if v == mcp.TypeJSON || v == mcp.TypeSSE {
		return v
	}
	kind, _, err := mime.ParseMediaType(v)
	if err != nil {
		return v
	}
	return kind
}

// readStatus reads a response that is not a success. A JSON-RPC error in it
// counts if it is about our request: servers say with it what is wrong
// (protocol.md 2.5), whatever the content type they give it.
func readStatus(resp *http.Response, id string, session bool) error {
	e := &statusError{status: resp.StatusCode, session: session}
	e.retryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	e.challenges, e.token = forward.Challenge(resp)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil || len(body) == 0 {
		return e
	}
	m, err := jsonrpc.ParseLenient(jsonrpc.Readable(body))
	if err != nil || m.Kind != jsonrpc.ErrorResponse {
		return e
	}
	if m.ID.IsZero() || id != "" && m.ID.Equal(jsonrpc.StringID(id)) {
		e.rpc = m.Error
	}
	return e
}

// outliveCaller bounds a message that nobody waits for: a cancellation, the end of a session.
// It outlives the request that it is about.
func outliveCaller(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// target says in which words a request is put: of which version, in which
// session.
type target struct {
	era     mcp.Era
	version string // "" before it is negotiated
	session string // its id at a legacy server; "" for a server without sessions
	gen     int64
}

// The pauses between attempts.
const (
	firstRetry = 500 * time.Millisecond // where the server names no time
	maxRetry   = time.Minute            // whatever the server asks for
)

// backoffOf is how long to wait before the n-th attempt in a row, the first being
// 1: half a second, doubled each time and spread, so that those who lost the
// same server do not come back together.
func backoffOf(n int) time.Duration {
	d := min(firstRetry<<min(max(n-1, 0), 10), maxRetry)
	return d/2 + rand.N(d/2+1)
}

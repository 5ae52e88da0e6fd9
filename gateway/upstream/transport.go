package upstream

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/sse"
	"taskgate/internal/semconv"
	"taskgate/shim"

	"go.opentelemetry.io/otel/attribute"
)

// connectTimeout bounds dialling and the TLS handshake, each: a server that takes longer is
// down, whatever it does afterwards.
const connectTimeout = 10 * time.Second

// newTransport makes the connections of one upstream. What is set, and what is
// left unset on purpose:
//
//   - no cap on connections: it would keep the answer to a question from ever
//     being posted while every connection is taken by a parked call;
//   - no header timeout: a synchronous tool sends its header at the end;
//   - idle connections are given up before Node's 5s, so that a request rarely
//     meets a connection that the server is just closing;
//   - no compression, which would hold back events;
//   - keep-alives and HTTP/2 pings, to notice a peer that died silently.
func newTransport(c Config) *http.Transport {
	d := net.Dialer{
		Timeout: connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3,
		},
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         d.DialContext,
		TLSHandshakeTimeout: connectTimeout,
		TLSClientConfig:     c.TLS,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     4 * time.Second,
		ForceAttemptHTTP2:   true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: 15 * time.Second,
			PingTimeout:     15 * time.Second,
		},
		ReadBufferSize:  1 << 10,
		WriteBufferSize: 1 << 10,
	}
}

// newOlder makes what also reaches servers of the HTTP+SSE transport (protocol.md 5.2).
func newOlder(w *wire) *sse.Transport {
	return sse.New(sse.Config{
		URL: w.url, Base: w.transport, Always: w.cfg.Way == WaySSE,
		Idle: w.cfg.SessionIdle, MaxEvent: w.cfg.MaxResult,
		Patience: w.cfg.StartTimeout / 2, Logger: w.log,
	})
}

// isLocal reports whether sessions with the server are connections, as far as is known: they
// are of no use to other replicas.
func (w *wire) isLocal() bool { return w.older != nil && w.older.Speaks() }

// callerKey is the key of the context value that CallerOf reads.
type callerKey struct{}

// CallerOf says in whose name the request of this context is made, for a Transport that keeps
// callers apart.
func CallerOf(ctx context.Context) shim.Session {
	s, _ := ctx.Value(callerKey{}).(shim.Session)
	return s
}

// performRequest performs a request. No redirect is followed: a 307 would carry the body and the credentials to
// another place, and run a tool there.
func (w *wire) performRequest(req *http.Request) (*http.Response, error) {
	resp, err := w.via.RoundTrip(req)
	forward.Answered(req, resp)
	if next := forward.Renewed(req, resp); next != nil {
		resp, err = w.via.RoundTrip(next)
		forward.Answered(next, resp)
	}
	return resp, err
}

// dialProbe opens a connection to the server, or to the proxy that leads there, and closes
// it again.
func (w *wire) dialProbe(ctx context.Context) error {
	if w.cfg.Transport != nil {
		return w.cfg.Transport.Reach(ctx)
	}
	target := w.url
	if w.transport.Proxy != nil {
		proxy, err := w.transport.Proxy(&http.Request{URL: w.url})
		if err != nil {
			return err
		}
		if proxy != nil {
			target = proxy
		}
	}
	conn, err := w.transport.DialContext(ctx, "tcp", hostPort(target))
	if err != nil {
		return err
	}
	return conn.Close()
}

// hostPort is where a URL connects to.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// fixedAttrs are the attributes of every span of one upstream.
func fixedAttrs(c Config, req *http.Request) []attribute.KeyValue {
	if c.Transport != nil {
		return []attribute.KeyValue{semconv.Upstream.String(c.Name), semconv.Transport.String(semconv.TransportPipe)}
	}
	attrs := []attribute.KeyValue{
		semconv.Upstream.String(c.Name),
		semconv.Transport.String(semconv.TransportTCP),
		semconv.ServerAddress.String(req.URL.Hostname()),
	}
	if port, err := strconv.Atoi(req.URL.Port()); err == nil {
		attrs = append(attrs, semconv.ServerPort.Int(port))
	}
	return attrs
}

// awaitsSignIn reports whether a request is to be made again once the owner of its call has another
// token: the server has not taken the one that went out, and no client is there to be told.
func awaitsSignIn(ctx context.Context, err error) bool {
	se, ok := err.(*statusError)
	return ok && se.status == http.StatusUnauthorized && forward.AwaitsSignIn(ctx)
}

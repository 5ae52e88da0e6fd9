package streamable

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/transport"
)

// Config says where a server is, and how it is reached.
type Config struct {
	// URL is the server's MCP endpoint, http or https.
	URL *url.URL
	// TLS says how to connect to an https URL; nil trusts the authorities of the system.
	TLS *tls.Config
	// Header goes with every request.
	Header http.Header
	// Dial replaces the network; nil is that of the system.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// MaxResult bounds a JSON body, and one event of a stream, in bytes.
	MaxResult int64
}

// Transport reaches one server. It is safe for concurrent use. Its owner closes it.
type Transport struct {
	// Base performs the requests. It may be changed before the first one.
	Base *http.Transport
	cfg  Config
	// shorter performs the requests in place of Base once the server has said that it closes idle connections sooner.
	shorter atomic.Pointer[http.Transport]
	learns  sync.Mutex // held while shorter is replaced
}

var _ transport.Transport = (*Transport)(nil)

// connectTimeout bounds dialling and the TLS handshake, each: a slower server is down, whatever it does
// afterwards.
const connectTimeout = 10 * time.Second

// New makes a transport. The server is contacted when it is needed. The settings of net/http, and the ones
// left unset on purpose:
//
//   - no cap on connections: it would keep the answer to a question from ever being posted while every
//     connection is taken by a parked call;
//   - no header timeout: a synchronous tool sends its header at the end;
//   - idle connections are given up before Node's 5s, so that a request rarely meets a connection that the
//     server is just closing;
//   - no compression, which would hold back events;
//   - keep-alives and HTTP/2 pings, to notice a peer that died silently.
func New(c Config) *Transport {
	d := net.Dialer{
		Timeout: connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3,
		},
	}
	if c.Dial == nil {
		c.Dial = d.DialContext
	}
	return &Transport{cfg: c, Base: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         c.Dial,
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
	}}
}

// Request posts a request. JSON and event streams become readable; any other response is a
// *transport.StatusError.
func (t *Transport) Request(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	resp, err := t.performMessage(ctx, http.MethodPost, m)
	if err != nil {
		return nil, err
	}
	return t.readAnswer(resp, m)
}

// Notify posts a notification or a response. Any 2xx is a success: some servers say 200 instead of 202
// (go-sdk #736).
func (t *Transport) Notify(ctx context.Context, m *transport.Outgoing) error {
	return t.expectSuccess(ctx, http.MethodPost, m)
}

// Listen asks for an event stream by GET (X4, X12).
func (t *Transport) Listen(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	resp, err := t.performMessage(ctx, http.MethodGet, m)
	if err != nil {
		return nil, err
	}
	if !IsStream(resp) {
		return nil, t.ReadNoStream(resp, m)
	}
	return t.newStream(resp, m), nil
}

// EndSession tells the server that a session is over (X11).
func (t *Transport) EndSession(ctx context.Context, m *transport.Outgoing) error {
	return t.expectSuccess(ctx, http.MethodDelete, m)
}

// expectSuccess performs a request of whose response only the status counts.
func (t *Transport) expectSuccess(ctx context.Context, method string, m *transport.Outgoing) error {
	resp, err := t.performMessage(ctx, method, m)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return t.ReadStatus(resp, m)
	}
	Drain(resp.Body)
	return nil
}

// Drain reads the little that may be left of an unwanted body, so that the connection can be used again,
// and closes it. It waits endMost at most: servers end such a body right after the head.
func Drain(body io.ReadCloser) {
	timer := time.AfterFunc(endMost, func() { body.Close() }) // only the body: the exchange may go on
	defer timer.Stop()
	defer body.Close()
	_, _ = io.CopyN(io.Discard, body, 4<<10)
}

// endMost bounds the wait for the end of a response.
const endMost = 10 * time.Millisecond

// Reach opens a connection to the server, or to the proxy that leads there, and closes
// it again.
func (t *Transport) Reach(ctx context.Context) error {
	target := t.cfg.URL
	if t.Base.Proxy != nil {
		proxy, err := t.Base.Proxy(&http.Request{URL: t.cfg.URL})
		if err != nil {
			return err
		}
		if proxy != nil {
			target = proxy
		}
	}
	conn, err := t.Base.DialContext(ctx, "tcp", HostPort(target))
	if err != nil {
		return err
	}
	return conn.Close()
}

// HostPort is the address that a URL connects to.
func HostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Close closes the connections that no request uses.
func (t *Transport) Close(context.Context) error {
	t.CloseIdle()
	return nil
}

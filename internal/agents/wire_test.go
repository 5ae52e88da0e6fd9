package agents

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
)

// wire stands between an agent and the gateway. It keeps what the agent sends, and cuts connections.
type wire struct {
	mu       sync.Mutex
	addr     string // of the gateway
	requests []request
	version  string // of the protocol
	open     map[*http.Request]context.CancelFunc
}

// request is a message of the agent.
type request struct {
	method string // of JSON-RPC
	tool   string // of a tools/call
}

func newWire(addr string) *wire {
	return &wire{open: map[*http.Request]context.CancelFunc{}, addr: addr}
}

func (w *wire) sendTo(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addr = addr
}

// dial connects to the gateway. It tries three times more, a second apart, as HAProxy does: the gateway may be starting.
func (w *wire) dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	var dialer net.Dialer
	for range 3 {
		if c, err = dialer.DialContext(ctx, network, addr); err == nil {
			return c, nil
		}
		if err := work.Pause(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	return dialer.DialContext(ctx, network, addr)
}

// cut breaks all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cancel := range w.open {
		cancel()
	}
}

// sent is what the agent has sent so far.
func (w *wire) sent() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.requests)
}

// ServeHTTP implements http.Handler.
func (w *wire) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the agent has gone away
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	w.mu.Lock()
	var q request
	q.method, _ = jsonrpc.GetString(body, "method")
	params, _ := jsonrpc.Get(body, "params")
	if q.method == "tools/call" {
		q.tool, _ = jsonrpc.GetString(params, "name")
	}
	w.requests = append(w.requests, q)
	if v := r.Header.Get("MCP-Protocol-Version"); v != "" {
		w.version = v
	} else if v, ok := jsonrpc.GetString(params, "protocolVersion"); ok {
		w.version = v
	}
	w.open[r] = cancel
	addr := w.addr
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, r)
	}()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: addr}) },
		Transport:     &http.Transport{DialContext: w.dial, DisableKeepAlives: true},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // the connection breaks
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	proxy.ServeHTTP(rw, r)
}

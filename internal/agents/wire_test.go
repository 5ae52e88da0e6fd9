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
	"strings"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
)

// wire stands between an agent and the gateway. It keeps what the agent sends, cuts
// connections, and is a load balancer: it connects to the replicas in turn, and to the next
// one where the connection is refused.
type wire struct {
	mu       sync.Mutex
	replicas []string // their addresses
	next     int      // of them
	requests []request
	version  string // of the protocol
	open     map[*http.Request]context.CancelFunc
	broken   int // requests about tasks that a replica did not answer to the end
}

// request is a message of the agent.
type request struct {
	method string // of JSON-RPC
	tool   string // of a tools/call
}

func newWire(replicas ...string) *wire {
	return &wire{open: map[*http.Request]context.CancelFunc{}, replicas: replicas}
}

func (w *wire) sendTo(replicas ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replicas = replicas
}

// dial connects to the next replica that takes the connection. It tries three times more, a second apart,
// as HAProxy does.
func (w *wire) dial(ctx context.Context, network, _ string) (c net.Conn, err error) {
	w.mu.Lock()
	replicas, next := w.replicas, w.next
	w.next++
	w.mu.Unlock()
	var dialer net.Dialer
	for retry := range 4 {
		if retry > 0 {
			if err := work.Pause(ctx, time.Second); err != nil {
				return nil, err
			}
		}
		for i := range replicas {
			if c, err = dialer.DialContext(ctx, network, replicas[(next+i)%len(replicas)]); err == nil {
				return c, nil
			}
		}
	}
	return nil, err
}

// cut breaks all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cancel := range w.open {
		cancel()
	}
}

// brokenPolls is how many requests about tasks a replica did not answer to the end.
func (w *wire) brokenPolls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
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
	client := r.Context()
	ctx, cancel := context.WithCancel(client)
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
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.open, r)
		over := recover() // the proxy ends so where the answer does not arrive as a whole
		if over != nil && client.Err() == nil && strings.HasPrefix(q.method, "tasks/") {
			w.broken++ // before the client hears of it
		}
		w.mu.Unlock()
		if over != nil {
			panic(over)
		}
	}()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: "127.0.0.1"}) },
		Transport:     &http.Transport{DialContext: w.dial, DisableKeepAlives: true},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // the connection breaks
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	proxy.ServeHTTP(rw, r)
}

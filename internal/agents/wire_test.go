package agents

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	"taskgate/internal/jsonrpc"
)

// wire stands between an agent and the gateway, and keeps what the agent sends.
type wire struct {
	gateway  string // its address
	mu       sync.Mutex
	requests []request
}

// request is a message of the agent.
type request struct {
	method string // of JSON-RPC
	tool   string // of a tools/call
}

// ServeHTTP implements http.Handler.
func (w *wire) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the agent has gone away
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	w.mu.Lock()
	var q request
	q.method, _ = jsonrpc.GetString(body, "method")
	if params, ok := jsonrpc.Get(body, "params"); ok && q.method == "tools/call" {
		q.tool, _ = jsonrpc.GetString(params, "name")
	}
	w.requests = append(w.requests, q)
	target := &url.URL{Scheme: "http", Host: w.gateway}
	w.mu.Unlock()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(target) },
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // the connection breaks
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	proxy.ServeHTTP(rw, r)
}

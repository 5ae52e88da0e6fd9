package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestReach(t *testing.T) {
	requests := make(chan string, 8)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requests <- r.Method }))
	reach := func(raw string, proxy string) error {
		t.Helper()
		h, err := New(Config{Name: "up", URL: raw})
		must(t, err)
		baseOf(h).Proxy = nil
		if proxy != "" {
			u, err := url.Parse(proxy)
			must(t, err)
			baseOf(h).Proxy = http.ProxyURL(u)
		}
		return h.Reach(t.Context())
	}
	check(t, reach(server.URL+"/mcp", ""))
	// Behind a proxy, only the proxy can be looked for.
	check(t, reach("http://server.invalid/mcp", server.URL))
	server.Close()
	var refused *net.OpError
	if err := reach(server.URL+"/mcp", ""); !errors.As(err, &refused) {
		t.Errorf("after the end of the server: %v", err)
	}
	select {
	case method := <-requests:
		t.Errorf("the server got a %s", method)
	default:
	}
	h, err := New(Config{Name: "up", URL: server.URL})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Reach(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

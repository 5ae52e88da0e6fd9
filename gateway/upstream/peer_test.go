package upstream

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"taskgate/internal/pool"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/sdkpeer"
)

func TestMain(m *testing.M) {
	pool.OverwriteReturned()
	debug.SetGCPercent(400) // most tests are short, and make a client and a server anew
	goleak.VerifyTestMain(m)
}

// counts are what the tools of a peer record.
type counts struct {
	mu   sync.Mutex
	ran  map[string]int
	gone map[string]int
}

func (c *counts) add(m *map[string]int, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[key]++
}

func (c *counts) get(m *map[string]int) func(string) int {
	return func(key string) int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return (*m)[key]
	}
}

// sdkServer is a server of the go-sdk with the tools of the suite.
func sdkServer(c *counts, modern bool, stop <-chan struct{}) *mcp.Server {
	return sdkpeer.New(sdkpeer.Options{
		Modern: modern, Stop: stop, Began: func(key string) { c.add(&c.ran, key) }, Cancelled: func(key string) { c.add(&c.gone, key) },
	})
}

// sdkPeer dials a go-sdk server behind its own handler.
func sdkPeer(opts mcp.StreamableHTTPOptions, era EraChoice, modern bool, adjust func(*shimtest.Peer)) shimtest.Dial {
	return func(t *testing.T) *shimtest.Peer {
		c := &counts{}
		stop := make(chan struct{})
		srv := sdkServer(c, modern, stop)
		web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &opts))
		t.Cleanup(func() { // before Close, which waits for the handlers
			for ss := range srv.Sessions() {
				_ = ss.Close()
			}
			web.Close()
		})
		t.Cleanup(func() { close(stop) })
		h := newTestClient(t, Config{URL: web.URL, Era: era})
		p := &shimtest.Peer{Upstream: h, Runs: c.get(&c.ran), Cancelled: c.get(&c.gone)}
		p.Change = func() { sdkpeer.Change(srv) }
		adjust(p)
		return p
	}
}

// newTestClient makes an upstream client that is closed with the test.
func newTestClient(t testing.TB, c Config) *ServerClient {
	t.Helper()
	c.Replica = "r1"
	h, err := New(c)
	must(t, err)
	t.Cleanup(func() {
		if err := h.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return h
}

func TestSuiteOverSDK(t *testing.T) {
	for _, c := range []struct {
		name   string
		opts   mcp.StreamableHTTPOptions
		modern bool
		adjust func(*shimtest.Peer)
	}{
		{"Stateful", mcp.StreamableHTTPOptions{}, false, func(p *shimtest.Peer) { p.Asks, p.Detaches = true, true }},
		{"StatefulResumable", mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}, false, func(p *shimtest.Peer) { p.Asks, p.Detaches, p.Resumes = true, true, true }},
		{"StatefulJSON", mcp.StreamableHTTPOptions{JSONResponse: true}, false, func(p *shimtest.Peer) { p.AsksAside, p.Silent, p.Detaches = true, true, true }},
		{"StatelessLegacy", mcp.StreamableHTTPOptions{Stateless: true}, false, func(p *shimtest.Peer) { p.Detaches, p.Deaf, p.Change = true, true, nil }},
		{"Modern", mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}, true, func(p *shimtest.Peer) { p.Relays = true }},
		{"ModernJSON", mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true, PropagateRequestCancellation: true}, true, func(p *shimtest.Peer) { p.Relays, p.Silent = true, true; p.Change = nil }},
	} {
		t.Run(c.name, func(t *testing.T) { shimtest.Upstream(t, sdkPeer(c.opts, eraOf(c.name), c.modern, c.adjust)) })
	}
}

// eraOf is auto except where the server would be taken for a modern one.
func eraOf(name string) EraChoice {
	if name == "StatelessLegacy" {
		return EraLegacy
	}
	return EraAuto
}

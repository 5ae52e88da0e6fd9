package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"taskgate/shim/shimtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// args are the arguments of all tools of the suite.
type args struct {
	Key  string `json:"key"`
	Text string `json:"text"`
	N    int    `json:"n"`
}

func reply(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func toolError(s string) *mcp.CallToolResult {
	r := reply(s)
	r.IsError = true
	return r
}

// sdkServer is a server of the go-sdk with the tools of the suite.
func sdkServer(c *counts, modern bool, stop <-chan struct{}) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "peer", Version: "1"}, nil)
	add := func(name string, run func(context.Context, *mcp.CallToolRequest, args) *mcp.CallToolResult) {
		srv.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var a args
				if err := json.Unmarshal(r.Params.Arguments, &a); err != nil {
					return nil, err
				}
				c.add(&c.ran, a.Key)
				return run(ctx, r, a), nil
			})
	}
	add("echo", func(_ context.Context, _ *mcp.CallToolRequest, a args) *mcp.CallToolResult { return reply(a.Text) })
	add("fail", func(context.Context, *mcp.CallToolRequest, args) *mcp.CallToolResult { return toolError("no") })
	add("steps", func(ctx context.Context, r *mcp.CallToolRequest, a args) *mcp.CallToolResult {
		for i := range a.N {
			p := &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Message: fmt.Sprint(i + 1), Progress: float64(i + 1), Total: float64(a.N)}
			if err := r.Session.NotifyProgress(ctx, p); err != nil {
				return toolError(err.Error())
			}
		}
		return reply("done")
	})
	add("wait", func(ctx context.Context, _ *mcp.CallToolRequest, a args) *mcp.CallToolResult {
		select {
		case <-ctx.Done():
			c.add(&c.gone, a.Key)
		case <-stop:
		}
		return reply("over")
	})
	add("log", func(ctx context.Context, r *mcp.CallToolRequest, a args) *mcp.CallToolResult {
		for _, level := range []mcp.LoggingLevel{"debug", "error"} {
			if err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Data: "x"}); err != nil {
				return toolError(err.Error())
			}
		}
		return reply("done")
	})
	add("ask", func(ctx context.Context, r *mcp.CallToolRequest, a args) *mcp.CallToolResult {
		return ask(ctx, r, modern)
	})
	return srv
}

func ask(ctx context.Context, r *mcp.CallToolRequest, modern bool) *mcp.CallToolResult {
	q := &mcp.ElicitParams{Message: "who?", Mode: "form", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}
	if modern {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"name": q}}
	}
	res, err := r.Session.Elicit(ctx, q)
	if err != nil {
		return toolError(err.Error())
	}
	return reply(fmt.Sprint(res.Content["name"]))
}

// sdkPeer dials a go-sdk server behind its own handler.
func sdkPeer(opts mcp.StreamableHTTPOptions, era Era, modern bool, adjust func(*shimtest.Peer)) shimtest.Dial {
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
		p.Change = func() {
			srv.AddTool(&mcp.Tool{Name: "new", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
		}
		adjust(p)
		return p
	}
}

// newTestClient makes an upstream client that is closed with the test.
func newTestClient(t testing.TB, c Config) *HTTP {
	t.Helper()
	c.Replica = "r1"
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
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
func eraOf(name string) Era {
	if name == "StatelessLegacy" {
		return EraLegacy
	}
	return EraAuto
}

package legacy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// legacyStack is the gateway on a socket, between real peers.
type legacyStack struct {
	url     string // of the endpoint
	server  *sdk.Server
	session *stackEvents
	gateway *gateway.Gateway
}

// stackEvents are what happens in the upstream server.
type stackEvents struct {
	started   chan string // a tool has begun
	cancelled chan string // its context ended
	proceed   chan struct{}
	subs      chan string
}

// newLegacyStack starts a server of the go-sdk, stateful or, with modern, one that
// is spoken to in the modern era only, and the gateway in front of it. Whatever is still
// running at the end fails the test.
func newLegacyStack(t *testing.T, modern bool, change func(*config.Config), limits ...gateway.Limits) *legacyStack {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	server, ev := newPeer()
	web := serveSDK(t, server, &sdk.StreamableHTTPOptions{Stateless: modern, PropagateRequestCancellation: modern}, nil)
	era := upstream.EraAuto
	if modern { // it has a legacy era without sessions as well
		era = upstream.EraModern
	}
	up, err := upstream.New(upstream.Config{Name: "up", URL: web, Replica: "r", Era: era})
	if err != nil {
		t.Fatal(err)
	}
	g, url := serveGateway(t, up, change, limits...)
	return &legacyStack{url: url, server: server, session: ev, gateway: g}
}

// serveGateway puts a gateway with this one upstream client on a socket.
func serveGateway(t *testing.T, up *upstream.HTTP, change func(*config.Config), limits ...gateway.Limits) (*gateway.Gateway, string) {
	t.Helper()
	c := config.Default()
	c.Upstreams = []*config.Upstream{config.NewUpstream("up", "http://up.example/")}
	if change != nil {
		change(c)
	}
	logger := slog.New(slog.DiscardHandler)
	sh, err := shim.New(shim.Options{
		Replica: "r", Store: noStore{}, Logger: logger,
		Servers: map[string]shim.Server{"up": {
			Upstream: up,
			Policy:   func(string) shim.Policy { return shim.Policy{Tasks: shim.Never, Timeout: time.Hour} },
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	limits = append(limits, gateway.Limits{})
	g, err := gateway.New(gateway.Options{Config: c, Limits: limits[0], Shim: sh, Upstreams: map[string]upstream.Client{"up": up}, Logger: logger,
		Sessions: wiretest.OpenSessions(t, c.MaxSessions, c.SessionIdle)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	front := httptest.NewServer(g.Handler())
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), wiretest.Patience)
		defer cancel()
		stop()
		ended := <-done
		if errors.Is(ended, context.Canceled) {
			ended = nil
		}
		err := errors.Join(ended, g.Close(bounded), sh.Close(bounded))
		front.Close()
		if err := errors.Join(err, up.Close(bounded)); err != nil {
			t.Error(err)
		}
	})
	return g, front.URL + "/up/mcp"
}

// serveSDK puts a server of the go-sdk on a socket, perhaps with something in front of it.
func serveSDK(t *testing.T, server *sdk.Server, o *sdk.StreamableHTTPOptions, front func(http.Handler) http.Handler) (url string) {
	t.Helper()
	var handler http.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, o)
	if front != nil {
		handler = front(handler)
	}
	web := httptest.NewServer(handler)
	t.Cleanup(func() {
		for ss := range server.Sessions() {
			_ = ss.Close() // some have been ended by then
		}
		web.Close()
	})
	return web.URL
}

// addTool adds a tool that says a text, or has gone wrong.
func addTool(s *sdk.Server, name string, run func(context.Context, *sdk.CallToolRequest) (string, error)) {
	s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		text, err := run(ctx, r)
		if err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil
	})
}

// newPeer is an ordinary server with everything a client may ask for.
func newPeer() (*sdk.Server, *stackEvents) {
	ev := &stackEvents{
		started: make(chan string, 16), cancelled: make(chan string, 16),
		proceed: make(chan struct{}), subs: make(chan string, 16),
	}
	s := sdk.NewServer(&sdk.Implementation{Name: "peer", Version: "1.2"}, &sdk.ServerOptions{
		Instructions: "Ask nicely.",
		CompletionHandler: func(context.Context, *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{"red"}}}, nil
		},
		SubscribeHandler: func(_ context.Context, r *sdk.SubscribeRequest) error {
			ev.subs <- r.Params.URI
			return nil
		},
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
		Capabilities:       &sdk.ServerCapabilities{Logging: &sdk.LoggingCapabilities{}},
	})
	tool := func(name string, run func(context.Context, *sdk.CallToolRequest) error) {
		addTool(s, name, func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
			return name + " " + string(r.Params.Arguments), run(ctx, r)
		})
	}
	tool("echo", func(context.Context, *sdk.CallToolRequest) error { return nil })
	tool("steps", steps)
	tool("wait", func(ctx context.Context, _ *sdk.CallToolRequest) error {
		ev.started <- "wait"
		select {
		case <-ctx.Done():
			ev.cancelled <- "wait"
			return ctx.Err()
		case <-ev.proceed:
			return nil
		}
	})
	s.AddPrompt(&sdk.Prompt{Name: "greet"}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: "hello"}}}}, nil
	})
	s.AddResource(&sdk.Resource{URI: "test://a", Name: "a"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://a", Text: "body"}}}, nil
	})
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "test://{x}", Name: "t"}, nil)
	return s, ev
}

// steps reports progress and logs on the way.
func steps(ctx context.Context, r *sdk.CallToolRequest) error {
	for i := range 3 {
		p := &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Total: 3, Message: fmt.Sprint("step ", i+1)}
		if p.ProgressToken != nil {
			if err := r.Session.NotifyProgress(ctx, p); err != nil {
				return err
			}
		}
	}
	for _, level := range []sdk.LoggingLevel{"debug", "error"} {
		if err := r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: level, Data: "log"}); err != nil {
			return err
		}
	}
	return nil
}

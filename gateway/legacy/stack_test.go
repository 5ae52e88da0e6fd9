package legacy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/wiretest"
	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/engine"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace/noop"
)

// legacyStack is the gateway on a socket, between real peers.
type legacyStack struct {
	url     string // of the endpoint
	server  *sdk.Server
	session *stackEvents
}

// stackEvents are what happens in the upstream server.
type stackEvents struct {
	started   chan string // a tool has begun
	cancelled chan string // its context ended
	proceed   chan struct{}
	subs      chan string
}

// newLegacyStack starts a server of the go-sdk, stateful or, with modern, one that
// is spoken to in the modern era only, and the gateway in front of it.
func newLegacyStack(t *testing.T, modern bool, change func(*config.Config)) *legacyStack {
	t.Helper()
	server, ev := newPeer()
	web := serveSDK(t, server, &sdk.StreamableHTTPOptions{Stateless: modern, PropagateRequestCancellation: modern}, nil)
	era := upstream.EraAuto
	if modern { // it has a legacy era without sessions as well
		era = upstream.EraModern
	}
	return &legacyStack{url: startAlone(t, upstream.Config{URL: web, Era: era}, change).url, server: server, session: ev}
}

// parts are what a replica is made of, besides its configuration.
type parts struct {
	server  upstream.Config // what it tells, all of the replica tells
	idle    bool            // nobody runs the shim
	shim    func(*engine.Options)
	gateway func(*gateway.Options)
}

// replica is one gateway on a socket.
type replica struct {
	*gateway.Gateway
	url  string // of the endpoint
	shim *engine.Shim
}

// newConfig is a configuration with one server, and a store in memory.
func newConfig(change func(*config.Config)) *config.Config {
	c := config.Default()
	c.Store = config.StoreEmbedded
	c.Upstreams = []*config.Upstream{config.NewUpstream("up", "http://up.example/")}
	if change != nil {
		change(c)
	}
	return c
}

// startReplica starts a gateway with a store and an upstream client of its own. It goes on until the test ends.
func startReplica(t *testing.T, name string, c *config.Config, p parts) *replica {
	t.Helper()
	logger, traces := p.server.Logger, p.server.TracerProvider
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if traces == nil {
		traces = noop.NewTracerProvider()
	}
	store := wiretest.Must(redisstore.Open(t.Context(), c.Store, redisstore.Options{Logger: logger, Metrics: p.server.Metrics}))(t)
	if p.server.Name, p.server.Replica = "up", name; !p.idle || !c.OwnsStore() {
		p.server.Sessions = store.UpstreamSessions("up")
	}
	up := wiretest.Must(upstream.New(p.server))(t)
	policy := func(tool config.Tool) shim.Policy {
		return shim.Policy{
			Tasks: shim.Mode(tool.Tasks), Grace: tool.Grace, TTL: tool.TTL, PollInterval: tool.PollInterval, Timeout: tool.Timeout,
			EarlyInput: shim.Early(tool.EarlyInput), InputTimeout: tool.InputTimeout,
		}
	}
	of := engine.Options{
		Replica: shim.Replica(name), Store: store, Logger: logger, Tracer: traces.Tracer("test"), CheckAnswer: reading.CheckAnswer, Metrics: p.server.Metrics,
		Servers: map[string]shim.Server{"up": {
			Upstream: up, Other: policy(c.Upstreams[0].Defaults),
			Policy: func(tool string, says shim.Hints) shim.Policy { return policy(c.Upstreams[0].Tool(tool, says)) },
		}},
	}
	if p.shim != nil {
		p.shim(&of)
	}
	sh := wiretest.Must(engine.New(of))(t)
	front := gateway.Options{
		Config: c, Shim: sh, Upstreams: map[string]upstream.Client{"up": up}, Logger: logger, TracerProvider: traces, Metrics: p.server.Metrics,
		Sessions: store.Sessions(sh.Heart, c.Limits.Within(0).MaxSessions, c.SessionIdle).PerOwner(c.MaxSessionsPerOwner),
	}
	if p.gateway != nil {
		p.gateway(&front)
	}
	g := wiretest.Must(gateway.New(front))(t)
	ctx, stop := context.WithCancel(context.Background())
	loops := []func(context.Context) error{g.Run, sh.Run}
	if p.idle {
		loops = loops[:1]
	}
	done := make(chan error, len(loops))
	for _, run := range loops {
		go func() { done <- run(ctx) }()
	}
	web := httptest.NewServer(g.Handler())
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), wiretest.Patience)
		defer cancel()
		err := errors.Join(g.Close(bounded), sh.Close(bounded))
		stop()
		for range loops {
			if e := <-done; !errors.Is(e, context.Canceled) {
				err = errors.Join(err, e)
			}
		}
		web.Close()
		wiretest.Check(t, errors.Join(err, up.Close(bounded), store.Close()))
	})
	return &replica{g, web.URL + "/up/mcp", sh}
}

// startAlone starts a gateway whose shim never makes a task, in front of this server.
func startAlone(t *testing.T, server upstream.Config, change func(*config.Config)) *replica {
	t.Helper()
	return startReplica(t, "r", newConfig(change), parts{server: server, idle: true, shim: func(o *engine.Options) {
		never := shim.Policy{Tasks: shim.Never, Timeout: time.Hour}
		o.Store = noStore{}
		o.Servers["up"] = shim.Server{Upstream: o.Servers["up"].Upstream, Policy: func(string, shim.Hints) shim.Policy { return never }}
	}})
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

// tableOf is the session table of a gateway, which only the gateway has.
func tableOf(g *gateway.Gateway) *legacy.Table {
	return (*legacy.Table)(reflect.ValueOf(g).Elem().FieldByName("sessions").UnsafePointer())
}

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
)

// serve serves a handler until the test ends. It does not wait for calls then: one whose gateway was
// killed, or that never heard that it was cancelled, may wait for ever.
func serve(t *testing.T, h http.Handler) (url string) {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(func() { _ = web.Config.Close() })
	return web.URL
}

// newPeer is a server of the Go SDK.
func newPeer(name string) *sdk.Server {
	return sdk.NewServer(&sdk.Implementation{Name: name, Version: "1"}, nil)
}

// streamable is a server of the Go SDK over HTTP.
func streamable(server *sdk.Server, options *sdk.StreamableHTTPOptions) http.Handler {
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, options)
}

// resumable are the options of a server whose streams can be resumed.
func resumable() *sdk.StreamableHTTPOptions {
	return &sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)}
}

// says is a result that has one text.
func says(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

// addTool gives a server a tool that takes any arguments.
func addTool(server *sdk.Server, name string, run sdk.ToolHandler) {
	server.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, run)
}

// addWords is addTool for a tool that answers with a text.
func addWords(server *sdk.Server, name string, run func(context.Context, *sdk.CallToolRequest) string) {
	addTool(server, name, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return says(run(ctx, r)), nil
	})
}

// askName is the form that tools ask for a name by.
func askName(message string) *sdk.ElicitParams {
	return &sdk.ElicitParams{Mode: "form", Message: message,
		RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)}
}

// The servers of the tests have the same tools: echo, steps (which reports progress), slow, hang (until
// it is cancelled, which it notes in a directory), ask, fail, broken and large. Those of the TypeScript
// SDKs are in testdata/node.
const (
	stepLength = 250 * time.Millisecond
	slowLength = 800 * time.Millisecond
	largeSize  = 4 << 20
	brokenCode = -32010
)

// mark notes what happened to the call with this key, and marked reports whether it has.
func mark(marks, what, key string) {
	_ = os.WriteFile(filepath.Join(marks, what+"-"+key), nil, 0o600)
}

func marked(marks, what, key string) bool { return exists(filepath.Join(marks, what+"-"+key)) }

// seen waits until the client of a call with a key has seen progress, if it ever does.
func seen(ctx context.Context, marks, key string) {
	for i := 0; i < 100 && key != "" && ctx.Err() == nil && !marked(marks, "noted", key); i++ {
		pause(ctx, stepLength/5)
	}
}

// pause is a pause that ends early with the call.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// hanging are the calls of the tool hang in this process, which note how they end.
var hanging sync.WaitGroup

// everyday is a server of the Go SDK, in whichever era it is spoken to, or, if it is modern, one that
// refuses to be initialized. What it does is noted in a directory.
func everyday(marks string, modern bool, options *sdk.ServerOptions) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "everyday", Version: "1"}, options)
	if modern {
		s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
			return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
				if method == mcp.MethodInitialize {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this server speaks 2026-07-28 only"}
				}
				return next(ctx, method, req)
			}
		})
	}
	type args struct {
		Text, Key string
		N         int
	}
	for name, run := range map[string]func(context.Context, *sdk.CallToolRequest, args) (*sdk.CallToolResult, error){
		"echo": func(_ context.Context, r *sdk.CallToolRequest, a args) (*sdk.CallToolResult, error) {
			noteIn(marks, "echo", calledIn(r).String())
			return says(a.Text), nil
		},
		"steps": func(ctx context.Context, r *sdk.CallToolRequest, a args) (*sdk.CallToolResult, error) {
			n := cmp.Or(a.N, 3)
			for i := range n {
				if token := r.Params.GetProgressToken(); token != nil {
					p := &sdk.ProgressNotificationParams{ProgressToken: token, Message: fmt.Sprint("step ", i+1), Progress: float64(i + 1), Total: float64(n)}
					if err := r.Session.NotifyProgress(ctx, p); err != nil {
						return nil, err
					}
				}
				pause(ctx, stepLength)
			}
			seen(ctx, marks, a.Key)
			return says("walked"), nil
		},
		"slow": func(ctx context.Context, _ *sdk.CallToolRequest, _ args) (*sdk.CallToolResult, error) {
			pause(ctx, slowLength)
			return says("slept"), nil
		},
		"hang": func(ctx context.Context, _ *sdk.CallToolRequest, a args) (*sdk.CallToolResult, error) {
			hanging.Add(1)
			defer hanging.Done()
			mark(marks, "ran", a.Key)
			<-ctx.Done()
			mark(marks, "gone", a.Key)
			return says("late"), nil
		},
		// The SDK asks legacy clients by a request, and calls again.
		"ask": func(_ context.Context, r *sdk.CallToolRequest, _ args) (*sdk.CallToolResult, error) {
			answer, ok := r.Params.InputResponses["who"].(*sdk.ElicitResult)
			if !ok {
				return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"who": askName("who?")}}, nil
			}
			return says(fmt.Sprint("hello ", answer.Content["name"])), nil
		},
		"fail": func(context.Context, *sdk.CallToolRequest, args) (*sdk.CallToolResult, error) {
			result := says("failed on purpose")
			result.IsError = true
			return result, nil
		},
		"broken": func(context.Context, *sdk.CallToolRequest, args) (*sdk.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: brokenCode, Message: "broken on purpose"}
		},
		"large": func(context.Context, *sdk.CallToolRequest, args) (*sdk.CallToolResult, error) {
			return says(strings.Repeat("x", largeSize)), nil
		},
		"environment": func(context.Context, *sdk.CallToolRequest, args) (*sdk.CallToolResult, error) {
			cwd, _ := os.Getwd()
			return says(cwd + " " + os.Getenv("DESKTOP_SECRET")), nil
		},
		"change": func(context.Context, *sdk.CallToolRequest, args) (*sdk.CallToolResult, error) {
			addWords(s, "new", func(context.Context, *sdk.CallToolRequest) string { return "new" })
			return says("changed"), nil
		},
	} {
		addTool(s, name, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var a args
			if len(r.Params.Arguments) > 0 {
				if err := json.Unmarshal(r.Params.Arguments, &a); err != nil {
					return nil, err
				}
			}
			return run(ctx, r, a)
		})
	}
	return s
}

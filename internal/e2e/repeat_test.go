package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/redistest"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// silentServer has a tool that says nothing for a time, and counts its calls and those that were cancelled.
type silentServer struct {
	url              string
	calls, cancelled atomic.Int64
}

func startSilent(t *testing.T, takes time.Duration) *silentServer {
	t.Helper()
	s := &silentServer{}
	server := mcp.NewServer(&mcp.Implementation{Name: "silent", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "silent", Description: "Takes long."}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{ N int }) (*mcp.CallToolResult, any, error) {
		s.calls.Add(1)
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			s.cancelled.Add(1)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	listener := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(func() {
		listener.CloseClientConnections()
		listener.Close()
	})
	s.url = listener.URL
	return s
}

// repeating is what a script prints of a program that calls again.
type repeating struct {
	Failures []string
	Result   json.RawMessage
}

// The clients of the SDKs give up a call after a minute, as they do by default, and their program calls again: the server
// has one call, and the program the result.
func TestRepeatOfSDKs(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	const takes, patience = 100 * time.Second, time.Minute
	arguments := map[string]any{"N": 1}
	again := func(call func(ctx context.Context) (any, error)) (r repeating) {
		for range 4 {
			ctx, stop := context.WithTimeout(t.Context(), patience)
			result, err := call(ctx)
			stop()
			if err == nil {
				r.Result, _ = json.Marshal(result)
				return r
			}
			r.Failures = append(r.Failures, err.Error())
		}
		return r
	}
	node := func(mode string) func(t *testing.T, url string) repeating {
		return func(t *testing.T, url string) (r repeating) {
			runNodeInto(t, &r, "repeat.mjs", "URL="+url, "MODE="+mode, env(t, "silent", arguments))
			return r
		}
	}
	goSDK := func(version string) func(t *testing.T, url string) repeating {
		return func(t *testing.T, url string) repeating {
			s := connectAs(t, url, version)
			return again(func(ctx context.Context) (any, error) {
				return s.CallTool(ctx, &mcp.CallToolParams{Name: "silent", Arguments: arguments})
			})
		}
	}
	mcpGo := func(version string) func(t *testing.T, url string) repeating {
		return func(t *testing.T, url string) repeating {
			c, _ := connectMCPGo(t, roadOfMCPGo(t, url, version), version)
			call := mcpgo.CallToolRequest{}
			call.Params.Name, call.Params.Arguments = "silent", arguments
			return again(func(ctx context.Context) (any, error) { return c.CallTool(ctx, call) })
		}
	}
	for name, client := range map[string]func(t *testing.T, url string) repeating{
		"TypeScript SDK 1.x":             node(""),
		"TypeScript SDK 2.x, 2025-11-25": node("legacy"),
		"TypeScript SDK 2.x, 2026-07-28": node("auto"),
		"Go SDK, 2025-11-25":             goSDK("2025-11-25"),
		"Go SDK, 2026-07-28":             goSDK("2026-07-28"),
		"mcp-go, 2025-11-25":             mcpGo("2025-11-25"),
		"mcp-go, 2026-07-28":             mcpGo("2026-07-28"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startSilent(t, takes)
			g := startGateway(t, "--upstream", server.url)
			got := client(t, g.url)
			if got.Result == nil || len(got.Failures) != 1 || server.calls.Load() != 1 {
				t.Errorf("%d calls at the server; the program has %s after %q\n%s", server.calls.Load(), got.Result, got.Failures, g.Output())
			}
		})
	}
}

// A call that its client gave up goes on at the replica that runs it, or at the one that adopts it, and is found at
// every other.
func TestRepeatOverReplicas(t *testing.T) {
	t.Parallel()
	server := startSilent(t, 40*time.Second)
	yaml := fmt.Sprintf("store: %s\nheartbeat: 1s\nupstreams:\n  - {name: slow, path: /mcp, url: %s}\n", redistest.Start(t).URL(), server.url)
	a, b := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	session := connectAs(t, a.url, "2025-11-25")
	other := connectAs(t, b.url, "2025-11-25")
	call := func(s *goSession, limit time.Duration) (*mcp.CallToolResult, error) {
		ctx, stop := context.WithTimeout(t.Context(), limit)
		defer stop()
		return s.CallTool(ctx, &mcp.CallToolParams{Name: "silent", Arguments: map[string]any{"N": 1}})
	}
	if _, err := call(session, 22*time.Second); err == nil {
		t.Fatal("answered too soon")
	}
	got := make(chan error, 1)
	go func() { // the same call in another session is another call
		_, err := call(other, time.Minute)
		got <- err
	}()
	result, err := call(session, time.Minute)
	if err != nil || goText(t, result) != "done" || result.Meta["dev.taskgate/picked-up"] == nil {
		t.Errorf("%+v, %v", result, err)
	}
	if err := <-got; err != nil || server.calls.Load() != 2 || server.cancelled.Load() != 0 {
		t.Errorf("%v; %d calls at the server, %d of them cancelled", err, server.calls.Load(), server.cancelled.Load())
	}
}

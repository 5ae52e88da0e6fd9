package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/proc"
)

// sseServer is a server of HTTP+SSE, and which of its tools do what. A tool without a name is
// one that it does not have.
type sseServer struct {
	url                                  string
	echo, steps, fail, ask, large, stuck sseCall
	sample, roots                        sseCall
	cancelled                            func() bool // stuck was cancelled; nil: nobody can tell
	open                                 func() int  // how many connections there are
}

// sseCall is a call of a tool.
type sseCall struct {
	name string
	args map[string]any
}

var none = map[string]any{}

// largeText is what the tool large answers with.
var largeText = strings.Repeat("x", 4<<20)

// startSDKOverSSE is a server of the Go SDK.
func startSDKOverSSE(t *testing.T) *sseServer {
	t.Helper()
	var cancelled atomic.Bool
	stop := make(chan struct{})
	srv := mcp.NewServer(&mcp.Implementation{Name: "go-sdk", Version: "1"}, nil)
	add := func(name string, run func(context.Context, *mcp.CallToolRequest) (string, error)) {
		srv.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			text, err := run(ctx, r)
			if err != nil {
				text = err.Error()
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, IsError: err != nil}, nil
		})
	}
	add("echo", func(_ context.Context, r *mcp.CallToolRequest) (string, error) {
		return string(r.Params.Arguments), nil
	})
	add("steps", func(ctx context.Context, r *mcp.CallToolRequest) (string, error) {
		for i := range 4 {
			p := &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Message: fmt.Sprint("step ", i), Progress: float64(i + 1), Total: 4}
			if err := r.Session.NotifyProgress(ctx, p); err != nil {
				return "", err
			}
			<-time.After(200 * time.Millisecond) // longer than the grace, in all
		}
		return "stepped", nil
	})
	add("fail", func(context.Context, *mcp.CallToolRequest) (string, error) { return "", fmt.Errorf("on purpose") })
	add("ask", func(ctx context.Context, r *mcp.CallToolRequest) (string, error) {
		res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "who?", Mode: "form", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(res.Action, res.Content), nil
	})
	add("large", func(context.Context, *mcp.CallToolRequest) (string, error) { return largeText, nil })
	add("stuck", func(ctx context.Context, _ *mcp.CallToolRequest) (string, error) {
		select { // the SDK lets it go on when the connection is gone
		case <-ctx.Done():
			cancelled.Store(true)
		case <-stop:
		}
		return "", ctx.Err()
	})
	s := ordinarySSE(t, mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return srv }, nil))
	t.Cleanup(func() { close(stop) })
	s.ask, s.cancelled = sseCall{"ask", none}, cancelled.Load
	s.open = func() int { return len(slices.Collect(srv.Sessions())) }
	return s
}

// startMCPGoOverSSE is a server of mcp-go, which cannot ask over HTTP+SSE.
func startMCPGoOverSSE(t *testing.T) *sseServer {
	t.Helper()
	srv := server.NewMCPServer("mcp-go", "1", server.WithToolCapabilities(true))
	add := func(name string, run func(context.Context, mcpgo.CallToolRequest) *mcpgo.CallToolResult) {
		srv.AddTool(mcpgo.NewTool(name), func(ctx context.Context, r mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
			return run(ctx, r), nil
		})
	}
	add("echo", func(_ context.Context, r mcpgo.CallToolRequest) *mcpgo.CallToolResult {
		return mcpgo.NewToolResultText(fmt.Sprint(r.GetArguments()))
	})
	add("steps", func(ctx context.Context, r mcpgo.CallToolRequest) *mcpgo.CallToolResult {
		for i := range 4 {
			_ = srv.SendNotificationToClient(ctx, "notifications/progress", map[string]any{
				"progressToken": r.Params.Meta.ProgressToken, "progress": i + 1, "total": 4, "message": fmt.Sprint("step ", i),
			})
			<-time.After(200 * time.Millisecond) // longer than the grace, in all; and its answer may overtake progress
		}
		return mcpgo.NewToolResultText("stepped")
	})
	add("fail", func(context.Context, mcpgo.CallToolRequest) *mcpgo.CallToolResult {
		return mcpgo.NewToolResultError("on purpose")
	})
	add("large", func(context.Context, mcpgo.CallToolRequest) *mcpgo.CallToolResult {
		return mcpgo.NewToolResultText(largeText)
	})
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	add("stuck", func(ctx context.Context, _ mcpgo.CallToolRequest) *mcpgo.CallToolResult {
		select {
		case <-ctx.Done():
		case <-stop:
		}
		return mcpgo.NewToolResultText("over")
	})
	return ordinarySSE(t, server.NewSSEServer(srv))
}

// ordinarySSE serves a server whose tools have the names of sseServer.
func ordinarySSE(t *testing.T, h http.Handler) *sseServer {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return &sseServer{
		url: web.URL + "/sse", echo: sseCall{"echo", map[string]any{"message": "hallo"}},
		steps: sseCall{"steps", none}, fail: sseCall{"fail", none}, large: sseCall{"large", none}, stuck: sseCall{"stuck", none},
	}
}

// runEverything runs the reference server in one of its modes, sse or streamableHttp.
func runEverything(t *testing.T, mode, addr string) *proc.Process {
	t.Helper()
	dir := nodeDir(t)
	_, port, _ := strings.Cut(addr, ":")
	return start(t, addr, proc.Command{
		Name: "server-everything", Path: nodeBinary(dir), Dir: dir, Env: []string{"PORT=" + port},
		Args: []string{filepath.Join("node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js"), mode},
	})
}

// startEverythingOverSSE is the reference server.
func startEverythingOverSSE(t *testing.T) *sseServer {
	t.Helper()
	addr := freeAddr(t)
	runEverything(t, "sse", addr)
	return &sseServer{
		url: "http://" + addr + "/sse", echo: sseCall{"echo", map[string]any{"message": "hallo"}},
		steps:  sseCall{longRunning, map[string]any{"duration": 1, "steps": 4}},
		fail:   sseCall{"echo", none}, // its arguments are wrong
		ask:    sseCall{"trigger-elicitation-request", none},
		sample: sseCall{"trigger-sampling-request", map[string]any{"prompt": "write a poem", "maxTokens": 10}},
		roots:  sseCall{"get-roots-list", none},
		stuck:  sseCall{longRunning, map[string]any{"duration": 60, "steps": 60}},
	}
}

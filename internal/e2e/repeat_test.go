package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/redistest"
)

// silentServer has a tool that says nothing for a time, and counts its calls and those that were cancelled.
type silentServer struct {
	url              string
	calls, cancelled atomic.Int64
	ended            chan time.Time // gets when a call was cancelled
}

func startSilent(t *testing.T, takes time.Duration) *silentServer {
	t.Helper()
	return startSilentOf(t, takes, nil)
}

func startSilentOf(t *testing.T, takes time.Duration, options *mcp.StreamableHTTPOptions) *silentServer {
	t.Helper()
	s, over := &silentServer{ended: make(chan time.Time, 9)}, make(chan struct{})
	server := mcp.NewServer(&mcp.Implementation{Name: "silent", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "silent", Description: "Takes long."}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{ N int }) (*mcp.CallToolResult, any, error) {
		s.calls.Add(1)
		select {
		case <-time.After(takes):
		case <-over: // the server waits for its tools when a session ends
		case <-ctx.Done():
			s.cancelled.Add(1)
			s.ended <- time.Now()
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	listener := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options))
	t.Cleanup(func() {
		close(over)
		listener.CloseClientConnections()
		listener.Close()
	})
	s.url = listener.URL
	return s
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

package e2e

import (
	"context"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/jsonrpc"
)

// countingServer is a server of the Go SDK, of the 2025 versions, whose tool work is
// done when the test says so. It counts how often a call began and was cancelled.
type countingServer struct {
	url string

	mu               sync.Mutex
	began, cancelled map[string]int // by key
	finish           chan struct{}
}

// startCounting serves until the test ends; only with an event store can the streams
// of its calls be resumed.
func startCounting(t *testing.T, events mcp.EventStore) *countingServer {
	s := &countingServer{began: map[string]int{}, cancelled: map[string]int{}, finish: make(chan struct{}, 10)}
	server := newPeer("counting")
	addWords(server, "work", s.work)
	addWords(server, "quick", func(context.Context, *mcp.CallToolRequest) string { return "quick" })
	s.url = serve(t, streamable(server, &mcp.StreamableHTTPOptions{EventStore: events}))
	return s
}

func (s *countingServer) work(ctx context.Context, r *mcp.CallToolRequest) string {
	key, _ := jsonrpc.GetString(r.Params.Arguments, "key")
	s.count(s.began, key)
	select {
	case <-s.finish:
	case <-ctx.Done():
		s.count(s.cancelled, key)
	}
	return "did " + key
}

func (s *countingServer) count(m map[string]int, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m[key]++
}

// times is how often a call began, and was cancelled.
func (s *countingServer) times(key string) (began, cancelled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began[key], s.cancelled[key]
}

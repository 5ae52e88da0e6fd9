package main

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connect returns a session with the server and a function that returns the
// progress messages so far.
func connect(t *testing.T, stateless bool) (*mcp.ClientSession, func() []string) {
	t.Helper()
	server := httptest.NewServer(handler(stateless, false))
	t.Cleanup(server.Close)
	var mu sync.Mutex
	var seen []string
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, req.Params.Message)
		},
	})
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: server.URL + "/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

func call(t *testing.T, s *mcp.ClientSession, tool string, args map[string]any) (*mcp.CallToolResult, string) {
	t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken("p")
	result, err := s.CallTool(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	return result, result.Content[0].(*mcp.TextContent).Text
}

func TestTools(t *testing.T) {
	for name, stateless := range map[string]bool{"sessions": false, "stateless": true} {
		t.Run(name, func(t *testing.T) {
			session, progress := connect(t, stateless)
			if _, got := call(t, session, "count_words", map[string]any{"text": "one two  three"}); got != "3" {
				t.Errorf("count_words: %s", got)
			}
			if _, got := call(t, session, "research", map[string]any{"topic": "tea", "seconds": 0.05}); !strings.Contains(got, "tea") {
				t.Errorf("research: %s", got)
			}
			if got := progress(); !slices.Equal(got, steps) {
				t.Errorf("progress %q, want %q", got, steps)
			}
			result, _ := call(t, session, "forecast", map[string]any{"city": "Oslo", "days": 2, "seconds": 0.02})
			if got, _ := json.Marshal(result.StructuredContent); string(got) != `{"city":"Oslo","temperatures":[16,12]}` {
				t.Errorf("forecast: %s", got)
			}
			if result, got := call(t, session, "fail", map[string]any{"seconds": 0.02}); !result.IsError || got != "the archive is closed today" {
				t.Errorf("fail: %v %s", result.IsError, got)
			}
		})
	}
}

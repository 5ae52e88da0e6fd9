package e2e

import (
	"net/http"
	"testing"

	"github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sseServer is a server of HTTP+SSE, and which of its tools do what. A tool without a name is
// one that it does not have.
type sseServer struct {
	url                                  string
	echo, steps, fail, ask, large, stuck sseCall
	sample, roots                        sseCall
	cancelled                            func() bool // stuck was cancelled; nil: nobody can tell
}

// sseCall is a call of a tool.
type sseCall struct {
	name string
	args map[string]any
}

var none = map[string]any{}

// ordinarySSE serves a server whose tools have the names of everyday.
func ordinarySSE(t *testing.T, h http.Handler) *sseServer {
	t.Helper()
	return &sseServer{
		url: serve(t, h) + "/sse", echo: sseCall{"echo", map[string]any{"text": "hallo"}},
		steps: sseCall{"steps", none}, fail: sseCall{"fail", none}, large: sseCall{"large", none}, stuck: sseCall{"hang", keyed("stuck")},
	}
}

// startSDKOverSSE is a server of the Go SDK.
func startSDKOverSSE(t *testing.T) *sseServer {
	t.Helper()
	marks := t.TempDir()
	server := everyday(marks, false, nil)
	s := ordinarySSE(t, mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil))
	s.ask, s.cancelled = sseCall{"ask", none}, func() bool { return marked(marks, "gone", "stuck") }
	return s
}

// startMCPGoOverSSE is a server of mcp-go, which cannot ask over HTTP+SSE.
func startMCPGoOverSSE(t *testing.T) *sseServer {
	t.Helper()
	return ordinarySSE(t, server.NewSSEServer(everydayMCPGo(t.TempDir())))
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

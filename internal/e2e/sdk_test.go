package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// goSession is a session of the official Go SDK's client with an endpoint, and
// the progress that it was told of.
type goSession struct {
	*mcp.ClientSession
	changed chan struct{} // gets one when the list of tools has changed

	mu       sync.Mutex
	progress []string
}

// connectAs connects to an endpoint in a protocol version.
func connectAs(t *testing.T, url, version string) *goSession {
	t.Helper()
	return connectOver(t, &mcp.StreamableClientTransport{Endpoint: url}, version)
}

// connectOver connects a client that can be asked, over any transport.
func connectOver(t *testing.T, road mcp.Transport, version string) *goSession {
	t.Helper()
	s := &goSession{changed: make(chan struct{}, 10)}
	client := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.progress = append(s.progress, fmt.Sprint(r.Params.Progress, " ", r.Params.Message))
		},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			select {
			case s.changed <- struct{}{}:
			default:
			}
		},
	})
	session, err := client.Connect(t.Context(), road, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	s.ClientSession = session
	if got := session.InitializeResult().ProtocolVersion; got != version {
		t.Errorf("version %s, want %s", got, version)
	}
	return s
}

// heard is the progress so far.
func (s *goSession) heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.progress)
}

func (s *goSession) call(t *testing.T, tool string, args map[string]any) *mcp.CallToolResult {
	t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken("progress-1")
	result, err := s.CallTool(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func tools(t *testing.T, s *goSession) []any {
	t.Helper()
	var list []any
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, plain(t, tool))
	}
	return list
}

// plain is a value as its JSON has it, without what servers say about themselves
// and without resultType, which 2026-07-28 has and the versions before it do not:
// the client may speak another version to the gateway than to the server.
func plain(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if m, ok := out.(map[string]any); ok {
		delete(m, "_meta")
		delete(m, "resultType")
	}
	return out
}

// toldID finds the task in what a client is told of it.
func toldID(t *testing.T, text string) string {
	t.Helper()
	m := regexp.MustCompile(`the tool task_result of this server, arguments {"taskId":"([0-9a-f-]+)","turn":1}`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no task is told of in %q", text)
	}
	return m[1]
}

// goText is the text of a result of the Go SDK.
func goText(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) == 0 {
		t.Fatalf("no content in %+v", r)
	}
	return r.Content[0].(*mcp.TextContent).Text
}

// read calls task_result until the task has ended.
func (s *goSession) read(t *testing.T, id string) *mcp.CallToolResult {
	t.Helper()
	for {
		r := s.call(t, "task_result", map[string]any{"taskId": id})
		if !strings.HasPrefix(goText(t, r), "status: ") {
			return r
		}
	}
}

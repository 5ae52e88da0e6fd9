package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	mcpgoclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"taskgate/internal/mcp"
)

// mcpgoServer is a server of mcp-go, which speaks both eras at one address: 2025-11-25 with
// tasks and elicitation, and 2026-07-28 without either.
type mcpgoServer struct {
	*gateway // its address, as if it were a gateway

	mu       sync.Mutex
	versions map[string]int // requests, by method and version
}

func startMCPGo(t *testing.T) *mcpgoServer {
	t.Helper()
	s := server.NewMCPServer("mcp-go", "1", server.WithToolCapabilities(true), server.WithElicitation(), server.WithTaskCapabilities(true, true, true))
	s.AddTool(mcpgo.NewTool("echo"), func(context.Context, mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
		return mcpgo.NewToolResultText("echo"), nil
	})
	s.AddTool(mcpgo.NewTool("task", mcpgo.WithTaskSupport(mcpgo.TaskSupportRequired)),
		func(context.Context, mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
			<-time.After(200 * time.Millisecond) // it does not watch its context, which ends with the request (protocol.md C 9)
			return mcpgo.NewToolResultText("done"), nil
		})
	stop := make(chan struct{})
	s.AddTool(mcpgo.NewTool("stuck", mcpgo.WithTaskSupport(mcpgo.TaskSupportRequired)),
		func(context.Context, mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
			<-stop
			return mcpgo.NewToolResultText("late"), nil
		})
	s.AddTool(mcpgo.NewTool("elicit"), func(ctx context.Context, _ mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
		answer, err := s.RequestElicitation(ctx, mcpgo.ElicitationRequest{Params: mcpgo.ElicitationParams{
			Message: "who?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}},
		}})
		if err != nil {
			return nil, err
		}
		return mcpgo.NewToolResultText(fmt.Sprint(answer.Action, answer.Content)), nil
	})
	m := &mcpgoServer{versions: map[string]int{}}
	handler := server.NewStreamableHTTPServer(s)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.note(r)
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		close(stop)
		web.CloseClientConnections()
		web.Close()
	})
	m.gateway = &gateway{url: web.URL}
	return m
}

// note counts a request by its method and era.
func (m *mcpgoServer) note(r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var call struct{ Method string }
	_ = json.Unmarshal(body, &call)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.versions[call.Method+" "+mcp.EraOf(r.Header.Get(mcp.HeaderProtocolVersion)).String()]++
}

func (m *mcpgoServer) count(of string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.versions[of]
}

// namer answers every question.
type namer struct{}

func (namer) Elicit(context.Context, mcpgo.ElicitationRequest) (*mcpgo.ElicitationResult, error) {
	return &mcpgo.ElicitationResult{ElicitationResponse: mcpgo.ElicitationResponse{
		Action: mcpgo.ElicitationResponseActionAccept, Content: map[string]any{"name": "Ada"},
	}}, nil
}

// connectMCPGo is a client of mcp-go that can be asked, in a version.
func connectMCPGo(t *testing.T, url, version string) *mcpgoclient.Client {
	t.Helper()
	var options []transport.StreamableHTTPCOption
	if mcp.EraOf(version) == mcp.Legacy { // mcp-go asks there, and knows no GET stream in the other era
		options = append(options, transport.WithContinuousListening())
	}
	road, err := transport.NewStreamableHTTP(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	c := mcpgoclient.NewClient(road, mcpgoclient.WithElicitationHandler(namer{}), mcpgoclient.WithProtocolVersion(version))
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	init := mcpgo.InitializeRequest{}
	init.Params.ProtocolVersion = version
	init.Params.ClientInfo = mcpgo.Implementation{Name: "e2e", Version: "1"}
	if begun, err := c.Initialize(t.Context(), init); err != nil || begun.ProtocolVersion != version {
		t.Fatalf("initialize: %+v, %v", begun, err)
	}
	return c
}

func callMCPGo(t *testing.T, c *mcpgoclient.Client, tool string) string {
	t.Helper()
	call := mcpgo.CallToolRequest{}
	call.Params.Name = tool
	result, err := c.CallTool(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(result.Content)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// task makes a task of a call.
func (s *session) task(g *gateway, tool string) string {
	s.t.Helper()
	var created struct{ Task struct{ TaskID string } }
	if err := json.Unmarshal(s.do(g, mcp.MethodToolsCall, fmt.Sprintf(`{"name":%q,"arguments":{},"task":{"ttl":60000}}`, tool)), &created); err != nil || created.Task.TaskID == "" {
		s.t.Fatalf("no task was made: %v", err)
	}
	return created.Task.TaskID
}

// status is that of a task.
func (s *session) status(g *gateway, id string) string {
	s.t.Helper()
	var task struct{ Status string }
	if err := json.Unmarshal(s.do(g, mcp.MethodTasksGet, fmt.Sprintf(`{"taskId":%q}`, id)), &task); err != nil {
		s.t.Fatal(err)
	}
	return task.Status
}

// In front of a server that speaks both eras, a client of 2025-11-25 has what it has
// without the gateway: a task, its cancellation, and questions. A client of 2026-07-28 is
// served in that version.
func TestServerOfBothEras(t *testing.T) {
	t.Parallel()
	direct := startMCPGo(t)
	through := startGateway(t, "--upstream", direct.url)
	for name, g := range map[string]*gateway{"directly": direct.gateway, "through the gateway": through} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, g)
			id := s.task(g, "task")
			eventually(t, "the end of the task", func() error {
				if s.status(g, id) != "completed" {
					return errNotYet
				}
				return nil
			})
			if got := texts(t, s.do(g, mcp.MethodTasksResult, fmt.Sprintf(`{"taskId":%q}`, id))); got != "done" {
				t.Errorf("the task has the result %q", got)
			}
			id = s.task(g, "stuck")
			s.do(g, mcp.MethodTasksCancel, fmt.Sprintf(`{"taskId":%q}`, id))
			if got := s.status(g, id); got != "cancelled" {
				t.Errorf("the task that was cancelled is %s", got)
			}
			if got := callMCPGo(t, connectMCPGo(t, g.url, mcp.Version20251125), "elicit"); got != `[{"type":"text","text":"acceptmap[name:Ada]"}]` {
				t.Errorf("who was asked hears %s", got)
			}
		})
	}
	if n := direct.count("tools/call modern"); n != 0 {
		t.Errorf("%d calls of legacy clients came in the modern era", n)
	}
	if n := direct.count("server/discover modern"); n != 0 {
		t.Errorf("the server was probed %d times for legacy clients", n)
	}
	if got := callMCPGo(t, connectMCPGo(t, through.url, mcp.Version20260728), "echo"); got != `[{"type":"text","text":"echo"}]` {
		t.Errorf("a modern client hears %s", got)
	}
	if n := direct.count("tools/call modern"); n != 1 {
		t.Errorf("%d calls came in the modern era, want that of the modern client", n)
	}
}

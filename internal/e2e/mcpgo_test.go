package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

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
	s, stop := everydayMCPGo(t.TempDir()), make(chan struct{})
	s.AddTool(mcpgo.NewTool("stuck", mcpgo.WithTaskSupport(mcpgo.TaskSupportRequired)),
		func(context.Context, mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
			<-stop
			return mcpgo.NewToolResultText("late"), nil
		})
	t.Cleanup(func() { close(stop) })
	m := &mcpgoServer{versions: map[string]int{}}
	handler := server.NewStreamableHTTPServer(s)
	m.gateway = &gateway{url: serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.note(r)
		handler.ServeHTTP(w, r)
	}))}
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

// connectMCPGo is a client of mcp-go that can be asked, in a version, or without one in the newest that it is
// offered. It returns which that is.
func connectMCPGo(t *testing.T, road transport.Interface, version string) (*mcpgoclient.Client, string) {
	t.Helper()
	options := []mcpgoclient.ClientOption{mcpgoclient.WithElicitationHandler(namer{})}
	if version != "" {
		options = append(options, mcpgoclient.WithProtocolVersion(version))
	}
	c := mcpgoclient.NewClient(road, options...)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	init := mcpgo.InitializeRequest{}
	init.Params.ProtocolVersion = version
	init.Params.ClientInfo = mcpgo.Implementation{Name: "e2e", Version: "1"}
	begun, err := c.Initialize(t.Context(), init)
	if err != nil || version != "" && begun.ProtocolVersion != version {
		t.Fatalf("initialize: %+v, %v", begun, err)
	}
	return c, begun.ProtocolVersion
}

// roadOfMCPGo is the way of such a client to an endpoint.
func roadOfMCPGo(t *testing.T, url, version string) transport.Interface {
	t.Helper()
	var options []transport.StreamableHTTPCOption
	if version == mcp.Version20251125 { // mcp-go asks there, and knows no GET stream in the other era
		options = append(options, transport.WithContinuousListening())
	}
	road, err := transport.NewStreamableHTTP(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	return road
}

func callMCPGo(t *testing.T, c *mcpgoclient.Client, tool string, args map[string]any) string {
	t.Helper()
	call := mcpgo.CallToolRequest{}
	call.Params.Name, call.Params.Arguments = tool, args
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
			id := s.task(g, "slow", none)
			until(t, "the end of the task", func() bool { return s.status(g, id) == "completed" })
			if got := texts(t, s.do(g, mcp.MethodTasksResult, fmt.Sprintf(`{"taskId":%q}`, id))); got != "slept" {
				t.Errorf("the task has the result %q", got)
			}
			id = s.task(g, "stuck", none)
			s.do(g, mcp.MethodTasksCancel, fmt.Sprintf(`{"taskId":%q}`, id))
			if got := s.status(g, id); got != "cancelled" {
				t.Errorf("the task that was cancelled is %s", got)
			}
			client, _ := connectMCPGo(t, roadOfMCPGo(t, g.url, mcp.Version20251125), mcp.Version20251125)
			if got := callMCPGo(t, client, "ask", none); !strings.Contains(got, "Ada") {
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
	client, _ := connectMCPGo(t, roadOfMCPGo(t, through.url, mcp.Version20260728), mcp.Version20260728)
	if got := callMCPGo(t, client, "echo", map[string]any{"text": "echo"}); got != `[{"type":"text","text":"echo"}]` {
		t.Errorf("a modern client hears %s", got)
	}
	if n := direct.count("tools/call modern"); n != 1 {
		t.Errorf("%d calls came in the modern era, want that of the modern client", n)
	}
}

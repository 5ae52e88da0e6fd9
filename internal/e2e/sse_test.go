package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	protocol "taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// sseGateway is a gateway in front of a server of HTTP+SSE.
func sseGateway(t *testing.T, url, more string, store ...string) *gateway {
	t.Helper()
	return startGateway(t, configured(t, fmt.Sprintf(strings.Join(store, "\n")+`
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams:
  - name: older
    path: /mcp
    url: %q
    %s
    defaults: {grace: 300ms, poll_interval: 100ms}
`, url, more))...)
}

// TestSSEServers: in front of a server of HTTP+SSE, clients of both eras have what a client has
// that speaks with it directly: tools, results, errors, progress, questions and large results;
// and tasks beside.
func TestSSEServers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *sseServer{
		"go-sdk": startSDKOverSSE, "mcp-go": startMCPGoOverSSE, "server-everything": startEverythingOverSSE,
	} {
		for _, more := range []string{"transport: auto", "transport: sse"} {
			t.Run(name+" "+more, func(t *testing.T) {
				t.Parallel()
				s := start(t)
				g := sseGateway(t, s.url, more)
				direct := connectOver(t, &mcp.SSEClientTransport{Endpoint: s.url}, "2025-11-25")
				for _, version := range []string{"2025-11-25", "2026-07-28"} {
					t.Run(version, func(t *testing.T) {
						s.compare(t, direct, connectAs(t, g.url, version))
					})
				}
				s.tasks(t, g)
			})
		}
	}
}

// compare wants of a session through the gateway what there is directly.
func (s *sseServer) compare(t *testing.T, direct, through *goSession) {
	eventually(t, "the same tools", func() error { // the reference server adds some when it is told that the session is there
		if d := cmp.Diff(tools(t, direct), tools(t, through)); d != "" {
			return fmt.Errorf("the tools differ (-direct +through the gateway):\n%s", d)
		}
		return nil
	})
	for _, c := range []sseCall{s.echo, s.fail, s.ask, s.sample, s.roots, s.large, s.steps} {
		if c.name == "" {
			continue
		}
		direct.progress, through.progress = nil, nil
		want, got := direct.call(t, c.name, c.args), through.call(t, c.name, c.args)
		if d := cmp.Diff(plain(t, want), plain(t, got)); d != "" {
			t.Errorf("%s differs (-direct +through the gateway):\n%.1000s", c.name, d)
		}
		for name, answer := range map[string]string{s.ask.name: "Ada", s.sample.name: "a poem", s.roots.name: "file:///tmp"} {
			if c.name == name && !strings.Contains(fmt.Sprint(plain(t, got)), answer) {
				t.Errorf("%s: who was asked hears %v", name, plain(t, got))
			}
		}
	}
	eventually(t, "the same progress", func() error { // the SDK may hand out the answer before it
		if want, got := direct.heard(), through.heard(); len(got) < 3 || !slices.Equal(want, got) {
			return fmt.Errorf("directly %q, through the gateway %q", want, got)
		}
		return nil
	})
	var codes []int64
	for _, who := range []*goSession{direct, through} {
		_, err := who.CallTool(t.Context(), &mcp.CallToolParams{Name: "no-such-tool"})
		if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok {
			codes = append(codes, rpc.Code)
		}
	}
	if len(codes) == 1 || len(codes) == 2 && codes[0] != codes[1] {
		t.Errorf("an unknown tool: %d", codes)
	}
}

// tasks wants tasks in front of a server that knows none.
func (s *sseServer) tasks(t *testing.T, g *gateway) {
	client := g.client(true)
	task := callTask(t, client, s.steps.name, s.steps.args)
	if end := waitFor(t, client, task.ID, "completed"); textOf(t, end.Result) == "" {
		t.Errorf("the result is %s", end.Result)
	}
	task = callTask(t, client, s.stuck.name, s.stuck.args)
	if err := client.Cancel(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	waitFor(t, client, task.ID, "cancelled")
	if s.cancelled != nil {
		until(t, "the cancellation at the server", s.cancelled)
	}
	if got := callPlain(t, g.client(false), s.echo.name, s.echo.args); !strings.Contains(got, "hallo") {
		t.Errorf("echo says %q", got)
	}
}

// TestSSEServerKilled: a server that is killed during a task fails it with an error that says so.
// Once it is there again, the next call is answered.
func TestSSEServerKilled(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	running := runEverything(t, "sse", addr)
	g := sseGateway(t, "http://"+addr+"/sse", "")
	client := g.client(true)
	for range 2 {
		task := callTask(t, client, longRunning, map[string]any{"duration": 60, "steps": 60})
		eventually(t, "progress", func() error { // so the server has begun
			if now, err := client.Get(t.Context(), task.ID); err != nil || now.StatusMessage == "" {
				return fmt.Errorf("the task is %+v, %v", now, err)
			}
			return nil
		})
		running.Kill()
		end := waitFor(t, client, task.ID, "failed")
		if end.Error == nil || !strings.Contains(end.Error.Message, "the event stream of the server") {
			t.Errorf("the task's error is %+v", end.Error)
		}
		if _, _, err := client.CallTool(t.Context(), "echo", map[string]any{"message": "hallo"}); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
			t.Errorf("without a server: %v", err)
		}
		running = runEverything(t, "sse", addr)
		if got := callPlain(t, g.client(false), "echo", map[string]any{"message": "hallo"}); !strings.Contains(got, "hallo") {
			t.Errorf("echo says %q", got)
		}
	}
}

// TestSSEReplicas: each replica has a connection of its own for a client session, and all end with
// that. What ran on a replica that is killed fails at another one, and is not run again.
func TestSSEReplicas(t *testing.T) {
	t.Parallel()
	s := startSDKOverSSE(t)
	store := "store: " + redistest.Start(t).URL() + "\nheartbeat: 1s"
	a, b := sseGateway(t, s.url, "", store), sseGateway(t, s.url, "", store)
	client := begin(t, a)
	for _, g := range []*gateway{a, b, a, b} {
		if got := texts(t, client.do(g, protocol.MethodToolsCall, `{"name":"echo","arguments":{"text":"hallo"}}`)); !strings.Contains(got, "hallo") {
			t.Errorf("echo says %q", got)
		}
	}
	if n := s.open(); n != 2 {
		t.Errorf("%d connections, want one of each replica", n)
	}
	_ = client.request(t.Context(), a, http.MethodDelete, "").Body.Close()
	connections := func(want int) func() error {
		return func() error {
			if n := s.open(); n != want {
				return fmt.Errorf("%d connections, want %d", n, want)
			}
			return nil
		}
	}
	eventually(t, "the end of the connections", connections(0))
	task := callTask(t, a.client(true), s.stuck.name, s.stuck.args)
	eventually(t, "the connection of the call", connections(1))
	if err := a.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	end := waitFor(t, b.client(true), task.ID, "failed")
	if end.Error == nil || !strings.Contains(end.Error.Message, "may have finished the work") {
		t.Errorf("the task's error is %+v", end.Error)
	}
}

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestSSEServers: in front of a server of HTTP+SSE, clients of both eras have what a client has
// that speaks with it directly: tools, results, errors, progress, questions and large results;
// and tasks beside.
func TestSSEServers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *sseServer{
		"go-sdk": startSDKOverSSE, "mcp-go": startMCPGoOverSSE, "server-everything": startEverythingOverSSE,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			g := startGateway(t, configured(t, fmt.Sprintf(`
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams: [{name: older, path: /mcp, url: %q, defaults: {grace: 300ms, poll_interval: 100ms}}]
`, s.url))...)
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

package e2e

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestSSEServers: in front of a server of mcp-go over HTTP+SSE, clients of both eras have what a client has that speaks
// with it directly: tools, results, errors, progress and large results; and tasks beside. TestTable has servers in
// TypeScript, and TestSuiteOverSSE those of the Go SDK.
func TestSSEServers(t *testing.T) {
	t.Parallel()
	marks := t.TempDir()
	url := serve(t, server.NewSSEServer(everydayMCPGo(marks))) + "/sse"
	g := startGateway(t, "--upstream", url, "--grace", "300ms")
	direct := connectOver(t, &mcp.SSEClientTransport{Endpoint: url}, "2025-11-25")
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		through := connectAs(t, g.url, version)
		if d := cmp.Diff(tools(t, direct), tools(t, through)); d != "" {
			t.Errorf("%s: the tools differ (-direct +through the gateway):\n%s", version, d)
		}
		direct.progress = nil
		for _, tool := range []string{"echo", "fail", "large", "steps"} {
			args := map[string]any{"text": "hallo"}
			if d := cmp.Diff(plain(t, direct.call(t, tool, args)), plain(t, through.call(t, tool, args))); d != "" {
				t.Errorf("%s: %s differs (-direct +through the gateway):\n%.1000s", version, tool, d)
			}
		}
		until(t, "the same progress", func() bool { // the SDK may hand out the answer before it
			got := through.heard()
			return len(got) == 3 && slices.Equal(direct.heard(), got)
		})
		_, want := direct.CallTool(t.Context(), &mcp.CallToolParams{Name: "no-such-tool"})
		if _, err := through.CallTool(t.Context(), &mcp.CallToolParams{Name: "no-such-tool"}); want == nil || err == nil {
			t.Errorf("%s: an unknown tool: directly %v, through the gateway %v", version, want, err)
		}
	}
	client := g.client(true)
	waitFor(t, client, callTask(t, client, "steps", none).ID, "completed")
	hanging := callTask(t, client, "hang", keyed("stuck"))
	if err := client.Cancel(t.Context(), hanging.ID); err != nil {
		t.Fatal(err)
	}
	waitFor(t, client, hanging.ID, "cancelled")
	until(t, "the cancellation at the server", func() bool { return marked(marks, "gone", "stuck") })
}

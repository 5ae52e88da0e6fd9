package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// startNodeServer runs one of the scripts in testdata/node as a server.
func startNodeServer(t *testing.T, script string, env ...string) string {
	t.Helper()
	dir, addr := nodeDir(t), freeAddr(t)
	text, err := os.ReadFile(filepath.Join("testdata", "node", script))
	if err != nil {
		t.Fatal(err)
	}
	startNode(t, addr, dir, env, "--input-type=module", "--eval", string(text))
	return "http://" + addr + "/mcp"
}

// A server of the TypeScript SDK asks on the GET stream of its session, where its tool
// does not name the request. Its questions reach the client that called, be it a modern
// one without tasks or one of the SDK, also where the server answers calls in JSON.
func TestAskedOnTheGETStream(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	for name, env := range map[string][]string{"answers by a stream": nil, "answers in JSON": {"JSON_ONLY=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, "--upstream", startNodeServer(t, "ts1asks.mjs", env...))
			for range 3 { // one right after the other
				c := &askedCall{Tool: "ask", Args: map[string]any{}, Answer: "accept", Kind: "form", Secret: "Ada"}
				err := c.converse(requester(t.Context(), g.url, map[string]any{"elicitation": none}))
				if err != nil || c.Text != "hello Ada" || len(c.Asked) != 1 || c.Task != "" {
					t.Errorf("a modern client was asked %v, and told %q: %v", c.Asked, c.Text, err)
				}
			}
			a := runNode(t, "ts1answers.mjs", "URL="+g.url, `CALL={"name":"all","arguments":{}}`)
			if got := textOf(t, a.Result); got != "Ada, hm, file:///r" {
				t.Errorf("the TypeScript client got %q", got)
			}
			if !slices.Equal(a.Methods, []string{"elicitation/create", "roots/list", "sampling/createMessage"}) {
				t.Errorf("it was asked %q", a.Methods)
			}
		})
	}
}

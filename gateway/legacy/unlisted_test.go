package legacy_test

import (
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// A tool of a modern server that HTTP clients must drop is hidden from legacy clients too,
// and not called (protocol.md 2.4). A call of a tool that the server does not list makes no
// task, for clients of either era.
func TestToolsThatAreNotThere(t *testing.T) {
	for name, mode := range map[string]fake.Mode{"modern": fake.Modern, "legacy with tasks": fake.Stateful} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, mode)
			s.Capabilities(`{"tools":{},"tasks":{"requests":{"tools":{"call":{}}}}}`)
			s.Tool("t", fake.Text("ok"))
			s.Tool("bad", fake.Text("ok"))
			s.Schema("bad", `{"type":"object","properties":{"n":{"type":"number","x-mcp-header":"N"}}}`)
			url := newBefore(t, s, func(c *config.Config) { c.Upstreams[0].Defaults.Tasks = config.TasksAlways })
			c := newRawClient(t, url).initialize("")
			call := func(params string) string {
				t.Helper()
				_, got := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`)
				return got
			}
			unknown := `"code":-32602,"message":"unknown tool`
			if mode == fake.Modern {
				if _, got := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); strings.Contains(got, "bad") || !strings.Contains(got, `"t"`) {
					t.Errorf("listed %s", got)
				}
				for _, params := range []string{`{"name":"bad","arguments":{"key":"bad"}}`, `{"name":"bad","task":{}}`} {
					if got := call(params); !strings.Contains(got, unknown) {
						t.Errorf("called: %s", got)
					}
				}
			}
			if got := call(`{"name":"nope","task":{}}`); !strings.Contains(got, unknown) {
				t.Errorf("as a task: %s", got)
			}
			if got := call(`{"name":"t","task":{}}`); !strings.Contains(got, `"taskId"`) {
				t.Errorf("a known one: %s", got)
			}
			if _, got := c.post(`{"jsonrpc":"2.0","id":2,"method":"tasks/list","params":{"cursor":null}}`); strings.Count(got, `"taskId"`) != 1 {
				t.Errorf("tasks: %s", got)
			}
			a := asked{caps: canTasks, method: mcp.MethodToolsCall, params: `{"name":"nope"}`}
			wantRefusal(t, a.send(t, url, ""), mcp.CodeInvalidParams, "unknown tool")
			if n := s.Runs("bad"); n != 0 {
				t.Errorf("the hidden tool ran %d times", n)
			}
		})
	}
}

package legacy_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// A client whose stream breaks after the first progress of the gateway's own, and that resumes it at
// another replica, hears more of it there, and the answer.
func TestResumedHearsProgress(t *testing.T) {
	for _, c := range []struct{ name, version, method string }{
		{"call", mcp.Version20250618, mcp.MethodToolsCall},
		{"call", mcp.Version20251125, mcp.MethodToolsCall},
		{"result", mcp.Version20251125, mcp.MethodTasksResult},
	} {
		t.Run(c.name+" "+c.version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, config := &modeWorld{taskWorld: newTaskWorld(t), c: &taskClient{t: t}}, draftConfig(t)
				w.a, w.b = w.gateway("a", draftScript(), config), w.gateway("b", draftScript(), config)
				config.ResumeAfter = 5 * time.Second
				w.c.do(w.a, mcp.MethodInitialize, `{"protocolVersion":"`+c.version+`","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`)
				params := `{"name":"plain","_meta":{"progressToken":"p"}}`
				if c.method == mcp.MethodTasksResult {
					made := w.c.do(w.a, mcp.MethodToolsCall, `{"name":"plain","task":{}}`)
					id, _ := jsonrpc.GetString(made, "task", "taskId")
					params = `{"taskId":"` + id + `","_meta":{"progressToken":"p"}}`
				}
				first := w.c.ask(w.a, c.method, params)
				wiretest.Wait(28 * time.Second)
				first.leave()
				wiretest.Wait(time.Second)
				resumed := w.c.begin(w.b, "", mcp.HeaderLastEventID, first.lastID())
				wiretest.Wait(time.Minute)
				if !resumed.ended() {
					t.Error("the resumed stream is open")
				}
				said := slices.Concat(first.said(), resumed.said())
				var heard []string
				for _, m := range said {
					token, _ := jsonrpc.GetString(m, "params", "progressToken")
					n, _ := jsonrpc.Get(m, "params", "progress")
					heard = append(heard, strings.TrimSpace(token+" "+string(n)))
				}
				if want := []string{"p 0.000001", "p 0.000002", ""}; !slices.Equal(heard, want) || !strings.Contains(string(said[len(said)-1]), `"text":"one"`) {
					t.Errorf("heard %s", said)
				}
			})
		})
	}
}

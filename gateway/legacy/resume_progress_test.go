package legacy_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
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
		inBubble(t, c.name+" "+c.version, func(t *testing.T) {
			w := newDraftWorld(t, "")
			w.config.ResumeAfter = 5 * time.Second
			w.c = newClient(t, w.a, "", c.version)
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
	}
}

// A client that was away while the store was as well hears, where its stream goes on, that messages may be missing:
// what came then is in no log.
func TestResumedHearsOfMissingProgress(t *testing.T) {
	for name, c := range map[string]struct {
		level string
		away  time.Duration // the store
		last  int           // the progress that is heard last
		want  []string
	}{
		"warned":            {"info", 5 * time.Second, 200, []string{"note", "gap", "answer"}},
		"wants no warnings": {"error", 5 * time.Second, 200, []string{"gap", "answer"}},
		"until the end":     {"info", 5 * time.Minute, 15, []string{"note", "answer"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			w := newDraftWorld(t, "")
			w.config.ResumeAfter = time.Second
			w.c.do(w.a, mcp.MethodSetLevel, `{"level":"`+c.level+`"}`)
			first := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"many","_meta":{"progressToken":"p"}}`)
			wiretest.Wait(10500 * time.Millisecond)
			first.leave()
			wiretest.Wait(5 * time.Second)
			w.sessions.away.Store(true)
			wiretest.Wait(c.away)
			w.sessions.away.Store(false)
			wiretest.Wait(5 * time.Second)
			resumed := w.c.begin(w.b, "", mcp.HeaderLastEventID, first.lastID())
			wiretest.Wait(5 * time.Minute)
			var heard []string
			last := 0
			for _, m := range slices.Concat(first.said(), resumed.said()) {
				raw, ok := jsonrpc.Get(m, "params", "progress")
				no, _ := strconv.Atoi(string(raw))
				switch {
				case ok && no != last+1:
					heard = append(heard, "gap")
				case strings.Contains(string(m), "messages may be missing"):
					heard = append(heard, "note")
				case !ok && strings.Contains(string(m), `"text":"done"`):
					heard = append(heard, "answer")
				}
				if ok {
					last = no
				}
			}
			if !slices.Equal(heard, c.want) || last != c.last {
				t.Errorf("heard %q up to %d, want %q up to %d", heard, last, c.want, c.last)
			}
		})
	}
}

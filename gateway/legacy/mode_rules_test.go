package legacy_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// modeRules are what the fifteen scenarios leave open of response modes (A1–A17).
var modeRules = []struct {
	name         string
	capabilities string
	play         func(*testing.T, *world)
}{
	{"A3 the order of the list is nothing", allModes, func(t *testing.T, w *world) {
		says(t, w.call("quick", `["task","streaming","immediate"]`).one(), `"text":"quick"`)
		h, s := w.stream(t, "quick")
		wiretest.Wait(2 * time.Second)
		s.take(h.said()[1:])
		s.merged(w.c, w.a)
		says(t, w.call("plain", `["task"]`).one(), `"task":{`)
	}},
	{"A5 nothing in common is a task, with a warning", someModes, func(t *testing.T, w *world) {
		for _, modes := range []string{`["streaming"]`, `["unheard-of"]`, `[]`} {
			says(t, w.call("quick", modes).one(), `"task":{`, `"`+mcp.MetaFallbackMode+`":"task"`)
		}
	}},
	{"A7 a tool that does not stream falls back to a task", allModes, func(t *testing.T, w *world) {
		says(t, w.call("plain", `["immediate","task","streaming"]`).one(), `"task":{`, `"status":"working"`)
		got := w.call("plain", `["immediate","streaming"]`).one()
		says(t, got, `"task":{`, `"`+mcp.MetaFallbackMode+`":"task"`)
		lacks(t, got, "partial-content")
	}},
	{"A9 without event streams", allModes, func(t *testing.T, w *world) {
		got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"tokens","task":{"responseModes":["streaming"]}}`, "Accept", mcp.TypeJSON).one()
		s := &segments{t: t} // there is only the first answer
		s.take([][]byte{got})
		wiretest.Wait(11 * time.Second)
		says(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":false,"isError":false`)
		wiretest.Wait(11 * time.Second)
		says(t, w.pull(w.b, s.task, "1").one(), `{"type":"text","text":"upon ","seqNr":2}],"isComplete":false`)
		says(t, w.pull(w.b, s.task, "1e300").one(), `"partial-content":[],"isComplete":false`) // above the highest
		wiretest.Wait(time.Minute)
		says(t, w.pull(w.a, s.task, "4").one(), `{"type":"text","text":"end","seqNr":5}],"isComplete":true,"isError":false`)
		says(t, w.pull(w.a, s.task, "5").one(), `"partial-content":[],"isComplete":true`)
		says(t, w.pull(w.a, s.task, "99").one(), `"partial-content":[],"isComplete":true`)
		got = w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"prompt","task":{"responseModes":["streaming"]}}`, "Accept", mcp.TypeJSON).one()
		says(t, got, `"task":{`, `{"type":"text","text":"at ","seqNr":1},{"type":"text","text":"once","seqNr":2}],"isComplete":true`)
	}},
	{"A12 numbers that are none", allModes, func(t *testing.T, w *world) {
		_, s := w.stream(t, "forever")
		for _, no := range []string{`0`, `-1`, `1.5`, `"1"`, `null`, `{}`, `1e-400`} {
			says(t, w.pull(w.b, s.task, no).one(), `"error":{"code":-32602`)
		}
		for _, params := range []string{`{"name":"quick","task":{"responseModes":"task"}}`, `{"name":"quick","task":{"responseModes":[1]}}`} {
			says(t, w.c.ask(w.a, mcp.MethodToolsCall, params).one(), `"error":{"code":-32602`)
		}
		says(t, w.call("never", `["immediate"]`).one(), `"error":{"code":-32601`)
		says(t, w.call("never", `["streaming"]`).one(), `"error":{"code":-32601`)
	}},
	{"A12 all segments are the result", allModes, func(t *testing.T, w *world) {
		for _, tool := range []string{"quick", "plain", "tokens"} {
			h, s := w.stream(t, tool)
			wiretest.Wait(2 * time.Minute)
			s.take(h.said()[1:])
			if !h.ended() {
				t.Errorf("%s: not at its end", tool)
			}
			s.merged(w.c, w.b)
			result := w.c.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+string(s.task)+`"}`)
			if tool == "tokens" {
				says(t, result, `"structuredContent":{"n":1.0}`)
			}
		}
	}},
}

func TestResponseModeRules(t *testing.T) {
	for _, s := range modeRules {
		inBubble(t, s.name, func(t *testing.T) { s.play(t, newDraftWorld(t, s.capabilities)) })
	}
}

// A17: to everyone but its owner a task does not exist, and so has no blocks.
func TestForeignSegments(t *testing.T) {
	h := newHouseOf(t, func(h *house, c *config.Config) {
		h.withKeys(c)
		c.Upstreams[0].ResponseModes = config.On
	})
	modes := func(key string) *caller {
		c := h.caller(key)
		body := strings.Replace(wiretest.InitializeBody, `"capabilities":{`, `"capabilities":{`+allModes, 1)
		c.session = c.do(http.MethodPost, body, nil).header.Get(mcp.HeaderSession)
		return c
	}
	alice, bob := modes(wiretest.AliceKey), modes(wiretest.BobKey)
	running := alice.task()
	ask := func(id string) reply { return bob.legacy(mcp.MethodTasksResult, `"taskId":"`+id+`","lastSeqNr":1`) }
	foreign := ask(running)
	alike(t, "lastSeqNr", foreign, ask(strange))
	if !strings.Contains(foreign.body, "unknown task") {
		t.Errorf("foreign: %v", foreign)
	}
	if r := alice.legacy(mcp.MethodTasksResult, `"taskId":"`+running+`","lastSeqNr":1`); !strings.Contains(r.body, `"partial-content":[],"isComplete":false`) {
		t.Errorf("her own: %v", r)
	}
	h.events.proceed <- struct{}{}
	alice.status(running, "completed")
}

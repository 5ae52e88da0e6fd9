package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// modeWorld is two replicas and a client of theirs.
type modeWorld struct {
	*taskWorld
	a, b *legacyServer
	c    *taskClient
}

func newModeWorld(t *testing.T, capabilities string) *modeWorld {
	w := &modeWorld{taskWorld: newTaskWorld(t)}
	w.a, w.b = w.gateway("a", draftScript(), draftConfig(t)), w.gateway("b", draftScript(), draftConfig(t))
	w.c = newDraftClient(t, w.a, capabilities)
	return w
}

// call makes a call with these modes.
func (w *modeWorld) call(tool, modes string) *hearing {
	w.t.Helper()
	return w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"`+tool+`","task":{"responseModes":`+modes+`}}`)
}

// stream makes a call that streams, and reads what is there of it.
func (w *modeWorld) stream(t *testing.T, tool string) (*hearing, *segments) {
	t.Helper()
	h := w.call(tool, `["streaming"]`)
	s := &segments{t: t}
	s.take(h.said())
	if s.task == "" || h.ended() {
		t.Fatalf("no task first, or no more after it: %s", h.said())
	}
	return h, s
}

// pull asks a replica for the blocks after a number.
func (w *modeWorld) pull(g *legacyServer, id shim.ID, after string) *hearing {
	w.t.Helper()
	return w.c.ask(g, mcp.MethodTasksResult, `{"taskId":"`+string(id)+`","lastSeqNr":`+after+`}`)
}

// one is the only answer to a request.
func (h *hearing) one() []byte {
	h.t.Helper()
	<-h.done
	msgs := h.said()
	if len(msgs) != 1 {
		h.t.Fatalf("%d answers, want one: %s", len(msgs), msgs)
	}
	return msgs[0]
}

func says(t *testing.T, got []byte, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(string(got), text) {
			t.Errorf("no %s in %s", text, got)
		}
	}
}

func lacks(t *testing.T, got []byte, unwanted ...string) {
	t.Helper()
	for _, text := range unwanted {
		if strings.Contains(string(got), text) {
			t.Errorf("%s in %s", text, got)
		}
	}
}

// modeScenarios are what response modes have to do, from both sides' declaration to the
// end of the task (A1–A17).
var modeScenarios = []struct {
	name         string
	capabilities string
	play         func(*testing.T, *modeWorld)
}{
	{"01 immediate, and ready", allModes, func(t *testing.T, w *modeWorld) {
		got := w.call("quick", `["immediate"]`).one()
		says(t, got, `"result":{"content":[{"type":"text","text":"quick"}],"x":1.0}`)
		list := w.c.do(w.b, mcp.MethodTasksList, `{}`)
		says(t, list, `"tasks":[]`) // no task, and so no related-task (A6)
	}},
	{"02 immediate, not ready, becomes a task", someModes, func(t *testing.T, w *modeWorld) {
		before := time.Now()
		got := w.call("plain", `["task","immediate"]`).one()
		says(t, got, `"result":{"task":{`, `"status":"working"`)
		lacks(t, got, mcp.MetaFallbackMode)
		if d := time.Since(before); d != 5*time.Second {
			t.Errorf("after %v, want the grace of the tool", d)
		}
		says(t, w.call("plain", `["immediate"]`).one(), `"task":{`, `"_meta":{"`+mcp.MetaFallbackMode+`":"task"}`)
		says(t, w.call("always", `["immediate","task"]`).one(), `"task":{`) // its policy has no grace
	}},
	{"03 immediate, not ready, becomes a stream", allModes, func(t *testing.T, w *modeWorld) {
		h := w.call("tokens", `["task","streaming","immediate"]`)
		wait(time.Minute)
		s := &segments{t: t}
		s.take(h.said())
		s.merged(w.c, w.b)
	}},
	{"04 no list is a task", allModes, func(t *testing.T, w *modeWorld) {
		got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"quick","task":{}}`).one()
		says(t, got, `"result":{"task":{`)
		lacks(t, got, mcp.MetaFallbackMode, "partial-content")
	}},
	{"05 the order of the list is nothing", allModes, func(t *testing.T, w *modeWorld) {
		says(t, w.call("quick", `["task","streaming","immediate"]`).one(), `"text":"quick"`)
		h, s := w.stream(t, "quick")
		wait(2 * time.Second)
		s.take(h.said())
		s.merged(w.c, w.a)
		says(t, w.call("plain", `["task"]`).one(), `"task":{`)
	}},
	{"06 nothing in common is a task, with a warning", someModes, func(t *testing.T, w *modeWorld) {
		for _, modes := range []string{`["streaming"]`, `["unheard-of"]`, `[]`} {
			says(t, w.call("quick", modes).one(), `"task":{`, `"`+mcp.MetaFallbackMode+`":"task"`)
		}
	}},
	{"07 a client fetches what it has missed", allModes, func(t *testing.T, w *modeWorld) {
		h, s := w.stream(t, "tokens")
		wait(11 * time.Second)
		s.take(h.said()[1:]) // it has the first block, and is gone
		h.leave()
		if s.last != 1 {
			t.Fatalf("%d blocks after the first one was said", s.last)
		}
		for !s.over {
			wait(4 * time.Second)
			s.take([][]byte{w.pull(w.a, s.task, fmt.Sprint(s.last)).one()})
		}
		s.merged(w.c, w.b)
	}},
	{"08 polling by number", allModes, func(t *testing.T, w *modeWorld) {
		got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"tokens","task":{"responseModes":["streaming"]}}`, "Accept", mcp.TypeJSON).one()
		s := &segments{t: t} // without streams there is only the first answer
		s.take([][]byte{got})
		wait(11 * time.Second)
		says(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":false,"isError":false`)
		wait(11 * time.Second)
		says(t, w.pull(w.b, s.task, "1").one(), `{"type":"text","text":"upon ","seqNr":2}],"isComplete":false`)
		says(t, w.pull(w.b, s.task, "1e300").one(), `"partial-content":[],"isComplete":false`) // above the highest
		wait(time.Minute)
		says(t, w.pull(w.a, s.task, "4").one(), `{"type":"text","text":"end","seqNr":5}],"isComplete":true,"isError":false`)
		says(t, w.pull(w.a, s.task, "5").one(), `"partial-content":[],"isComplete":true`)
		says(t, w.pull(w.a, s.task, "99").one(), `"partial-content":[],"isComplete":true`)
	}},
	{"09 numbers that are none", allModes, func(t *testing.T, w *modeWorld) {
		_, s := w.stream(t, "forever")
		for _, no := range []string{`0`, `-1`, `1.5`, `"1"`, `null`, `{}`, `1e-400`} {
			says(t, w.pull(w.b, s.task, no).one(), `"error":{"code":-32602`)
		}
		for _, params := range []string{`{"name":"quick","task":{"responseModes":"task"}}`, `{"name":"quick","task":{"responseModes":[1]}}`, `{"name":"quick","task":{},"stream":true}`} {
			says(t, w.c.ask(w.a, mcp.MethodToolsCall, params).one(), `"error":{"code":-32602`)
		}
		says(t, w.call("never", `["immediate"]`).one(), `"error":{"code":-32601`)
		says(t, w.call("never", `["streaming"]`).one(), `"error":{"code":-32601`)
	}},
	{"10 a failure amid the stream", allModes, func(t *testing.T, w *modeWorld) {
		for tool, pieces := range map[string]int64{"breaks": 2, "fails": 3} {
			h, s := w.stream(t, tool)
			wait(time.Minute)
			s.take(h.said())
			if !s.over || !s.failed || s.last != pieces || !h.ended() {
				t.Errorf("%s: over %t failed %t after %d blocks", tool, s.over, s.failed, s.last)
			}
			task := w.c.do(w.b, mcp.MethodTasksGet, `{"taskId":"`+string(s.task)+`"}`)
			says(t, task, `"status":"failed"`)
			says(t, w.pull(w.b, s.task, "1").one(), `"far "`, `"isComplete":true,"isError":true`)
		}
	}},
	{"11 cancelled amid the stream", allModes, func(t *testing.T, w *modeWorld) {
		h, s := w.stream(t, "forever")
		wait(11 * time.Second)
		// The request is over for notifications/cancelled since it has a task (L28).
		w.c.notify(w.a, mcp.NotifyCancelled, `{"requestId":2}`)
		s.take(h.said()[1:])
		if s.last != 1 || s.over {
			t.Errorf("%d blocks, over %t", s.last, s.over)
		}
		before := len(h.said())
		w.c.do(w.b, mcp.MethodTasksCancel, `{"taskId":"`+string(s.task)+`"}`)
		wait(time.Second)
		s.take(h.said()[before:])
		if !s.over || s.failed || !h.ended() {
			t.Errorf("over %t failed %t, the stream ended %t", s.over, s.failed, h.ended())
		}
	}},
	{"12 the gateway never sends a repeat", allModes, func(t *testing.T, w *modeWorld) {
		h, s := w.stream(t, "tokens") // TestReplicasPull has it with the pull elsewhere
		wait(11 * time.Second)
		pulled := w.pull(w.a, s.task, "1").one()
		if !h.ended() {
			t.Error("the first pull did not end the push")
		}
		s.take(h.said()[1:])
		s.take([][]byte{pulled})
		for !s.over {
			wait(7 * time.Second)
			s.take([][]byte{w.pull(w.a, s.task, fmt.Sprint(s.last)).one()})
		}
		s.merged(w.c, w.a)
	}},
	{"13 switched off", allModes, func(t *testing.T, w *modeWorld) {
		c := draftConfig(t)
		c.Upstreams[0].ResponseModes = config.Off
		w.a = newTaskWorld(t).gateway("off", draftScript(), c)
		w.c = newDraftClient(t, w.a, allModes)
		got := w.call("quick", `["immediate","streaming"]`).one()
		says(t, got, `"result":{"task":{`)
		lacks(t, got, mcp.MetaFallbackMode)
		id, _ := jsonrpc.GetString(got, "result", "task", "taskId")
		says(t, w.pull(w.a, shim.ID(id), "0").one(), `"content":[`) // the member means nothing
	}},
	{"14 the task expires", allModes, func(t *testing.T, w *modeWorld) {
		h := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"quick","task":{"ttl":60000,"responseModes":["streaming"]}}`)
		wait(30 * time.Second)
		s := &segments{t: t}
		s.take(h.said())
		says(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":true`)
		wait(time.Minute)
		says(t, w.pull(w.b, s.task, "1").one(), `"error":{"code":-32602,"message":"unknown task"}`)
	}},
	{"15 all segments are the result", allModes, func(t *testing.T, w *modeWorld) {
		for _, tool := range []string{"quick", "plain", "tokens"} {
			h, s := w.stream(t, tool)
			wait(2 * time.Minute)
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

func TestResponseModes(t *testing.T) {
	for _, s := range modeScenarios {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { s.play(t, newModeWorld(t, s.capabilities)) })
		})
	}
}

// notify sends a notification to a replica.
func (c *taskClient) notify(g *legacyServer, method, params string) {
	c.t.Helper()
	rec := httptest.NewRecorder()
	g.Handler().ServeHTTP(rec, c.request(context.Background(), http.MethodPost, `{"jsonrpc":"2.0","method":"`+method+`","params":`+params+`}`))
	if rec.Code != http.StatusAccepted {
		c.t.Errorf("%s: %d", method, rec.Code)
	}
}

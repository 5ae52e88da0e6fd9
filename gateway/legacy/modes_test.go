package legacy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// firstWait is how long the first answer to a call that streams waits for something to go along
// with the task.
const firstWait = 50 * time.Millisecond

// call makes a call with these modes.
func (w *world) call(tool, modes string) *hearing {
	w.t.Helper()
	return w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"`+tool+`","task":{"responseModes":`+modes+`}}`)
}

// stream makes a call that streams, and reads what is there of it.
func (w *world) stream(t *testing.T, tool string) (*hearing, *segments) {
	t.Helper()
	h := w.call(tool, `["streaming"]`)
	wiretest.Wait(firstWait)
	s := &segments{t: t}
	s.take(h.said())
	if s.task == "" || h.ended() {
		t.Fatalf("no task first, or no more after it: %s", h.said())
	}
	return h, s
}

// pull asks a replica for the blocks after a number.
func (w *world) pull(g *legacyServer, id shim.ID, after string) *hearing {
	w.t.Helper()
	return w.c.ask(g, mcp.MethodTasksResult, `{"taskId":"`+string(id)+`","lastSeqNr":`+after+`}`)
}

// status is what tasks/get says of a task.
func (w *world) status(id shim.ID) string {
	w.t.Helper()
	status, _ := jsonrpc.GetString(w.c.do(w.b, mcp.MethodTasksGet, `{"taskId":"`+string(id)+`"}`), "status")
	return status
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

// modeScenarios are the fifteen that SEP-1905 recommends, by its numbers (section "Test
// Scenarios" of seps/1905-task-streaming-result.md in pull request 1905 of
// modelcontextprotocol/modelcontextprotocol, commit 3cece38). Of these, 7, 12
// and 15 say what a client does, and are judged by one that does it (gatherer).
var modeScenarios = []struct {
	name         string
	capabilities string
	play         func(*testing.T, *world)
}{
	{"01 immediate, complete results", allModes, func(t *testing.T, w *world) {
		got := w.call("quick", `["immediate"]`).one()
		says(t, got, `"result":{"content":[{"type":"text","text":"quick"}],"x":1.0,`, mcp.MetaRelatedTask)
		says(t, w.c.do(w.b, mcp.MethodTasksList, `{}`), `"status":"completed"`) // there is a task, too (A6)
	}},
	{"02 task, the standard flow", allModes, func(t *testing.T, w *world) {
		for _, task := range []string{`{"responseModes":["task"]}`, `{}`} {
			got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"quick","task":`+task+`}`).one()
			says(t, got, `"result":{"task":{`)
			lacks(t, got, mcp.MetaFallbackMode, "partial-content")
			id, _ := jsonrpc.GetString(got, "result", "task", "taskId")
			polls := 0
			for ; w.status(shim.ID(id)) == "working"; polls++ {
				wiretest.Wait(400 * time.Millisecond)
			}
			if polls != 3 {
				t.Errorf("%d polls", polls)
			}
			result := w.c.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+id+`"}`)
			says(t, result, `"content":[{"type":"text","text":"quick"}]`, `"x":1.0`, mcp.MetaRelatedTask)
			lacks(t, result, "seqNr", "isComplete")
		}
	}},
	{"03 streaming, the initial response only", allModes, func(t *testing.T, w *world) {
		h := w.call("prompt", `["streaming"]`)
		got := h.one()
		if kind := h.w.header.Get("Content-Type"); kind != mcp.TypeJSON {
			t.Errorf("one answer as %s", kind)
		}
		s := &segments{t: t}
		s.take([][]byte{got})
		if s.task == "" || s.last != 2 {
			t.Errorf("%d blocks in %s", s.last, got)
		}
		s.merged(w.c, w.b)
	}},
	{"04 streaming, multiple responses", allModes, func(t *testing.T, w *world) {
		h := w.call("letters", `["streaming","immediate"]`) // it says two in its grace
		wiretest.Wait(5 * time.Second)
		s := &segments{t: t}
		first := h.said()
		if s.take(first); len(first) != 1 || s.last != 2 || s.over {
			t.Fatalf("at first %d blocks: %s", s.last, first)
		}
		if got := w.status(s.task); got != "working" { // until isComplete (A13)
			t.Errorf("amid the stream it is %s", got)
		}
		wiretest.Wait(time.Minute)
		all := h.said()
		if s.take(all[1:]); len(all) != 5 || s.last != 5 {
			t.Errorf("%d blocks in %s", s.last, all)
		}
		if got := w.status(s.task); got != "completed" {
			t.Errorf("after it, it is %s", got)
		}
		s.merged(w.c, w.b)
	}},
	{"05 streaming, event stream", allModes, func(t *testing.T, w *world) {
		h := w.call("letters", `["streaming"]`)
		wiretest.Wait(time.Minute)
		if kind := h.w.header.Get("Content-Type"); kind != mcp.TypeSSE || !h.ended() {
			t.Fatalf("%s, ended %t", kind, h.ended())
		}
		ids := map[string]bool{}
		s := &segments{t: t}
		for _, event := range h.events() {
			if event.id != "" && ids[event.id] {
				t.Errorf("event id %q", event.id)
			}
			if ids[event.id] = true; event.data == "" {
				continue // from which the client could have resumed
			}
			if id, _ := jsonrpc.Get([]byte(event.data), "id"); string(id) != "2" {
				t.Errorf("a response to %s: %s", id, event.data)
			}
			s.take([][]byte{[]byte(event.data)})
		}
		s.merged(w.c, w.b)
	}},
	{"06 streaming, resume with lastSeqNr", allModes, func(t *testing.T, w *world) {
		h, s := w.stream(t, "letters")
		wiretest.Wait(6500 * time.Millisecond)
		h.leave()
		if s.take(h.said()[1:]); s.last != 3 {
			t.Fatalf("%d blocks", s.last)
		}
		wiretest.Wait(2 * time.Second)
		got := w.pull(w.a, s.task, "3").one()
		says(t, got, `"id":3,`, `"partial-content":[{"type":"text","text":"d","seqNr":4}],"isComplete":false`)
		s.take([][]byte{got})
		for !s.over {
			wiretest.Wait(2 * time.Second)
			s.take([][]byte{w.pull(w.a, s.task, fmt.Sprint(s.last)).one()})
		}
		s.merged(w.c, w.b)
	}},
	{"07 streaming, gap detection", allModes, func(t *testing.T, w *world) {
		h := w.call("letters", `["streaming"]`)
		wiretest.Wait(10500 * time.Millisecond)
		g := newGatherer(t)
		for _, msg := range h.said() { // it loses two
			if !strings.Contains(string(msg), `"seqNr":2`) && !strings.Contains(string(msg), `"seqNr":4`) {
				g.take(msg)
			}
		}
		if got := fmt.Sprint(g.numbers()); got != "[1 3 5]" {
			t.Fatalf("it has %s", got)
		}
		after, missing := g.gap()
		if !missing || after != 1 {
			t.Fatalf("gap after %d: %t", after, missing)
		}
		got := w.pull(w.a, g.task, fmt.Sprint(after)).one()
		says(t, got, `"partial-content":[{"type":"text","text":"b","seqNr":2},{"type":"text","text":"c","seqNr":3},{"type":"text","text":"d","seqNr":4},{"type":"text","text":"e","seqNr":5}]`)
		g.take(got)
		wiretest.Wait(time.Second)
		g.take(w.pull(w.a, g.task, "5").one())
		if got := fmt.Sprint(g.repeats); got != "[3 5]" { // it has asked for them
			t.Errorf("repeated %s", got)
		}
		g.merged(w.c, w.b)
	}},
	{"08 immediate, fallback", allModes, func(t *testing.T, w *world) {
		before := time.Now()
		got := w.call("plain", `["task","immediate"]`).one()
		says(t, got, `"result":{"task":{`, `"status":"working"`)
		lacks(t, got, mcp.MetaFallbackMode)
		if d := time.Since(before); d != 5*time.Second {
			t.Errorf("after %v, want the grace of the tool", d)
		}
		says(t, w.call("plain", `["immediate"]`).one(), `"task":{`, `"_meta":{"`+mcp.MetaFallbackMode+`":"task"}`)
		h := w.call("tokens", `["task","streaming","immediate"]`)
		wiretest.Wait(time.Minute)
		s := &segments{t: t}
		s.take(h.said())
		s.merged(w.c, w.b)
	}},
	{"09 the ttl expires amid the stream", allModes, func(t *testing.T, w *world) {
		// While the task runs it is prolonged, and the stream goes on.
		h := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"letters","task":{"ttl":2000,"responseModes":["streaming"]}}`)
		wiretest.Wait(10500 * time.Millisecond)
		s := &segments{t: t}
		if s.take(h.said()); s.last != 5 || s.over {
			t.Errorf("%d blocks, over %t", s.last, s.over)
		}
		wiretest.Wait(time.Second)
		says(t, w.pull(w.b, s.task, "5").one(), `"partial-content":[],"isComplete":true`)
		wiretest.Wait(time.Minute)
		says(t, w.pull(w.b, s.task, "1").one(), `"error":{"code":-32602,"message":"unknown task: the id was never given out, the task is another caller's, or its ttl is over"}`)
		// A client that does not read until it has expired hears of that, and never that
		// this was all.
		h = w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"letters","task":{"ttl":2000,"responseModes":["streaming"]}}`)
		wiretest.Wait(3 * time.Second)
		h.w.hold()
		wiretest.Wait(5 * time.Minute)
		h.w.letGo()
		wiretest.Wait(time.Second)
		all := h.said()
		lacks(t, all[len(all)-1], "isComplete")
		says(t, all[len(all)-1], `"id":5,"error":{"code":-32603`)
		for _, msg := range all {
			lacks(t, msg, `"isComplete":true`)
		}
	}},
	{"10 cancelled amid the stream", allModes, func(t *testing.T, w *world) {
		h, s := w.stream(t, "forever")
		wiretest.Wait(11 * time.Second)
		s.take(h.said()[1:])
		if s.last != 1 || s.over {
			t.Errorf("%d blocks, over %t", s.last, s.over)
		}
		before := len(h.said())
		w.c.do(w.b, mcp.MethodTasksCancel, `{"taskId":"`+string(s.task)+`"}`)
		wiretest.Wait(time.Second)
		s.take(h.said()[before:])
		if !s.over || s.failed || !h.ended() || w.status(s.task) != "cancelled" {
			t.Errorf("over %t failed %t, the stream ended %t, %s", s.over, s.failed, h.ended(), w.status(s.task))
		}
		wiretest.Wait(time.Minute)
		says(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":true`) // nothing after it
	}},
	{"11 a failure amid the stream", allModes, func(t *testing.T, w *world) {
		for tool, pieces := range map[string]int64{"breaks": 2, "fails": 3} {
			h, s := w.stream(t, tool)
			wiretest.Wait(time.Minute)
			s.take(h.said()[1:])
			if !s.over || !s.failed || s.last != pieces || !h.ended() || w.status(s.task) != "failed" {
				t.Errorf("%s: over %t failed %t after %d blocks, %s", tool, s.over, s.failed, s.last, w.status(s.task))
			}
			says(t, w.pull(w.b, s.task, "1").one(), `"far "`, `"isComplete":true,"isError":true`)
		}
		h, s := w.stream(t, "broken") // before there was anything
		wiretest.Wait(time.Minute)
		s.take(h.said()[1:])
		if !s.over || !s.failed || s.last != 0 || s.reason != "no ink" || w.status(s.task) != "failed" {
			t.Errorf("over %t failed %t after %d blocks: %q", s.over, s.failed, s.last, s.reason)
		}
		says(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":true,"isError":true`)
	}},
	{"12 the client removes repeats", allModes, func(t *testing.T, w *world) {
		h := w.call("tokens", `["streaming"]`)
		wiretest.Wait(11 * time.Second)
		g := newGatherer(t)
		g.take(w.pull(w.a, created(h), "1").one()) // what it fetches comes on the stream as well
		wiretest.Wait(10 * time.Second)
		g.take(w.pull(w.b, created(h), "1").one())
		wiretest.Wait(time.Minute)
		g.take(h.said()...)
		if got := fmt.Sprint(g.repeats); got != "[2]" || !h.ended() {
			t.Errorf("repeated %s, ended %t", got, h.ended())
		}
		g.merged(w.c, w.a)
	}},
	{"13 a new client and a server without the draft", allModes, func(t *testing.T, w *world) {
		c := draftConfig(t)
		c.Upstreams[0].ResponseModes = config.Off
		w.a = newWorld(t).gateway("off", draftScript(), c)
		w.c = newClient(t, w.a, allModes)
		for _, modes := range []string{`["streaming"]`, `["immediate","streaming"]`} {
			got := w.call("quick", modes).one()
			says(t, got, `"result":{"task":{`)
			lacks(t, got, mcp.MetaFallbackMode)
			id, _ := jsonrpc.GetString(got, "result", "task", "taskId")
			says(t, w.pull(w.a, shim.ID(id), "0").one(), `"content":[`) // the member means nothing
		}
	}},
	{"14 an old client and a server with the draft", "", func(t *testing.T, w *world) {
		for _, capabilities := range []string{``, `"tasks":{}`, allModes} {
			w.c = newClient(t, w.a, capabilities)
			got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"prompt","task":{}}`).one()
			says(t, got, `"result":{"task":{`)
			lacks(t, got, mcp.MetaFallbackMode, "partial-content", "isComplete")
		}
	}},
	{"15 mixed mechanisms", allModes, func(t *testing.T, w *world) {
		for tool, pull := range map[string]bool{"letters": false, "tokens": true} {
			h := w.call(tool, `["streaming","immediate"]`)
			wiretest.Wait(20 * time.Second)
			g := newGatherer(t)
			g.take(h.said()...) // the initial response, and events
			if pull {
				wiretest.Wait(7 * time.Second)
				g.take(w.pull(w.a, g.task, fmt.Sprint(g.highest())).one())
			}
			wiretest.Wait(time.Minute)
			if pull {
				g.take(w.pull(w.a, g.task, fmt.Sprint(g.highest())).one())
			}
			if _, missing := g.gap(); missing || len(g.repeats) != 0 || !h.ended() {
				t.Errorf("%s: %v with %v twice, ended %t", tool, g.numbers(), g.repeats, h.ended())
			}
			g.merged(w.c, w.b)
		}
	}},
}

func TestResponseModes(t *testing.T) {
	for _, s := range modeScenarios {
		inBubble(t, s.name, func(t *testing.T) { s.play(t, newDraftWorld(t, s.capabilities)) })
	}
}

// created is the task that the first answer names.
func created(h *hearing) shim.ID {
	id, _ := jsonrpc.GetString(h.said()[0], "result", "task", "taskId")
	return shim.ID(id)
}

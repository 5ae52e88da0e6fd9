package legacy_test

import (
	"fmt"
	"net/http"
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
	s.take(h.said()...)
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

func wantTexts(t *testing.T, got []byte, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(string(got), text) {
			t.Errorf("no %s in %s", text, got)
		}
	}
}

func wantNoTexts(t *testing.T, got []byte, unwanted ...string) {
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
// and 15 say what a client does, and are judged by one that does it (anyOrder).
var modeScenarios = []modeCase{
	{"01 immediate, complete results", allModes, func(t *testing.T, w *world) {
		got := w.call("quick", `["immediate"]`).one()
		wantTexts(t, got, `"result":{"content":[{"type":"text","text":"quick"}],"x":1.0,`, mcp.MetaRelatedTask)
		wantTexts(t, w.c.do(w.b, mcp.MethodTasksList, `{}`), `"status":"completed"`) // there is a task, too (A6)
	}},
	{"02 task, the standard flow", allModes, func(t *testing.T, w *world) {
		for _, task := range []string{`{"responseModes":["task"]}`, `{}`} {
			got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"quick","task":`+task+`}`).one()
			wantTexts(t, got, `"result":{"task":{`)
			wantNoTexts(t, got, mcp.MetaFallbackMode, "partial-content")
			id, _ := jsonrpc.GetString(got, "result", "task", "taskId")
			polls := 0
			for ; w.status(shim.ID(id)) == "working"; polls++ {
				wiretest.Wait(400 * time.Millisecond)
			}
			if polls != 3 {
				t.Errorf("%d polls", polls)
			}
			result := w.c.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+id+`"}`)
			wantTexts(t, result, `"content":[{"type":"text","text":"quick"}]`, `"x":1.0`, mcp.MetaRelatedTask)
			wantNoTexts(t, result, "seqNr", "isComplete")
		}
	}},
	{"03 streaming, the initial response only", allModes, func(t *testing.T, w *world) {
		h := w.call("prompt", `["streaming"]`)
		got := h.one()
		if kind := h.w.header.Get("Content-Type"); kind != mcp.TypeJSON {
			t.Errorf("one answer as %s", kind)
		}
		s := &segments{t: t}
		s.take(got)
		if s.task == "" || s.last != 2 {
			t.Errorf("%d blocks in %s", s.last, got)
		}
		s.wantMerged(w.c, w.b)
	}},
	{"04 streaming, multiple responses", allModes, func(t *testing.T, w *world) {
		h := w.call("letters", `["streaming","immediate"]`) // it says two in its grace
		wiretest.Wait(5 * time.Second)
		s := &segments{t: t}
		first := h.said()
		if s.take(first...); len(first) != 1 || s.last != 2 || s.over {
			t.Fatalf("at first %d blocks: %s", s.last, first)
		}
		if got := w.status(s.task); got != "working" { // until isComplete (A13)
			t.Errorf("amid the stream it is %s", got)
		}
		wiretest.Wait(40 * time.Second)
		all := h.said()
		if s.take(all[1:]...); len(all) != 5 || s.last != 5 {
			t.Errorf("%d blocks in %s", s.last, all)
		}
		if got := w.status(s.task); got != "completed" {
			t.Errorf("after it, it is %s", got)
		}
		s.wantMerged(w.c, w.b)
	}},
	{"05 streaming, event stream", allModes, func(t *testing.T, w *world) {
		h := w.call("letters", `["streaming"]`)
		wiretest.Wait(40 * time.Second)
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
			s.take([]byte(event.data))
		}
		s.wantMerged(w.c, w.b)
	}},
	{"06 streaming, resume with lastSeqNr", allModes, func(t *testing.T, w *world) {
		h, s := w.stream(t, "letters")
		wiretest.Wait(6500 * time.Millisecond)
		h.leave()
		if s.take(h.said()[1:]...); s.last != 3 {
			t.Fatalf("%d blocks", s.last)
		}
		wiretest.Wait(2 * time.Second)
		got := w.pull(w.a, s.task, "3").one()
		wantTexts(t, got, `"id":3,`, `"partial-content":[{"type":"text","text":"d","seqNr":4}],"isComplete":false`)
		s.take(got)
		w.pullRest(w.a, s)
		s.wantMerged(w.c, w.b)
	}},
	{"07 streaming, gap detection", allModes, func(t *testing.T, w *world) {
		h := w.call("letters", `["streaming"]`)
		wiretest.Wait(10500 * time.Millisecond)
		g := &segments{t: t, anyOrder: true}
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
		wantTexts(t, got, `"partial-content":[{"type":"text","text":"b","seqNr":2},{"type":"text","text":"c","seqNr":3},{"type":"text","text":"d","seqNr":4},{"type":"text","text":"e","seqNr":5}]`)
		g.take(got)
		wiretest.Wait(time.Second)
		g.take(w.pull(w.a, g.task, "5").one())
		if got := fmt.Sprint(g.repeats); got != "[3 5]" { // it has asked for them
			t.Errorf("repeated %s", got)
		}
		g.wantMerged(w.c, w.b)
	}},
	{"08 immediate, fallback", allModes, func(t *testing.T, w *world) {
		before := time.Now()
		got := w.call("plain", `["task","immediate"]`).one()
		wantTexts(t, got, `"result":{"task":{`, `"status":"working"`)
		wantNoTexts(t, got, mcp.MetaFallbackMode)
		if d := time.Since(before); d != 5*time.Second {
			t.Errorf("after %v, want the grace of the tool", d)
		}
		wantTexts(t, w.call("plain", `["immediate"]`).one(), `"task":{`, `"_meta":{"`+mcp.MetaFallbackMode+`":"task"}`)
		h := w.call("tokens", `["task","streaming","immediate"]`)
		wiretest.Wait(40 * time.Second)
		s := &segments{t: t}
		s.take(h.said()...)
		s.wantMerged(w.c, w.b)
	}},
	{"09 the ttl expires amid the stream", allModes, func(t *testing.T, w *world) {
		// While the task runs it is prolonged, and the stream goes on.
		h := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"letters","task":{"ttl":2000,"responseModes":["streaming"]}}`)
		wiretest.Wait(10500 * time.Millisecond)
		s := &segments{t: t}
		if s.take(h.said()...); s.last != 5 || s.over {
			t.Errorf("%d blocks, over %t", s.last, s.over)
		}
		wiretest.Wait(time.Second)
		wantTexts(t, w.pull(w.b, s.task, "5").one(), `"partial-content":[],"isComplete":true`)
		wiretest.Wait(40 * time.Second)
		wantTexts(t, w.pull(w.b, s.task, "1").one(), `"error":{"code":-32602,"message":"unknown task: the id was never given out, the task is another caller's, or its ttl is over"}`)
		// A client that does not read until it has expired hears of that, and never that
		// this was all.
		h = w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"letters","task":{"ttl":2000,"responseModes":["streaming"]}}`)
		wiretest.Wait(3 * time.Second)
		h.w.hold()
		wiretest.Wait(40 * time.Second)
		h.w.letGo()
		wiretest.Wait(time.Second)
		all := h.said()
		wantNoTexts(t, all[len(all)-1], "isComplete")
		wantTexts(t, all[len(all)-1], `"id":5,"error":{"code":-32603,"message":"`+shim.ErrBehind.Error()+`"}`)
		for _, msg := range all {
			wantNoTexts(t, msg, `"isComplete":true`)
		}
	}},
	{"10 cancelled amid the stream", allModes, func(t *testing.T, w *world) {
		h, s := w.stream(t, "forever")
		wiretest.Wait(11 * time.Second)
		s.take(h.said()[1:]...)
		if s.last != 1 || s.over {
			t.Errorf("%d blocks, over %t", s.last, s.over)
		}
		before := len(h.said())
		w.c.do(w.b, mcp.MethodTasksCancel, `{"taskId":"`+string(s.task)+`"}`)
		wiretest.Wait(time.Second)
		s.take(h.said()[before:]...)
		if !s.over || s.failed || !h.ended() || w.status(s.task) != "cancelled" {
			t.Errorf("over %t failed %t, the stream ended %t, %s", s.over, s.failed, h.ended(), w.status(s.task))
		}
		wiretest.Wait(40 * time.Second)
		wantTexts(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":true`) // nothing after it
	}},
	{"11 a failure amid the stream", allModes, func(t *testing.T, w *world) {
		for tool, pieces := range map[string]int64{"breaks": 2, "fails": 3} {
			h, s := w.stream(t, tool)
			wiretest.Wait(40 * time.Second)
			s.take(h.said()[1:]...)
			if !s.over || !s.failed || s.last != pieces || !h.ended() || w.status(s.task) != "failed" {
				t.Errorf("%s: over %t failed %t after %d blocks, %s", tool, s.over, s.failed, s.last, w.status(s.task))
			}
			wantTexts(t, w.pull(w.b, s.task, "1").one(), `"far "`, `"isComplete":true,"isError":true`)
		}
		h, s := w.stream(t, "broken") // before there was anything
		wiretest.Wait(40 * time.Second)
		s.take(h.said()[1:]...)
		if !s.over || !s.failed || s.last != 0 || s.reason != "no ink" || w.status(s.task) != "failed" {
			t.Errorf("over %t failed %t after %d blocks: %q", s.over, s.failed, s.last, s.reason)
		}
		wantTexts(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":true,"isError":true`)
	}},
	{"12 the client removes repeats", allModes, func(t *testing.T, w *world) {
		h := w.call("tokens", `["streaming"]`)
		wiretest.Wait(11 * time.Second)
		g := &segments{t: t, anyOrder: true}
		g.take(w.pull(w.a, created(h), "1").one()) // what it fetches comes on the stream as well
		wiretest.Wait(10 * time.Second)
		g.take(w.pull(w.b, created(h), "1").one())
		wiretest.Wait(40 * time.Second)
		g.take(h.said()...)
		if got := fmt.Sprint(g.repeats); got != "[2]" || !h.ended() {
			t.Errorf("repeated %s, ended %t", got, h.ended())
		}
		g.wantMerged(w.c, w.a)
	}},
	{"13 a new client and a server without the draft", allModes, func(t *testing.T, w *world) {
		c := draftConfig(t)
		c.Upstreams[0].ResponseModes = config.Off
		w.a = newWorld(t).gateway("off", draftScript(), c)
		w.c = newClient(t, w.a, allModes)
		for _, modes := range []string{`["streaming"]`, `["immediate","streaming"]`} {
			got := w.call("quick", modes).one()
			wantTexts(t, got, `"result":{"task":{`)
			wantNoTexts(t, got, mcp.MetaFallbackMode)
			id, _ := jsonrpc.GetString(got, "result", "task", "taskId")
			wantTexts(t, w.pull(w.a, shim.ID(id), "0").one(), `"content":[`) // the member means nothing
		}
	}},
	{"14 an old client and a server with the draft", "", func(t *testing.T, w *world) {
		for _, capabilities := range []string{``, `"tasks":{}`, allModes} {
			w.c = newClient(t, w.a, capabilities)
			got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"prompt","task":{}}`).one()
			wantTexts(t, got, `"result":{"task":{`)
			wantNoTexts(t, got, mcp.MetaFallbackMode, "partial-content", "isComplete")
		}
	}},
	{"15 mixed mechanisms", allModes, func(t *testing.T, w *world) {
		for tool, pull := range map[string]bool{"letters": false, "tokens": true} {
			h := w.call(tool, `["streaming","immediate"]`)
			wiretest.Wait(20 * time.Second)
			g := &segments{t: t, anyOrder: true}
			g.take(h.said()...) // the initial response, and events
			if pull {
				wiretest.Wait(7 * time.Second)
				g.take(w.pull(w.a, g.task, fmt.Sprint(g.last)).one())
			}
			wiretest.Wait(40 * time.Second)
			if pull {
				g.take(w.pull(w.a, g.task, fmt.Sprint(g.last)).one())
			}
			if _, missing := g.gap(); missing || len(g.repeats) != 0 || !h.ended() {
				t.Errorf("%s: %v with %v twice, ended %t", tool, g.numbers(), g.repeats, h.ended())
			}
			g.wantMerged(w.c, w.b)
		}
	}},
}

// modeCase is one of them, of a client that declares this.
type modeCase struct {
	name         string
	capabilities string
	play         func(*testing.T, *world)
}

func TestResponseModes(t *testing.T)     { playModes(t, modeScenarios) }
func TestResponseModeRules(t *testing.T) { playModes(t, modeRules) }

func playModes(t *testing.T, cases []modeCase) {
	for _, s := range cases {
		inBubble(t, s.name, func(t *testing.T) { s.play(t, newDraftWorld(t, s.capabilities)) })
	}
}

// created is the task that the first answer names.
func created(h *hearing) shim.ID {
	id, _ := jsonrpc.GetString(h.said()[0], "result", "task", "taskId")
	return shim.ID(id)
}

// modeRules are what the fifteen scenarios leave open of response modes (A1–A17).
var modeRules = []modeCase{
	{"A3 the order of the list is nothing", allModes, func(t *testing.T, w *world) {
		wantTexts(t, w.call("quick", `["task","streaming","immediate"]`).one(), `"text":"quick"`)
		h, s := w.stream(t, "quick")
		wiretest.Wait(2 * time.Second)
		s.take(h.said()[1:]...)
		s.wantMerged(w.c, w.a)
		wantTexts(t, w.call("plain", `["task"]`).one(), `"task":{`)
	}},
	{"A5 nothing in common is a task, with a warning", someModes, func(t *testing.T, w *world) {
		for _, modes := range []string{`["streaming"]`, `["unheard-of"]`, `[]`} {
			wantTexts(t, w.call("quick", modes).one(), `"task":{`, `"`+mcp.MetaFallbackMode+`":"task"`)
		}
	}},
	{"A7 a tool that does not stream falls back to a task", allModes, func(t *testing.T, w *world) {
		wantTexts(t, w.call("plain", `["immediate","task","streaming"]`).one(), `"task":{`, `"status":"working"`)
		got := w.call("plain", `["immediate","streaming"]`).one()
		wantTexts(t, got, `"task":{`, `"`+mcp.MetaFallbackMode+`":"task"`)
		wantNoTexts(t, got, "partial-content")
	}},
	{"A9 without event streams", allModes, func(t *testing.T, w *world) {
		got := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"tokens","task":{"responseModes":["streaming"]}}`, "Accept", mcp.TypeJSON).one()
		s := &segments{t: t} // there is only the first answer
		s.take(got)
		wiretest.Wait(11 * time.Second)
		wantTexts(t, w.pull(w.b, s.task, "1").one(), `"partial-content":[],"isComplete":false,"isError":false`)
		wiretest.Wait(11 * time.Second)
		wantTexts(t, w.pull(w.b, s.task, "1").one(), `{"type":"text","text":"upon ","seqNr":2}],"isComplete":false`)
		wantTexts(t, w.pull(w.b, s.task, "1e300").one(), `"partial-content":[],"isComplete":false`) // above the highest
		wiretest.Wait(40 * time.Second)
		wantTexts(t, w.pull(w.a, s.task, "4").one(), `{"type":"text","text":"end","seqNr":5}],"isComplete":true,"isError":false`)
		wantTexts(t, w.pull(w.a, s.task, "5").one(), `"partial-content":[],"isComplete":true`)
		wantTexts(t, w.pull(w.a, s.task, "99").one(), `"partial-content":[],"isComplete":true`)
		got = w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"prompt","task":{"responseModes":["streaming"]}}`, "Accept", mcp.TypeJSON).one()
		wantTexts(t, got, `"task":{`, `{"type":"text","text":"at ","seqNr":1},{"type":"text","text":"once","seqNr":2}],"isComplete":true`)
	}},
	{"A12 numbers that are none", allModes, func(t *testing.T, w *world) {
		_, s := w.stream(t, "forever")
		for _, no := range []string{`0`, `-1`, `1.5`, `"1"`, `null`, `{}`, `1e-400`} {
			wantTexts(t, w.pull(w.b, s.task, no).one(), `"error":{"code":-32602`)
		}
		for _, params := range []string{`{"name":"quick","task":{"responseModes":"task"}}`, `{"name":"quick","task":{"responseModes":[1]}}`} {
			wantTexts(t, w.c.ask(w.a, mcp.MethodToolsCall, params).one(), `"error":{"code":-32602`)
		}
		wantTexts(t, w.call("never", `["immediate"]`).one(), `"error":{"code":-32601`)
		wantTexts(t, w.call("never", `["streaming"]`).one(), `"error":{"code":-32601`)
	}},
	{"A12 all segments are the result", allModes, func(t *testing.T, w *world) {
		for _, tool := range []string{"quick", "plain", "tokens"} {
			h, s := w.stream(t, tool)
			wiretest.Wait(2 * time.Minute)
			s.take(h.said()[1:]...)
			if !h.ended() {
				t.Errorf("%s: not at its end", tool)
			}
			s.wantMerged(w.c, w.b)
			result := w.c.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+string(s.task)+`"}`)
			if tool == "tokens" {
				wantTexts(t, result, `"structuredContent":{"n":1.0}`)
			}
		}
	}},
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
	wantAlike(t, "lastSeqNr", foreign, ask(strange))
	wantTexts(t, []byte(foreign.body), "unknown task")
	alice.legacy(mcp.MethodTasksResult, `"taskId":"`+running+`","lastSeqNr":1`).want(t, http.StatusOK, `"partial-content":[],"isComplete":false`)
	h.events.proceed <- struct{}{}
	alice.awaitStatus(running, "completed")
}

// heardEvent is an event of a stream.
type heardEvent struct{ id, data string }

// events are those that a stream has had so far.
func (a *hearing) events() (list []heardEvent) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	for part := range strings.SplitSeq(a.w.body.String(), "\n\n") {
		e, some := heardEvent{}, false
		for line := range strings.Lines(part) {
			line = strings.TrimSpace(line)
			if rest, ok := strings.CutPrefix(line, "id:"); ok {
				e.id, some = strings.TrimSpace(rest), true
			}
			if rest, ok := strings.CutPrefix(line, "data:"); ok {
				e.data, some = strings.TrimSpace(rest), true
			}
		}
		if some {
			list = append(list, e)
		}
	}
	return list
}

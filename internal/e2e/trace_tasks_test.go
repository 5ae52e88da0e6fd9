package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/otlptest"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest/fake"
)

// tracedCases are what can become of a call. Each returns the ids of its tasks.
var tracedCases = []struct {
	name   string
	legacy bool // the same is expected of a server of 2025; else there is only one of 2026
	mode   fake.Mode
	act    func(*tracedWorld) []string
}{
	{"answered in time", true, fake.Modern, func(w *tracedWorld) []string {
		g := w.gateway()
		w.do(g, mcp.MethodToolsCall, map[string]any{"name": "quick", "arguments": map[string]any{"key": "secret"}})
		return nil
	}},
	{"became a task", true, fake.Modern, func(w *tracedWorld) []string {
		g := w.gateway()
		return w.completes(g, w.call(g, "slow"))
	}},
	{"a task at once", true, fake.Modern, func(w *tracedWorld) []string {
		g := w.gateway()
		return w.completes(g, w.call(g, "first"))
	}},
	{"question answered on another replica", true, fake.Modern, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "asks")
		w.answer(b, id)
		return w.ends(b, id, "completed")
	}},
	{"cancelled on another replica", true, fake.Modern, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "first")
		w.sees(id, "sent")
		w.do(b, mcp.MethodTasksCancel, map[string]any{"taskId": id})
		w.sees(id, "ended")
		return []string{id}
	}},
	{"failed", true, fake.Modern, func(w *tracedWorld) []string {
		g := w.gateway()
		return w.ends(g, w.call(g, "refuses"), "failed")
	}},
	{"tool error", true, fake.Modern, func(w *tracedWorld) []string {
		g := w.gateway()
		return w.ends(g, w.call(g, "fails"), "completed")
	}},
	{"timeout", true, fake.Modern, func(w *tracedWorld) []string {
		g := w.gateway()
		return w.ends(g, w.call(g, "late"), "failed")
	}},
	{"queued", true, fake.Modern, func(w *tracedWorld) []string {
		g := w.gateway()
		first := w.call(g, "queued")
		w.sees(first, "sent")
		second := w.call(g, "queued")
		w.sees(second, "made")
		return append(w.completes(g, first), w.ends(g, second, "completed")...)
	}},
	{"lost", true, fake.Modern, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "lost")
		w.kill(a, id, "sent")
		return w.ends(b, id, "failed")
	}},
	{"retried", true, fake.Modern, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "again")
		w.kill(a, id, "sent")
		w.sees(id, "retried")
		return w.completes(b, id)
	}},
	{"resumed after a kill", false, fake.Stateful, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "resumable")
		w.kill(a, id, "progress")
		w.sees(id, "resumed")
		return w.completes(b, id)
	}},
	{"adopted twice", false, fake.Stateful, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "resumable")
		w.kill(a, id, "progress")
		w.sees(id, "resumed")
		c := w.gateway()
		w.kill(b, id, "resumed")
		w.rec.Until(w.t, "the second adoption", patience, func() bool { return len(w.rec.Find("adopt resumable")) == 2 })
		return w.completes(c, id)
	}},
	{"handed over", false, fake.Stateful, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "resumable")
		w.sees(id, "progress")
		terminate(w.t, a.Process)
		w.sees(id, "resumed")
		return w.completes(b, id)
	}},
	{"listened to", false, fake.Modern, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		id := w.call(a, "first")
		w.sees(id, "sent")
		listened := make(chan error, 1)
		go func() { listened <- b.client(true).Listen(w.t.Context(), id) }()
		close(w.release)
		if err := <-listened; err != nil {
			w.t.Fatal(err)
		}
		w.sees(id, "ended")
		return []string{id}
	}},
	{"parked", false, fake.Stateful, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		w.noTasks = true
		var parked struct {
			InputRequests map[string]any
			RequestState  string
		}
		call := map[string]any{"name": "asks", "arguments": map[string]any{"key": "secret"}}
		if err := json.Unmarshal(w.do(a, mcp.MethodToolsCall, call), &parked); err != nil || len(parked.InputRequests) != 1 {
			w.t.Fatalf("%+v %v", parked, err)
		}
		call["requestState"] = parked.RequestState
		call["inputResponses"] = answersTo(parked.InputRequests)
		w.do(b, mcp.MethodToolsCall, call)
		id := ""
		w.rec.Until(w.t, "the end of the call", patience, func() bool {
			for _, l := range w.rec.Logs() {
				if l.Event == "taskgate.task.ended" {
					id = l.Attributes["task_id"]
				}
			}
			return id != ""
		})
		return []string{id}
	}},
	{"legacy client asked", true, fake.Modern, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		s := begin(w.t, a)
		id := s.task(a, "asks", none)
		w.sees(id, "asked")
		if _, answer := s.stay(a, b, mcp.MethodTasksResult, `{"taskId":"`+id+`"}`, `{"secret":"secret"}`); answer.Result == nil {
			w.t.Errorf("the task had no result: %+v", answer.Error)
		}
		w.sees(id, "ended")
		return []string{id}
	}},
	{"legacy client", true, fake.Modern, func(w *tracedWorld) []string {
		a, b := w.gateway(), w.gateway()
		s := begin(w.t, a)
		id := s.task(a, "first", none)
		w.sees(id, "sent")
		cancelled := s.task(a, "first", none)
		w.sees(cancelled, "sent")
		s.do(b, mcp.MethodTasksCancel, `{"taskId":"`+cancelled+`"}`)
		w.sees(cancelled, "ended")
		close(w.release)
		s.do(b, mcp.MethodTasksResult, `{"taskId":"`+id+`"}`)
		return []string{id, cancelled}
	}},
	{"legacy client, what fails", true, fake.Modern, func(w *tracedWorld) (ids []string) {
		g := w.gateway()
		s := begin(w.t, g)
		for _, tool := range []string{"refuses", "fails", "late"} {
			id := s.task(g, tool, none)
			w.sees(id, "ended")
			ids = append(ids, id)
		}
		return ids
	}},
	{"legacy client, lost", true, fake.Modern, func(w *tracedWorld) []string {
		a := w.gateway()
		s := begin(w.t, a)
		w.gateway()
		id := s.task(a, "lost", none)
		w.kill(a, id, "sent")
		w.sees(id, "ended")
		return []string{id}
	}},
	{"legacy client, retried", true, fake.Modern, func(w *tracedWorld) []string { return w.goesOn("again", "sent", "retried") }},
	{"legacy client, resumed after a kill", false, fake.Stateful, func(w *tracedWorld) []string {
		return w.goesOn("resumable", "progress", "resumed")
	}},
}

// goesOn makes a task for a legacy client, kills its replica after one event, and lets the tool answer
// once another replica goes on with it.
func (w *tracedWorld) goesOn(tool, after, how string) []string {
	w.t.Helper()
	a := w.gateway()
	s := begin(w.t, a)
	b := w.gateway()
	id := s.task(a, tool, none)
	w.kill(a, id, after)
	w.sees(id, how)
	close(w.release)
	s.do(b, mcp.MethodTasksResult, `{"taskId":"`+id+`"}`)
	w.sees(id, "ended")
	return []string{id}
}

// completes lets the tools answer, and waits for the end of a task.
func (w *tracedWorld) completes(g *gateway, id string) []string {
	w.t.Helper()
	close(w.release)
	return w.ends(g, id, "completed")
}

func (w *tracedWorld) ends(g *gateway, id, status string) []string {
	w.t.Helper()
	waitFor(w.t, g.client(true), id, status)
	w.sees(id, "ended")
	return []string{id}
}

// answer answers the question of a task, once it is there.
func (w *tracedWorld) answer(g *gateway, id string) {
	w.t.Helper()
	var task struct{ InputRequests map[string]any }
	eventually(w.t, "the question", func() error {
		err := json.Unmarshal(w.do(g, mcp.MethodTasksGet, map[string]any{"taskId": id}), &task)
		if err == nil && len(task.InputRequests) == 0 {
			err = errNotYet
		}
		return err
	})
	w.sees(id, "asked")
	w.do(g, mcp.MethodTasksUpdate, map[string]any{"taskId": id, "inputResponses": answersTo(task.InputRequests)})
}

func answersTo(questions map[string]any) map[string]any {
	answers := map[string]any{}
	for key := range questions {
		answers[key] = map[string]any{"action": "accept", "content": map[string]any{"secret": "secret"}}
	}
	return answers
}

// TestTaskTraces: for all that can become of a call, the exact spans, links, attributes and
// events that a receiver of OTLP gets from the replicas, some of which are killed. A task has
// one trace, no span is without its parent, and what a replica runs can be seen within five
// seconds, before it is killed. The expectations are in testdata/traces; -update writes them.
func TestTaskTraces(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t).URL()
	for _, c := range tracedCases {
		modes := map[string]fake.Mode{c.name: c.mode}
		if c.legacy {
			modes[c.name+", legacy server"] = fake.Stateful
		}
		for name, mode := range modes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newTracedWorld(t, redis, mode)
				w.check(name, c.act(w)...)
			})
		}
	}
}

// TestRunningTasksAreTraced: what a task begins with leaves while it runs: it is at the receiver when its
// replica is killed, and the attempt of the next one hangs below it.
func TestRunningTasksAreTraced(t *testing.T) {
	t.Parallel()
	w := newTracedWorld(t, redistest.Start(t).URL(), fake.Modern)
	a, b := w.gateway(), w.gateway()
	id := w.call(a, "again")
	w.rec.Until(t, "the root", 5*time.Second, func() bool { return len(w.rec.Find("task again")) == 1 })
	a.Kill()
	w.sees(id, "retried")
	w.completes(b, id)
	w.stop()
	root, adopt := w.rec.Find("task again")[0], w.rec.Find("adopt again")
	if len(adopt) != 1 || adopt[0].Parent != root.ID || adopt[0].TraceID != root.TraceID || root.Attributes["taskgate.task.id"] != id {
		t.Errorf("%s\n%s", id, otlptest.Tree(w.rec.Spans()))
	}
	if orphans := otlptest.Orphans(w.rec.Spans()); len(orphans) > 0 {
		t.Errorf("no parent was exported of %v", orphans)
	}
}

// TestSampledTask: a task of a sampled request has all its spans although the sampler wants none for
// requests without a parent. Its events are lines of the process's log, too, with the ids of its trace.
func TestSampledTask(t *testing.T) {
	t.Parallel()
	w := newTracedWorld(t, redistest.Start(t).URL(), fake.Modern)
	close(w.release)
	g := w.gateway("OTEL_TRACES_SAMPLER=parentbased_always_off")
	w.do(g, mcp.MethodToolsCall, map[string]any{"name": "quick"})
	w.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	id := w.call(g, "first")
	w.ends(g, id, "completed")
	w.stop()
	want := "tools/call first [server, replica A] (below a span of the client) -> task first\n" +
		"task first [internal, replica A] -> tools/call first\n" +
		"  run first [internal, replica A] taskgate.task.outcome=completed\n" +
		"  tools/call first [client, replica A]\n"
	if got := otlptest.Tree(w.rec.Spans(), "taskgate.task.outcome"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	root := w.rec.Find("task first")[0]
	line := fmt.Sprintf("task_id=%s upstream=up tool=first event=taskgate.task.made trace_id=%s span_id=%s", id, root.TraceID, root.ID)
	if !strings.Contains(g.Output(), line) {
		t.Errorf("%q is not in\n%s", line, g.Output())
	}
}

// TestTracePicture: the picture in docs/tracing.md is that of a real run, in which the replica
// of a call is killed and another one asks the client. -update draws it anew.
func TestTracePicture(t *testing.T) {
	t.Parallel()
	w := newTracedWorld(t, redistest.Start(t).URL(), fake.Stateful)
	w.server.Tool("research", func(x *fake.Exchange) {
		x.Run()
		x.Resumable(0, 0, func(send func(string)) {
			send(x.Progress(1, "half"))
			answered := x.Expect(`"q-1"`)
			if w.released() {
				send(`{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{"mode":"form","message":"secret","requestedSchema":{"type":"object","properties":{}}}}`)
				x.Await(answered)
				send(x.Result(`{"content":[{"type":"text","text":"done"}]}`))
			}
		})
	})
	a, b := w.gateway(), w.gateway()
	w.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	id := w.call(a, "research")
	w.traceparent = ""
	w.kill(a, id, "progress")
	w.sees(id, "resumed")
	close(w.release)
	w.answer(b, id)
	w.ends(b, id, "completed")
	w.stop()
	if sent := w.server.Seen(mcp.MethodToolsCall)[0].Header.Get("traceparent"); !strings.Contains(sent, w.rec.Find("task research")[0].TraceID) {
		t.Errorf("the server was called in the trace %s", sent)
	}
	drawn := "```\n" + otlptest.Tree(w.rec.Spans(), "taskgate.task.attempt.kind", "taskgate.task.outcome", "taskgate.upstream.resumed", "taskgate.question.outcome")
	for _, name := range w.rec.Events(id) {
		drawn += fmt.Sprintln("event", name)
	}
	drawn += "```\n"

	const begin, end = "<!-- drawn by TestTracePicture -->\n", "<!-- end of the picture -->\n"
	file := filepath.Join("..", "..", "docs", "tracing.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), begin)
	picture, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatal("there is no place for the picture in docs/tracing.md")
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+drawn+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case picture != drawn:
		t.Errorf("got\n%s\nwant\n%s", drawn, picture)
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/otlptest"
	"taskgate/internal/proc"
	"taskgate/internal/taskclient"
	"taskgate/shim/shimtest/fake"
)

// tracedReplica is the configuration of a gateway whose traces are looked at.
const tracedReplica = `
store: %s
key_prefix: %s
heartbeat: 1s
drain_timeout: 1s
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams:
  - name: up
    path: /mcp
    url: %s
    defaults: {tasks: always, poll_interval: 100ms}
    tools:
      - {match: slow, tasks: auto, grace: 300ms}
      - {match: quick, tasks: auto, grace: 30s}
      - {match: again, recover: retry}
      - {match: late, timeout: 1s}
      - {match: queued, concurrency: 1}
`

// tracedWorld is gateways in front of a server that the test drives, all of which export to one
// receiver.
type tracedWorld struct {
	t       *testing.T
	rec     *otlptest.Receiver
	server  *fake.Server
	yaml    string
	release chan struct{} // closed when the tools may answer

	traceparent string // that clients send; "" for none
	noTasks     bool   // clients do not take tasks
	running     []*gateway
}

func newTracedWorld(t *testing.T, redis string, mode fake.Mode) *tracedWorld {
	t.Helper()
	w := &tracedWorld{t: t, rec: otlptest.Start(t), server: fake.New(t, mode), release: make(chan struct{})}
	at, err := url.Parse(w.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.yaml = fmt.Sprintf(tracedReplica, redis, "port"+at.Port(), w.server.URL)
	for _, tool := range []string{"slow", "first", "again", "late", "lost", "queued"} {
		w.server.Tool(tool, w.waits(fake.Text("done")))
	}
	w.server.Tool("quick", fake.Text("done"))
	w.server.Tool("refuses", fake.RPCError(200, -32000, "secret", ""))
	w.server.Tool("fails", fake.Result(`{"resultType":"complete","isError":true,"content":[{"type":"text","text":"secret"}]}`))
	w.server.Tool("asks", w.asks(mode))
	w.server.Tool("resumable", func(x *fake.Exchange) {
		x.Run()
		x.Resumable(50*time.Millisecond, 0, func(send func(string)) {
			send(x.Progress(1, "secret"))
			if w.released() {
				send(x.Result(`{"resultType":"complete","content":[{"type":"text","text":"done"}]}`))
			}
		})
	})
	return w
}

// waits answers when the test says so.
func (w *tracedWorld) waits(then fake.Behaviour) fake.Behaviour {
	return func(x *fake.Exchange) {
		select {
		case <-w.release:
			then(x)
		case <-x.R.Context().Done():
		case <-w.t.Context().Done():
		}
	}
}

// released waits until the tools may answer.
func (w *tracedWorld) released() bool {
	select {
	case <-w.release:
		return true
	case <-w.t.Context().Done():
		return false
	}
}

// asks asks in the way of the server's era, and then answers.
func (w *tracedWorld) asks(mode fake.Mode) fake.Behaviour {
	const form = `{"mode":"form","message":"secret","requestedSchema":{"type":"object","properties":{"secret":{"type":"string"}}}}`
	if mode != fake.Modern {
		return func(x *fake.Exchange) {
			x.Ask(`"q-1"`, mcp.MethodElicit, form)
			x.Event(x.Result(`{"content":[{"type":"text","text":"done"}]}`))
		}
	}
	return func(x *fake.Exchange) {
		if strings.Contains(string(x.Params), `"inputResponses"`) {
			fake.Text("done")(x)
			return
		}
		fake.Result(`{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":` + form + `}}}`)(x)
	}
}

// gateway starts one more replica, with more variables in its environment.
func (w *tracedWorld) gateway(env ...string) *gateway {
	w.t.Helper()
	c := proc.Command{Env: append(append(w.rec.Env(), "OTEL_METRIC_EXPORT_INTERVAL=3600000"), env...)} // metrics come at its end
	g := startAt(w.t, freeAddr(w.t), c, configured(w.t, w.yaml)...)
	w.running = append(w.running, g)
	return g
}

// call makes a task of a call, as a modern client that can be asked.
func (w *tracedWorld) call(g *gateway, tool string) (id string) {
	w.t.Helper()
	result := w.do(g, mcp.MethodToolsCall, map[string]any{"name": tool, "arguments": map[string]any{"key": "secret"}})
	var task taskclient.Task
	if err := json.Unmarshal(result, &task); err != nil || task.ID == "" {
		w.t.Fatalf("no task was made: %s %v", result, err)
	}
	return task.ID
}

func (w *tracedWorld) do(g *gateway, method string, params map[string]any) json.RawMessage {
	w.t.Helper()
	capabilities := map[string]any{"elicitation": map[string]any{}}
	if !w.noTasks {
		capabilities["extensions"] = map[string]any{mcp.ExtensionTasks: map[string]any{}}
	}
	meta := map[string]any{mcp.MetaClientCapabilities: capabilities}
	if w.traceparent != "" {
		meta["traceparent"] = w.traceparent
	}
	params["_meta"] = meta
	result, err := g.client(true).Do(w.t.Context(), method, params)
	if err != nil {
		w.t.Fatalf("%s: %v", method, err)
	}
	return result
}

// sees waits until the receiver has the event of a task. Five seconds is what a reader has to
// wait for at most.
func (w *tracedWorld) sees(id, event string) {
	w.t.Helper()
	w.rec.Until(w.t, event, 5*time.Second, func() bool {
		for _, l := range w.rec.Logs() {
			if l.Event == "taskgate.task."+event && l.Attributes["task_id"] == id && w.has(l.SpanID) {
				return true
			}
		}
		return false
	})
}

// has reports whether the receiver has the span.
func (w *tracedWorld) has(id string) bool {
	for _, s := range w.rec.Spans() {
		if s.ID == id {
			return true
		}
	}
	return false
}

// kill ends a replica with SIGKILL, once what it runs can be seen, and the request that made it.
func (w *tracedWorld) kill(g *gateway, id, after string) {
	w.t.Helper()
	w.sees(id, after)
	w.rec.Until(w.t, "the request", patience, func() bool {
		return slices.ContainsFunc(w.rec.Spans(), func(s otlptest.Span) bool { return s.Attributes["taskgate.task.id"] == id && s.Kind == "server" })
	})
	g.Kill()
}

// stop ends all replicas in good order, so that everything is exported.
func (w *tracedWorld) stop() {
	w.t.Helper()
	for _, g := range w.running {
		if g.Signal(syscall.SIGTERM) == nil {
			within(w.t, g.Process, 20*time.Second)
		}
	}
}

// check holds what is true of all traces of tasks, and compares them with what is expected.
func (w *tracedWorld) check(name string, ids ...string) {
	w.t.Helper()
	w.stop()
	spans := w.rec.Spans()
	for _, s := range otlptest.Orphans(spans) {
		w.t.Errorf("no parent was exported of %s", s.Name)
	}
	traces := map[string]map[string]bool{}
	for _, s := range spans {
		if id := s.Attributes["taskgate.task.id"]; id != "" && s.Kind == "internal" {
			if traces[id] == nil {
				traces[id] = map[string]bool{}
			}
			traces[id][s.TraceID] = true
		}
		if s.Events > 0 || s.StatusText != "" {
			w.t.Errorf("%s has %d span events and the text %q", s.Name, s.Events, s.StatusText)
		}
		if s.Resource["service.name"] != "taskgate" || s.Resource["service.instance.id"] == "" || s.Resource["service.version"] == "" {
			w.t.Errorf("%s comes from %v", s.Name, s.Resource)
		}
	}
	var out strings.Builder
	out.WriteString(otlptest.Tree(spans))
	for _, id := range ids {
		if len(traces[id]) != 1 {
			w.t.Errorf("%d traces of one task", len(traces[id]))
		}
		out.WriteString("\nevents:\n")
		for _, l := range w.rec.Logs() {
			if l.Event == "" || l.Attributes["task_id"] != id {
				continue
			}
			if !traces[id][l.TraceID] || !w.has(l.SpanID) {
				w.t.Errorf("%s is not in the trace of its task", l.Event)
			}
			fmt.Fprintf(&out, "%s %s", l.Severity, l.Event)
			for _, k := range []string{"attempt", "runs", "questions", "outcomes", "notifications", "status", "outcome", "error_type"} {
				if v, ok := l.Attributes[k]; ok {
					fmt.Fprintf(&out, " %s=%s", k, v)
				}
			}
			out.WriteString("\n")
		}
	}
	out.WriteString("\nmetrics:\n" + w.points())
	if strings.Contains(string(w.rec.Raw()), "secret") {
		w.t.Error("a signal has what was said")
	}
	golden(w.t, filepath.Join("testdata", "traces", strings.ReplaceAll(name, " ", "_")+".txt"), out.String())
}

// points are what was counted and measured, but for polls and the store, whose number differs from
// run to run. What a replica that was killed has measured is not among it.
func (w *tracedWorld) points() string {
	var lines []string
	for name, n := range w.rec.Points() {
		own := strings.HasPrefix(name, "mcp.") || strings.HasPrefix(name, "taskgate.")
		if own && !strings.HasPrefix(name, "taskgate.store.") && !strings.Contains(name, "mcp.method.name="+mcp.MethodTasksGet) {
			lines = append(lines, fmt.Sprintf("%s: %v\n", name, n))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// golden compares with a file, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

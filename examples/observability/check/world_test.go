package check

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/otlptest"
	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// patience is how long anything may take that is waited for.
const patience = 20 * time.Second

// replicas is the configuration of both.
const replicas = `
store: %s
heartbeat: 1s
drain_timeout: 1s
log: {level: error}
upstreams:
  - name: lab
    path: /mcp
    url: %s
    defaults: {tasks: always, poll_interval: 100ms}
    tools:
      - {match: count, tasks: auto, grace: 30s}
      - {match: book, tasks: auto, grace: 200ms, concurrency: 1, recover: retry}
`

// world is two replicas in front of a server of the Go SDK, and what looks at them.
type world struct {
	t          *testing.T
	rec        *otlptest.Receiver
	prometheus *prometheus
	a, b       *replica
	lab        *lab
}

// replica is a running taskgate.
type replica struct {
	*proc.Process
	client *taskclient.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, rec: otlptest.Start(t), lab: newLab(t)}
	program := filepath.Join(t.TempDir(), "taskgate")
	build := exec.Command("go", "build", "-o", program, "./cmd/taskgate")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, replicas, redistest.Start(t).URL(), w.lab.url), 0o600); err != nil {
		t.Fatal(err)
	}
	var admins [2]string
	w.a, admins[0] = w.start(program, file)
	w.b, admins[1] = w.start(program, file)
	w.prometheus = newPrometheus(t, admins[:]...)
	for _, r := range []*replica{w.a, w.b} {
		w.do(r, mcp.MethodToolsList, map[string]any{})
	}
	return w
}

// start starts a replica, and returns its admin address.
func (w *world) start(program, config string) (*replica, string) {
	w.t.Helper()
	at, admin := programtest.FreeAddr(w.t), programtest.FreeAddr(w.t)
	p := programtest.Start(w.t, proc.Command{
		Name: "taskgate", Path: program, Env: append(w.rec.Env(), "OTEL_METRICS_EXPORTER=none", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_BLRP_SCHEDULE_DELAY=100"),
		Args: []string{"serve", "--config", config, "--listen", at, "--admin", admin},
	}, patience, at, admin)
	return &replica{p, &taskclient.Client{URL: "http://" + at + "/mcp"}}, admin
}

// do sends a request of a client that takes tasks and can be asked.
func (w *world) do(r *replica, method string, params map[string]any) json.RawMessage {
	w.t.Helper()
	params["_meta"] = map[string]any{mcp.MetaClientCapabilities: map[string]any{
		"elicitation": map[string]any{}, "extensions": map[string]any{mcp.ExtensionTasks: map[string]any{}},
	}}
	result, err := r.client.Do(w.t.Context(), method, params)
	if err != nil {
		w.t.Fatalf("%s: %v", method, err)
	}
	return result
}

// call calls a tool. The id of the task is "" where there is none.
func (w *world) call(r *replica, tool string, what work) (id string) {
	w.t.Helper()
	var task taskclient.Task
	if err := json.Unmarshal(w.do(r, mcp.MethodToolsCall, map[string]any{"name": tool, "arguments": what}), &task); err != nil {
		w.t.Fatal(err)
	}
	return task.ID
}

// answer answers what a task asks, at a replica.
func (w *world) answer(r *replica, id string) {
	w.t.Helper()
	var task struct{ InputRequests map[string]any }
	programtest.Until(w.t, "the question", patience, func() bool {
		if err := json.Unmarshal(w.do(r, mcp.MethodTasksGet, map[string]any{"taskId": id}), &task); err != nil {
			w.t.Fatal(err)
		}
		return len(task.InputRequests) > 0
	})
	for key := range task.InputRequests {
		task.InputRequests[key] = map[string]any{"action": "accept", "content": map[string]any{}}
	}
	w.do(r, mcp.MethodTasksUpdate, map[string]any{"taskId": id, "inputResponses": task.InputRequests})
}

// told waits until the receiver has an event of a task.
func (w *world) told(id, event string) {
	w.t.Helper()
	w.rec.Until(w.t, event, patience, func() bool {
		for _, name := range w.rec.Events(id) {
			if name == "taskgate.task."+event {
				return true
			}
		}
		return false
	})
}

// lasts lets at least so much time pass since some moment.
func (w *world) lasts(since time.Time, d time.Duration) {
	w.t.Helper()
	programtest.Until(w.t, d.String(), patience, func() bool { return time.Since(since) >= d })
}

// scrapes has Prometheus read the replicas for so long, by its clock.
func (w *world) scrapes(d time.Duration) {
	w.t.Helper()
	for range int(d / scrapeInterval) {
		w.prometheus.scrape()
	}
}

// work is what a tool of the lab is to do. Each part of it is optional.
type work struct {
	Asks   bool   `json:"asks"` // its client, when it begins for the first time
	Millis int    `json:"millis"`
	Gate   string `json:"gate"` // waits until that is opened
	Fails  bool   `json:"fails"`
}

// lab is a server of the Go SDK.
type lab struct {
	url string

	mu    sync.Mutex
	gates map[string]chan struct{}
	asked map[string]bool // by the gate
}

// labTools are its tools.
var labTools = []string{"count", "convert", "report", "export", "book", "pay", "approve", "check"}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{gates: map[string]chan struct{}{}, asked: map[string]bool{}}
	server := sdk.NewServer(&sdk.Implementation{Name: "lab", Version: "1"}, nil)
	for _, name := range labTools {
		server.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return l.run(t.Context(), ctx, r)
		})
	}
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(web.CloseClientConnections) // a call whose replica was killed waits for ever
	l.url = web.URL
	return l
}

func (l *lab) run(test, ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	var what work
	if err := json.Unmarshal(r.Params.Arguments, &what); err != nil {
		return nil, err
	}
	if what.Asks && l.asks(what.Gate) {
		form := &sdk.ElicitParams{Mode: "form", Message: "secret", RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)}
		if _, err := r.Session.Elicit(ctx, form); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(time.Duration(what.Millis) * time.Millisecond):
	case <-test.Done():
	}
	if what.Gate != "" {
		select {
		case <-l.gate(what.Gate):
		case <-test.Done():
		}
	}
	return &sdk.CallToolResult{IsError: what.Fails, Content: []sdk.Content{&sdk.TextContent{Text: "secret"}}}, nil
}

// asks reports whether the call of that gate has not asked yet.
func (l *lab) asks(gate string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.asked[gate]
	l.asked[gate] = true
	return !before
}

func (l *lab) gate(name string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gates[name] == nil {
		l.gates[name] = make(chan struct{})
	}
	return l.gates[name]
}

// open lets the calls at a gate go on.
func (l *lab) open(gate string) { close(l.gate(gate)) }

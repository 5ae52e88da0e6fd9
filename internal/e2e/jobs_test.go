package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest/fake"
)

// jobsWorld is two gateways in front of a server with job tools of its own, whose jobs the test ends.
type jobsWorld struct {
	t      *testing.T
	a, b   *gateway
	yaml   string
	server *fake.Server

	mu     sync.Mutex
	states map[string]string // by job
	asked  map[string]int
	ended  map[string]int // how often each was cancelled
}

func newJobsWorld(t *testing.T, mode fake.Mode) *jobsWorld {
	t.Helper()
	w := &jobsWorld{t: t, server: fake.New(t, mode), states: map[string]string{}, asked: map[string]int{}, ended: map[string]int{}}
	w.server.Tool("start_export", w.start)
	w.server.Tool("start_quick", w.start)
	w.server.Tool("export_status", w.status)
	w.server.Tool("export_result", func(x *fake.Exchange) { fake.Text("export of " + x.Arg("job"))(x) })
	w.server.Tool("cancel_export", func(x *fake.Exchange) {
		w.mu.Lock()
		w.ended[x.Arg("job")]++
		w.mu.Unlock()
		fake.Text("cancelled")(x)
	})
	w.yaml = "store: " + redistest.Start(t).URL() + "\nheartbeat: 1s\ndrain_timeout: 1s\nupstreams:\n" +
		fmt.Sprintf("  - name: exports\n    path: /mcp\n    url: %q\n", w.server.URL) + `
    defaults: {tasks: auto, grace: 1s, poll_interval: 100ms}
    tools:
      - match: start_export
        job: &job
          id: $.jobId
          status: {tool: export_status, arguments: {job: "{id}"}, value: $.state}
          running: [running]
          done: [succeeded]
          message: $.detail
          result: {tool: export_result, arguments: {job: "{id}"}}
          cancel: {tool: cancel_export, arguments: {job: "{id}"}}
          interval: 200ms
          max_interval: 500ms
          hide: on
      - {match: start_quick, grace: 30s, job: *job}
`
	w.a, w.b = startGateway(t, configured(t, w.yaml)...), startGateway(t, configured(t, w.yaml)...)
	return w
}

// start begins a job that is called as its key.
func (w *jobsWorld) start(x *fake.Exchange) {
	key := x.Arg("key")
	w.mu.Lock()
	if w.states[key] == "" {
		w.states[key] = "running"
	}
	w.mu.Unlock()
	fake.Result(fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":"{\"jobId\":\"%s\"}"}]}`, key))(x)
}

func (w *jobsWorld) status(x *fake.Exchange) {
	w.mu.Lock()
	job := x.Arg("job")
	w.asked[job]++
	state := w.states[job]
	w.mu.Unlock()
	fake.Result(fmt.Sprintf(`{"resultType":"complete","content":[],"structuredContent":{"state":%q,"detail":"at work"}}`, state))(x)
}

// end ends jobs, whether they have begun or not.
func (w *jobsWorld) end(keys ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		w.states[key] = "succeeded"
	}
}

// cancelled is how often a job was cancelled at the server.
func (w *jobsWorld) cancelled(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended[key]
}

// polls is how often a job was asked for.
func (w *jobsWorld) polls(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[key]
}

// To clients of every kind a server's job tools are one tool, whose result is that of the job.
func TestJobTools(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]fake.Mode{"2025-11-25": fake.Stateful, "2026-07-28": fake.Modern} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkJobTools(t, newJobsWorld(t, mode))
		})
	}
}

func checkJobTools(t *testing.T, w *jobsWorld) {
	s := begin(t, w.a)
	for era, list := range map[string]json.RawMessage{"legacy": s.do(w.a, mcp.MethodToolsList, `{}`), "modern": listed(t, w.a)} {
		if text := string(list); !strings.Contains(text, `"start_export"`) || !strings.Contains(text, "do not ask for a status") || strings.Contains(text, "export_status") || strings.Contains(text, "cancel_export") || strings.Contains(text, "export_result") {
			t.Errorf("a client of the %s era is shown %s", era, list)
		}
	}
	w.end("quick", "quick-legacy")
	if got := callPlain(t, w.a.client(true), "start_quick", keyed("quick")); got != "export of quick" {
		t.Errorf("the result of a quick job is %q", got)
	}
	if got := texts(t, s.do(w.a, mcp.MethodToolsCall, `{"name":"start_export","arguments":{"key":"quick-legacy"}}`)); got != "export of quick-legacy" {
		t.Errorf("the result of a quick job is %q", got)
	}

	task := callTask(t, w.a.client(true), "start_export", keyed("task"))
	demanded := s.task(w.a, "start_export", keyed("demanded"))
	var calls sync.WaitGroup
	calls.Go(func() {
		result, _, err := w.b.client(false).CallTool(t.Context(), "start_export", keyed("plain"))
		if err != nil || texts(t, result) != "export of plain" {
			t.Errorf("the result of a call that blocks is %s, %v", result, err)
		}
	})
	calls.Go(func() {
		if got := texts(t, s.do(w.a, mcp.MethodToolsCall, `{"name":"start_export","arguments":{"key":"legacy"}}`)); got != "export of legacy" {
			t.Errorf("the result of a legacy call is %q", got)
		}
	})
	until(t, "all jobs", func() bool { return w.polls("plain") > 2 && w.polls("legacy") > 2 && w.polls("demanded") > 2 })
	eventually(t, "the status message", func() error {
		if now, err := w.b.client(true).Get(t.Context(), task.ID); err != nil || now.StatusMessage != "at work" {
			return fmt.Errorf("%+v, %w", now, err)
		}
		return nil
	})
	w.end("task", "demanded", "plain", "legacy")
	if got := texts(t, waitFor(t, w.b.client(true), task.ID, "completed").Result); got != "export of task" {
		t.Errorf("the result of a task is %q", got)
	}
	if got := texts(t, s.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+demanded+`"}`)); got != "export of demanded" {
		t.Errorf("the result of a legacy task is %q", got)
	}
	calls.Wait()

	cancelled := callTask(t, w.a.client(true), "start_export", keyed("cancelled"))
	if err := w.b.client(true).Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the job", func() bool { return w.cancelled("cancelled") == 1 })
	wantStarted(t, w, "quick", "quick-legacy", "task", "demanded", "plain", "legacy", "cancelled")
}

// listed is the list of tools that a modern client gets.
func listed(t *testing.T, g *gateway) json.RawMessage {
	t.Helper()
	result, err := g.client(true).Do(t.Context(), mcp.MethodToolsList, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// wantStarted wants each job to have been started once.
func wantStarted(t *testing.T, w *jobsWorld, keys ...string) {
	t.Helper()
	started := map[string]int{}
	for _, x := range w.server.Seen(mcp.MethodToolsCall) {
		if strings.Contains(string(x.Params), `"start_`) {
			for _, key := range keys {
				if strings.Contains(string(x.Params), `"`+key+`"`) {
					started[key]++
				}
			}
		}
	}
	for _, key := range keys {
		if started[key] != 1 {
			t.Errorf("%s was started %d times", key, started[key])
		}
	}
}

// The jobs of a killed replica are the other one's, and those of one that stops; a server that is away costs time only.
func TestJobsOutliveReplicas(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]fake.Mode{"2025-11-25": fake.Stateful, "2026-07-28": fake.Modern} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, ids := newJobsWorld(t, mode), map[string]string{}
			for _, key := range []string{"one", "two", "three"} {
				ids[key] = callTask(t, w.a.client(true), "start_export", keyed(key)).ID
			}
			w.a.Kill()
			w.server.LoseSessions() // as when the server is started anew
			before := w.polls("one")
			until(t, "the other replica that goes on", func() bool { return w.polls("one") > before+1 && w.polls("two") > 1 && w.polls("three") > 1 })
			third := startGateway(t, configured(t, w.yaml)...)
			stops(t, w.b.Process, 20*time.Second)
			before = w.polls("one")
			until(t, "the third replica that goes on", func() bool { return w.polls("one") > before+1 })
			w.end("one", "two", "three")
			for key, id := range ids {
				if got := texts(t, waitFor(t, third.client(true), id, "completed").Result); got != "export of "+key {
					t.Errorf("the result of %s is %q", key, got)
				}
			}
			wantStarted(t, w, "one", "two", "three")
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.ended) > 0 {
				t.Errorf("cancelled: %v", maps.Clone(w.ended))
			}
		})
	}
}

// A client without tasks that gives up slow calls is told of the job in words, and reads its result by the gateway's own
// tool; a client over stdio waits for it. Neither asks the server for the job.
func TestJobByHandleAndOverStdio(t *testing.T) {
	t.Parallel()
	w := newJobsWorld(t, fake.Stateful)
	yaml := strings.Replace(w.yaml, "    defaults:", "    without_tasks: handle\n    without_tasks_after: 500ms\n    defaults:", 1)
	handles := startGateway(t, configured(t, yaml)...)
	s := begin(t, handles)
	told := texts(t, s.do(handles, mcp.MethodToolsCall, `{"name":"start_export","arguments":{"key":"told"}}`))
	m := regexp.MustCompile(`arguments ({"taskId":"[0-9a-f-]+","turn":1})`).FindStringSubmatch(told)
	if m == nil {
		t.Fatalf("the client is told %q", told)
	}
	w.end("told")
	until(t, "the end of the job", func() bool {
		return texts(t, s.do(handles, mcp.MethodToolsCall, `{"name":"task_result","arguments":`+m[1]+`}`)) == "export of told"
	})

	c := startWire(t, exec.Command(filepath.Join(bin, "taskgate"), append([]string{"stdio", "--log-level", "error"}, configured(t, w.yaml)...)...))
	c.result(mcp.MethodInitialize, `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}`)
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	id := c.ask(mcp.MethodToolsCall, `{"name":"start_export","arguments":{"key":"stdio"}}`)
	until(t, "the questions for the job", func() bool { return w.polls("stdio") > 1 })
	w.end("stdio")
	if got := texts(t, c.answer(id).Result); got != "export of stdio" {
		t.Errorf("the result over stdio is %q", got)
	}
	wantStarted(t, w, "told", "stdio")
}

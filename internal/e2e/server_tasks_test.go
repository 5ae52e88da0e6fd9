package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest/fake"
)

// ownTasks is what a server declares that runs tools as tasks of its own.
const ownTasks = `{"cancel":{},"requests":{"tools":{"call":{}}}}`

// ownTasksWorld is two gateways in front of such a server, which the test drives.
type ownTasksWorld struct {
	t       *testing.T
	a, b    *gateway
	server  *fake.Server
	tasks   *fake.Tasks
	follows string // the method by which a task is followed
}

func newOwnTasksWorld(t *testing.T, mode fake.Mode) *ownTasksWorld {
	t.Helper()
	w := &ownTasksWorld{t: t, server: fake.New(t, mode), follows: mcp.MethodTasksResult}
	must := fake.TaskTool{Name: "must", Support: "required", Script: func(*fake.Job) {}}
	if mode == fake.Modern {
		w.follows, w.tasks = mcp.MethodTasksGet, fake.TaskExtension(w.server, must)
	} else {
		w.tasks = w.server.Tasks(ownTasks, must)
	}
	yaml := "store: " + redistest.Start(t).URL() + "\nheartbeat: 1s\nupstreams:\n" +
		fmt.Sprintf("  - {name: own, path: /mcp, url: %q, defaults: {tasks: always, poll_interval: 100ms}}\n", w.server.URL)
	w.a, w.b = startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	return w
}

// job is the server's task of the call with this key.
func (w *ownTasksWorld) job(key string) (job *fake.Job) {
	w.t.Helper()
	eventually(w.t, "the server's task "+key, func() error {
		for _, j := range w.tasks.Jobs() {
			if strings.Contains(string(j.Params), `"`+key+`"`) {
				job = j
				return nil
			}
		}
		return errNotYet
	})
	return job
}

// wantRuns wants each of these calls to have been run once.
func wantRuns(t *testing.T, server *fake.Server, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if n := server.Runs(key); n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
}

// followed waits until a gateway asks about a task of the server.
func (w *ownTasksWorld) followed(j *fake.Job) {
	w.t.Helper()
	eventually(w.t, "somebody who follows the server's task", func() error {
		for _, r := range w.server.Seen(w.follows) {
			if strings.Contains(string(r.Params), `"`+j.ID+`"`) {
				return nil
			}
		}
		return errNotYet
	})
}

func keyed(key string) map[string]any { return map[string]any{"key": key} }

// texts are all texts of a result.
func texts(t *testing.T, result json.RawMessage) (all string) {
	t.Helper()
	var r struct {
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(result, &r); err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Content {
		all += b.Text
	}
	if strings.Contains(string(result), "related-task") && strings.Contains(string(result), "job-") {
		t.Errorf("the server's task shows in %s", result)
	}
	return all
}

// A tool that needs a task is called by clients that know no such thing, and none of them
// sees the server's task. Cancelling ends it, and a task of a killed replica is the other
// one's.
func TestServerWithTasks(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]fake.Mode{"2025-11-25": fake.Stateful, "2026-07-28": fake.Modern} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkServerWithTasks(t, newOwnTasksWorld(t, mode))
		})
	}
}

func checkServerWithTasks(t *testing.T, w *ownTasksWorld) {
	quiet, s := hear(w.a, false), begin(t, w.a)
	task := callTask(t, quiet.Client, "must", keyed("taken"))
	heard := s.hear(w.b)
	demanded := s.task(w.a, "must", keyed("demanded"))
	answers := make(chan json.RawMessage, 4)
	var calls sync.WaitGroup
	calls.Go(func() {
		result, _, err := w.a.client(false).CallTool(t.Context(), "must", keyed("plain"))
		if err != nil {
			t.Error(err)
		}
		answers <- result
	})
	calls.Go(func() { answers <- s.do(w.a, mcp.MethodToolsCall, `{"name":"must","arguments":{"key":"legacy"}}`) })
	calls.Go(func() {
		answers <- s.do(w.a, mcp.MethodToolsCall, `{"name":"must","arguments":{"key":"hearing"},"_meta":{"progressToken":"p"}}`)
	})
	calls.Go(func() { answers <- s.do(w.b, mcp.MethodTasksResult, `{"taskId":"`+demanded+`"}`) })
	for _, key := range []string{"taken", "plain", "legacy", "hearing", "demanded"} {
		j := w.job(key)
		j.Keep("piece")
		j.End("completed", "")
	}
	calls.Wait()
	until(t, "the other replica tells of the end", func() bool { return slices.Contains(heard(), demanded+" completed") })
	quiet.listen(t, task.ID)
	for _, result := range []json.RawMessage{<-answers, <-answers, <-answers, <-answers, quiet.end.Result} {
		if got := texts(t, result); got != "piece" {
			t.Errorf("the result is %s", result)
		}
	}
	if strings.Contains(strings.Join(heard(), ""), "job-") || slices.ContainsFunc(quiet.raw, func(m string) bool { return strings.Contains(m, "partial") || strings.Contains(m, "job-") }) {
		t.Errorf("a client got %q and %q", heard(), quiet.raw)
	}
	wantRuns(t, w.server, "taken", "plain", "legacy", "hearing", "demanded")

	cancelled := callTask(t, quiet.Client, "must", keyed("cancelled"))
	j := w.job("cancelled")
	if err := w.b.client(true).Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the server's task", func() bool { return j.Status() == "cancelled" })

	survivor := callTask(t, w.a.client(true), "must", keyed("survivor"))
	j = w.job("survivor")
	w.followed(j) // before, its replica may not know of it
	w.a.Kill()
	j.End("completed", "")
	if got := texts(t, waitFor(t, w.b.client(true), survivor.ID, "completed").Result); got != "result of "+j.ID {
		t.Errorf("the result is %q", got)
	}
	wantRuns(t, w.server, "survivor")
}

// What that tool asks, which comes on the stream of its task's result only, reaches a
// client that knows of no task.
func TestEverythingServerTaskAsks(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", startEverything(t))
	asked, answer := begin(t, g).stay(g, g, mcp.MethodToolsCall, `{"name":"simulate-research-query","arguments":{"topic":"python","ambiguous":true}}`, `{"interpretation":"snake"}`)
	if asked == "" || strings.Contains(asked, "related-task") {
		t.Errorf("asked %s", asked)
	}
	if got := texts(t, answer.Result); !strings.Contains(got, "snake") {
		t.Errorf("the result is %q", got)
	}
}

// Progress comes through a gateway behind a gateway: where both say that it is content,
// what the tool says comes through as it is said, and the result is the tool's.
func TestGatewayBehindAGateway(t *testing.T) {
	t.Parallel()
	inner := startGateway(t, configured(t, `
upstreams:
  - name: slow
    path: /mcp
    url: `+startServer(t, "slowserver")+`
    defaults: {tasks: auto, progress: content, poll_interval: 100ms}
`)...)
	for _, era := range []string{"legacy", "modern"} {
		outer := startGateway(t, configured(t, `
upstreams:
  - name: inner
    path: /mcp
    era: `+era+`
    url: `+inner.url+`
    defaults: {tasks: always, progress: content, poll_interval: 100ms}
`)...)
		live := hear(outer, true)
		live.listen(t, callTask(t, live.Client, "write", map[string]any{"topic": "tea", "seconds": 2}).ID)
		if len(live.seqs) < 5 {
			t.Errorf("%s: %d partial results", era, len(live.seqs))
		}
		live.check(t, texts(t, live.end.Result))
		if text := texts(t, live.end.Result); !strings.Contains(text, "tea is best") {
			t.Errorf("%s: the result is %q", era, text)
		}
	}
}

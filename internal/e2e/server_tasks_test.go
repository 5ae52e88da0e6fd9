package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest/fake"
)

// What servers declare that run tools as tasks of their own: no more than that, and with
// SEP-1905, or SEP-2679.
const (
	ownTasks     = `{"cancel":{},"requests":{"tools":{"call":{}}}}`
	ownStreaming = `{"cancel":{},"requests":{"tools":{"call":{}}},"responses":{"modes":["task","streaming"]}}`
	ownPartials  = `{"cancel":{},"requests":{"tools":{"call":{}}},"streaming":{"partial":{}}}`
)

// ownTasksWorld is two gateways in front of three such servers, which the test drives.
type ownTasksWorld struct {
	t       *testing.T
	a, b    *gateway
	servers map[string]*fake.Server
	tasks   map[string]*fake.Tasks
}

func newOwnTasksWorld(t *testing.T) *ownTasksWorld {
	t.Helper()
	w := &ownTasksWorld{t: t, servers: map[string]*fake.Server{}, tasks: map[string]*fake.Tasks{}}
	yaml := "store: " + redistest.Start(t).URL() + "\nheartbeat: 1s\nupstreams:\n"
	for name, capability := range map[string]string{"base": ownTasks, "content": ownStreaming, "hints": ownPartials} {
		s := fake.New(t, fake.Stateful)
		idle := func(*fake.Job) {}
		w.servers[name] = s
		w.tasks[name] = s.Tasks(capability,
			fake.TaskTool{Name: "may", Support: "optional", Script: idle},
			fake.TaskTool{Name: "must", Support: "required", Script: idle})
		yaml += fmt.Sprintf("  - {name: %s, url: %q, partial_interval: 0s, defaults: {tasks: always, poll_interval: 100ms}}\n", name, s.URL)
	}
	w.a, w.b = startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	return w
}

// at is one of the servers behind a gateway.
func (w *ownTasksWorld) at(g *gateway, name string) *gateway {
	return &gateway{Process: g.Process, addr: g.addr, url: "http://" + g.addr + "/" + name + "/mcp"}
}

// job is the server's task of the call with this key.
func (w *ownTasksWorld) job(server, key string) (job *fake.Job) {
	w.t.Helper()
	eventually(w.t, "the server's task "+key, func() error {
		for _, j := range w.tasks[server].Jobs() {
			if strings.Contains(string(j.Params), `"`+key+`"`) {
				job = j
				return nil
			}
		}
		return errNotYet
	})
	return job
}

// ran wants each of these calls to have been run once.
func (w *ownTasksWorld) ran(server string, keys ...string) {
	w.t.Helper()
	for _, key := range keys {
		if n := w.servers[server].Runs(key); n != 1 {
			w.t.Errorf("%s ran %d times", key, n)
		}
	}
}

// followed waits until a gateway asks for the result of a task of the server.
func (w *ownTasksWorld) followed(server string, j *fake.Job) {
	w.t.Helper()
	eventually(w.t, "somebody who follows the server's task", func() error {
		for _, r := range w.servers[server].Seen(mcp.MethodTasksResult) {
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

// reads waits for the text of the pieces so far, in order.
func (h *hearing) reads(t *testing.T, want string) {
	t.Helper()
	eventually(t, "partial results "+want, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.text != want {
			return fmt.Errorf("read %q", h.text)
		}
		return nil
	})
}

// pieceReader is a legacy client that follows SEP-1905's blocks.
type pieceReader struct {
	*session
	mu   sync.Mutex
	task string
	last int64
	text string
	over bool
	bad  string
}

// take reads one answer with blocks.
func (r *pieceReader) take(result []byte) {
	var p struct {
		Task   struct{ TaskID string }
		Blocks []struct {
			SeqNr int64
			Text  string
		} `json:"partial-content"`
		Complete bool `json:"isComplete"`
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := json.Unmarshal(result, &p); err != nil {
		r.bad = string(result)
	}
	if p.Task.TaskID != "" {
		r.task = p.Task.TaskID
	}
	for _, b := range p.Blocks {
		if b.SeqNr != r.last+1 {
			r.bad = fmt.Sprintf("after %d came %s", r.last, result)
		}
		r.last, r.text = b.SeqNr, r.text+b.Text
	}
	r.over = r.over || p.Complete
}

// reads waits until the blocks so far say this.
func (r *pieceReader) reads(want string) {
	r.t.Helper()
	eventually(r.t, "blocks "+want, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.text != want || r.bad != "" {
			return fmt.Errorf("read %q %s", r.text, r.bad)
		}
		return nil
	})
}

// streams makes a call that streams, and reads what comes until the stream is over.
func streams(t *testing.T, g *gateway, key string) *pieceReader {
	t.Helper()
	r := &pieceReader{session: &session{t: t}}
	r.do(g, mcp.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"responses":{"modes":["task","streaming"]}}},"clientInfo":{"name":"e2e","version":"1"}}`)
	resp := r.request(t.Context(), g, http.MethodPost, `{"jsonrpc":"2.0","id":"s","method":"tools/call","params":{"name":"may","arguments":{"key":"`+key+`"},"task":{"responseModes":["streaming"]}}}`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		eachData(resp, func(data []byte) {
			var m struct{ Result json.RawMessage }
			if json.Unmarshal(data, &m) == nil && m.Result != nil {
				r.take(m.Result)
			}
		})
	}()
	t.Cleanup(func() { _ = resp.Body.Close(); <-done })
	return r
}

// eachData hands over the data of each event of a stream.
func eachData(resp *http.Response, take func([]byte)) {
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "" { // X9
			take([]byte(data))
		}
	}
}

// A server that streams its results by SEP-1905 is read along with by clients of both
// eras, at either replica; and when the one is killed that runs the calls, the other goes
// on with the server's tasks, so that nobody misses a block or gets one twice.
func TestServerThatStreams(t *testing.T) {
	t.Parallel()
	w := newOwnTasksWorld(t)
	a, b := w.at(w.a, "content"), w.at(w.b, "content")
	caller := hear(a, true)
	task := callTask(t, caller.Client, "may", keyed("modern"))
	live := hear(b, true)
	var listening sync.WaitGroup
	listening.Go(func() { live.listen(t, task.ID) })
	legacy := streams(t, a, "legacy")
	modern, streamed := w.job("content", "modern"), w.job("content", "legacy")
	for _, j := range []*fake.Job{modern, streamed} {
		j.Say("a")
		j.Keep("b", "c")
		j.Send(1, 2) // a again
		j.Send(3, 3)
	}
	live.reads(t, "abc")
	legacy.reads("abc")
	modern.Keep("d")
	modern.Break(true)
	live.reads(t, "abcd")

	w.a.Kill()
	for _, j := range []*fake.Job{modern, streamed} {
		j.Keep("e", "f")
	}
	live.reads(t, "abcdef")
	eventually(t, "the blocks at the other replica", func() error {
		pulled := legacy.raw(b, mcp.MethodTasksResult, fmt.Sprintf(`{"taskId":%q,"lastSeqNr":%d}`, legacy.task, legacy.last))
		if i := strings.LastIndex(pulled, "data: "); i >= 0 {
			pulled = pulled[i+len("data: "):]
		}
		var answer struct{ Result json.RawMessage }
		if err := json.Unmarshal([]byte(pulled), &answer); err != nil || answer.Result == nil {
			return fmt.Errorf("pulled %s", pulled) // the stream of the lost replica may take a while to end
		}
		legacy.take(answer.Result)
		if legacy.text != "abcef" || legacy.bad != "" {
			return fmt.Errorf("read %q %s", legacy.text, legacy.bad)
		}
		return nil
	})
	modern.End("completed", `,"structuredContent":{"n":1.0}`)
	streamed.End("completed", "")
	listening.Wait()
	if got := texts(t, live.end.Result); got != "abcdef" || !strings.Contains(string(live.end.Result), `"n":1.0`) || live.late {
		t.Errorf("the result is %s", live.end.Result)
	}
	if got := texts(t, legacy.do(b, mcp.MethodTasksResult, `{"taskId":"`+legacy.task+`"}`)); got != "abcef" {
		t.Errorf("the result of the stream is %q", got)
	}
	w.ran("content", "modern", "legacy")
}

// A server that speaks SEP-2679 is heard by clients of both eras that take partial
// results, before and after its call has changed the replica.
func TestServerThatHints(t *testing.T) {
	t.Parallel()
	w := newOwnTasksWorld(t)
	a, b := w.at(w.a, "hints"), w.at(w.b, "hints")
	s := &session{t: t}
	s.do(a, mcp.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"streaming":{"partial":{}}}},"clientInfo":{"name":"e2e","version":"1"}}`)
	heard := hearHints(s, b)
	var made struct{ Task struct{ TaskID string } }
	if err := json.Unmarshal(s.do(a, mcp.MethodToolsCall, `{"name":"may","arguments":{"key":"legacy"},"task":{}}`), &made); err != nil {
		t.Fatal(err)
	}
	caller := hear(a, true)
	task := callTask(t, caller.Client, "may", keyed("modern"))
	live := hear(b, true)
	var listening sync.WaitGroup
	listening.Go(func() { live.listen(t, task.ID) })
	jobs := []*fake.Job{w.job("hints", "modern"), w.job("hints", "legacy")}
	for _, j := range jobs {
		j.Hint(0, "a")
		j.Hint(1, "b")
		j.Hint(1, "b")
	}
	live.reads(t, "ab")
	eventually(t, "the hints in the session", func() error { return heard("0:a 1:b") })

	waiting := len(w.servers["hints"].Seen(mcp.MethodTasksResult))
	w.a.Kill()
	eventually(t, "the other replica at the server's tasks", func() error {
		if len(w.servers["hints"].Seen(mcp.MethodTasksResult)) < waiting+2 {
			return errNotYet
		}
		return nil
	})
	for _, j := range jobs {
		j.Hint(1, "b")
		j.Hint(4, "e")
	}
	live.reads(t, "abe")
	eventually(t, "the hints in the session", func() error { return heard("0:a 1:b 2:e") })
	jobs[0].End("completed", "")
	jobs[1].End("failed", "")
	listening.Wait()
	if got := texts(t, live.end.Result); got != "result of "+jobs[0].ID {
		t.Errorf("the result is %q", got)
	}
	if got := s.do(b, mcp.MethodTasksResult, `{"taskId":"`+made.Task.TaskID+`"}`); !strings.Contains(string(got), `"isError":true`) {
		t.Errorf("the tool's error is missing in %s", got)
	}
	w.ran("hints", "modern", "legacy")
}

// hearHints opens a session's stream. What it returns compares the partial results so far.
func hearHints(s *session, g *gateway) func(want string) error {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	resp := s.request(ctx, g, http.MethodGet, "")
	var mu sync.Mutex
	var heard []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		eachData(resp, func(data []byte) {
			var n struct {
				Method string
				Params struct {
					Seq     int
					Content []struct{ Text string }
				}
			}
			if json.Unmarshal(data, &n) != nil || n.Method != mcp.NotifyTaskPartial {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, b := range n.Params.Content {
				heard = append(heard, fmt.Sprintf("%d:%s", n.Params.Seq, b.Text))
			}
		})
	}()
	s.t.Cleanup(func() {
		leave()
		_ = resp.Body.Close()
		<-done
	})
	return func(want string) error {
		mu.Lock()
		defer mu.Unlock()
		if got := strings.Join(heard, " "); got != want {
			return fmt.Errorf("heard %q, want %q", got, want)
		}
		return nil
	}
}

// A tool that needs a task is called by clients that know no such thing. Those that did
// not opt in get nothing of either draft, though their server speaks it; cancelling ends
// the server's task, and a task of a killed replica is the other one's.
func TestServerWithTasks(t *testing.T) {
	t.Parallel()
	w := newOwnTasksWorld(t)
	for _, name := range []string{"base", "content", "hints"} {
		a, b := w.at(w.a, name), w.at(w.b, name)
		quiet, s := hear(a, false), begin(t, a)
		task := callTask(t, quiet.Client, "must", keyed("taken"))
		heard := s.hear(b)
		answers := make(chan json.RawMessage, 2)
		var calls sync.WaitGroup
		calls.Go(func() {
			result, _, err := a.client(false).CallTool(t.Context(), "must", keyed("plain"))
			if err != nil {
				t.Error(err)
			}
			answers <- result
		})
		calls.Go(func() { answers <- s.do(a, mcp.MethodToolsCall, `{"name":"must","arguments":{"key":"legacy"}}`) })
		for _, key := range []string{"taken", "plain", "legacy"} {
			j := w.job(name, key)
			j.Say("piece")
			j.Hint(0, "piece")
			j.End("completed", "")
		}
		calls.Wait()
		quiet.listen(t, task.ID)
		for _, result := range []json.RawMessage{<-answers, <-answers, quiet.end.Result} {
			if got := texts(t, result); got != "piece" {
				t.Errorf("%s: the result is %s", name, result)
			}
		}
		if len(heard()) != 0 || slices.ContainsFunc(quiet.raw, func(m string) bool { return strings.Contains(m, "partial") || strings.Contains(m, "job-") }) {
			t.Errorf("%s: a client that did not opt in got %q and %q", name, heard(), quiet.raw)
		}
		w.ran(name, "taken", "plain", "legacy")

		cancelled := callTask(t, quiet.Client, "must", keyed("cancelled"))
		j := w.job(name, "cancelled")
		if err := b.client(true).Cancel(t.Context(), cancelled.ID); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the end of the server's task", func() error {
			if j.Status() != "cancelled" {
				return errNotYet
			}
			return nil
		})
	}
	task := callTask(t, w.at(w.a, "base").client(true), "must", keyed("survivor"))
	j := w.job("base", "survivor")
	w.followed("base", j) // before, its replica may not know of it
	w.a.Kill()
	j.End("completed", "")
	if got := texts(t, waitFor(t, w.at(w.b, "base").client(true), task.ID, "completed").Result); got != "result of "+j.ID {
		t.Errorf("the result is %q", got)
	}
	w.ran("base", "survivor")
}

// The reference server's tool that it runs as a task only: it cannot be called plainly
// without the gateway.
func TestEverythingServerTask(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", startEverything(t), "--grace", "500ms")
	args := map[string]any{"topic": "tea", "ambiguous": false}
	task := callTask(t, g.client(true), "simulate-research-query", args)
	end := waitFor(t, g.client(true), task.ID, "completed")
	if got := texts(t, end.Result); !strings.Contains(got, "tea") {
		t.Errorf("the task's result is %q", got)
	}
	if got := callPlain(t, g.client(false), "simulate-research-query", args); !strings.Contains(got, "tea") {
		t.Errorf("the plain result is %q", got)
	}
}

// What that tool asks, which comes on the stream of its task's result only, reaches a
// client that knows of no task.
func TestEverythingServerTaskAsks(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", startEverything(t))
	s := &session{t: t}
	s.do(g, mcp.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"e2e","version":"1"}}`)
	resp := s.request(t.Context(), g, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"simulate-research-query","arguments":{"topic":"python","ambiguous":true}}}`)
	defer resp.Body.Close()
	var result json.RawMessage
	eachData(resp, func(data []byte) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
			Result json.RawMessage
		}
		if err := json.Unmarshal(data, &m); err != nil {
			t.Error(err)
		}
		switch {
		case m.Method == mcp.MethodElicit:
			if strings.Contains(string(m.Params), "related-task") {
				t.Errorf("the server's task shows in %s", m.Params)
			}
			answer := s.request(t.Context(), g, http.MethodPost, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"action":"accept","content":{"interpretation":"snake"}}}`)
			_ = answer.Body.Close()
		case m.Result != nil:
			result = m.Result
		}
	})
	if got := texts(t, result); !strings.Contains(got, "snake") {
		t.Errorf("the result is %q", got)
	}
}

// A gateway behind a gateway is a server with tasks that speaks both drafts: what its tool
// says comes through as it streams, and the result is the tool's.
func TestGatewayBehindAGateway(t *testing.T) {
	t.Parallel()
	inner := startGateway(t, configured(t, `
upstreams:
  - name: slow
    path: /mcp
    url: `+startServer(t, "slowserver")+`
    defaults: {tasks: auto, progress: content, poll_interval: 100ms}
`)...)
	outer := startGateway(t, configured(t, `
upstreams:
  - name: inner
    path: /mcp
    era: legacy
    url: `+inner.url+`
    defaults: {tasks: always, progress: off, poll_interval: 100ms}
`)...)
	caller := hear(outer, true)
	task := callTask(t, caller.Client, "write", map[string]any{"topic": "tea", "seconds": 2})
	live := hear(outer, true)
	live.listen(t, task.ID)
	if len(live.seqs) < 5 {
		t.Errorf("%d partial results", len(live.seqs))
	}
	live.check(t, 0, texts(t, live.end.Result))
	if text := texts(t, live.end.Result); !strings.Contains(text, "tea is best") {
		t.Errorf("the result is %q", text)
	}
}

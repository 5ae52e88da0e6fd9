package agents

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

// world is what one run of an agent has around it: a model, an MCP server, one or two
// gateways in front of that, and the wire between the agent and the gateways.
type world struct {
	*trials
	model    *Model
	wire     *wire
	redis    *redistest.Server // nil with the embedded store
	gateways []*gateway
	agent    *running
	path     string        // of the server's URL; /mcp if empty
	program  []string      // the server over stdio that the agent starts, in place of a URL
	done     chan struct{} // closed when the model has all that it wants
	again    bool          // the calls are one call, which the model makes again after each failure

	mu     sync.Mutex
	strays []string
}

// gateway is a running taskgate.
type gateway struct {
	*proc.Process
	addr   string
	config string
}

// patience is how long a program may take to start or to end, and an agent to call.
const patience = 2 * time.Minute

// newWorld starts what the agents of a row need.
func newWorld(t *testing.T, r row) *world {
	t.Helper()
	w := &world{trials: startTrials(t), wire: newWire("")}
	if r.direct {
		w.wire.sendTo(w.addr)
		return w
	}
	yaml := fmt.Sprintf("upstreams:\n  - name: trials\n    path: /mcp\n    url: http://%s/mcp\n%s\n", w.addr, r.config)
	if r.replicas > 0 {
		if r.store == nil {
			r.store = alone
		}
		var url string
		url, w.redis = r.store(t)
		yaml += "store: " + url + "\nheartbeat: 1s\n"
	}
	for range max(r.replicas, 1) {
		g := &gateway{addr: programtest.FreeAddr(t), config: filepath.Join(t.TempDir(), "taskgate.yaml")}
		if err := os.WriteFile(g.config, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		g.start(t)
		w.gateways = append(w.gateways, g)
	}
	w.wire.sendTo(w.gateways[0].addr)
	return w
}

func (g *gateway) start(t *testing.T) {
	t.Helper()
	c := proc.Command{Name: "taskgate", Path: filepath.Join(bin, "taskgate"), Args: []string{"serve", "--config", g.config, "--listen", g.addr}}
	g.Process = programtest.Start(t, c, 0, g.addr)
}

// serve serves a handler until the test ends.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.CloseClientConnections)
	return s.URL
}

// refuse is the proxy that an agent has to the world outside.
func (w *world) refuse(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strays = append(w.strays, r.Host)
	rw.WriteHeader(http.StatusForbidden)
}

// run runs an agent whose model makes these calls, one after the other. It returns what
// the model is shown of each, in the end.
func (w *world) run(t *testing.T, a agent, calls []Call, disturb func(*testing.T, *world), limit time.Duration) []Result {
	t.Helper()
	w.done = make(chan struct{})
	finish := sync.OnceFunc(func() { close(w.done) })
	w.model = &Model{Word: word, Script: func(turn Turn) *Call {
		results, task, errors := follow(turn)
		switch {
		case task == background: // the agent says when there is a result
		case task != "":
			if errors > 0 {
				<-time.After(5 * time.Second) // the agent connects again
			}
			var args object
			if err := json.Unmarshal([]byte(task), &args); err != nil {
				t.Errorf("the arguments %s: %v", task, err)
			}
			return &Call{Tool: "task_result", Args: args}
		case len(results) < len(calls) && !(w.again && len(results) > 0 && strings.Contains(results[len(results)-1].Text, worked)):
			return &calls[len(results)]
		default:
			finish()
		}
		return nil
	}}
	w.startAgent(t, a)
	if disturb != nil {
		w.await(t, "the call", w.began)
		disturb(t, w)
	}
	w.awaitEnd(t, limit)
	if len(w.strays) > 0 {
		t.Errorf("%s wanted to reach %q", a.title, w.strays)
	}
	turns := w.model.Turns()
	if len(turns) == 0 {
		t.Fatalf("%s has not shown the tools to its model: %s", a.title, w.agent.Output())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said:\n%s", a.title, w.agent.Output())
			t.Logf("it sent %v", w.wire.sent())
			for _, r := range turns[len(turns)-1].Results {
				t.Logf("its model was shown %q", short(r.Text))
			}
		}
	})
	results, _, _ := follow(turns[len(turns)-1])
	return results
}

// starting bounds how many agents start at a time. A start takes some ten seconds of a processor; many at once
// take so long that the agents' own limits for the start of a server end them.
var starting = make(chan struct{}, 5)

// startAgent starts the agent, and waits until its model is asked, or the agent has ended.
func (w *world) startAgent(t *testing.T, a agent) {
	t.Helper()
	starting <- struct{}{}
	defer func() { <-starting }()
	server := append([]string{"--"}, w.program...)
	if w.program == nil {
		server = []string{"--url", serve(t, w.wire) + cmp.Or(w.path, "/mcp")}
	}
	w.agent = a.start(t, serve(t, w.model), server, serve(t, http.HandlerFunc(w.refuse)))
	if a.terminal {
		w.typePrompt(t)
	}
	for end := time.Now().Add(patience); len(w.model.Turns()) == 0 && time.Now().Before(end); w.pause(100 * time.Millisecond) {
		select {
		case <-w.agent.Done():
			return
		default:
		}
	}
}

// word is what the model says of a result.
func word(r Result) string {
	switch {
	case strings.Contains(r.Text, worked):
		return "The tool says: " + worked + "."
	case strings.Contains(r.Text, inBackground):
		return "The tool works in the background."
	default:
		return "The tool has failed: " + short(r.Text)
	}
}

// awaitEnd waits until an agent has ended, or in a terminal until its model has all.
func (w *world) awaitEnd(t *testing.T, limit time.Duration) {
	t.Helper()
	done := w.done
	if !w.agent.terminal {
		done = nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.agent.Done():
	case <-done:
	case <-timer.C:
		t.Logf("%s has not ended within %s", w.agent.title, limit)
	}
}

// typePrompt types the prompt once the agent has the tools, and again until the model
// is asked: a terminal may not be ready yet.
func (w *world) typePrompt(t *testing.T) {
	t.Helper()
	times := 5
	if w.program != nil { // nobody sees when the tools are listed: the model answers a prompt that comes too soon without them
		times = 20
	} else {
		w.awaitThat(t, "the agent lists the tools", func() bool {
			return slices.ContainsFunc(w.wire.sent(), func(r request) bool { return r.method == "tools/list" })
		})
	}
	for range times {
		w.pause(2 * time.Second)
		if len(w.model.Turns()) > 0 {
			return
		}
		w.agent.press(t, prompt)
		w.pause(500 * time.Millisecond)
		w.agent.press(t, "\r")
	}
}

// told matches the arguments of the next call in what a client is told of a task, in JSON or not.
var told = regexp.MustCompile(`arguments (\{\\*"taskId\\*":\\*"[0-9a-f-]+\\*",\\*"turn\\*":\d+\})`)

// inBackground is in what Claude Code says of a call that has become a task.
const inBackground = "moved to the background"

// background stands for a task that the agent follows by itself.
const background = "background"

// follow sorts out the results of the calls of tools: what each call of the script has
// come to, and the arguments with which the result of a task is still to be read. A model that is
// told of an error asks for the result again, twice: two agents stop a model at its fifth equal call.
func follow(t Turn) (results []Result, task string, errors int) {
	for _, r := range t.Results {
		ended := slices.ContainsFunc(ends, func(end string) bool { return strings.Contains(r.Text, end) })
		m := told.FindStringSubmatch(r.Text)
		switch {
		case m != nil:
			task, errors = strings.ReplaceAll(m[1], "\\", ""), 0
		case task == "" && strings.Contains(r.Text, inBackground):
			task = background
		case task == "" || task == background || ended || errors == 2:
			results, task = append(results, r), ""
		default:
			errors++
		}
	}
	return results, task, errors
}

// ends are in what the result of a task may be.
var ends = []string{worked, mayBeDone}

// await waits for one of what a channel brings.
func (w *world) await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c:
	case <-w.agent.Done():
		t.Errorf("the agent ended before %s", what)
	case <-timer.C:
		t.Errorf("%s did not come", what)
	}
}

// awaitTask waits until the agent waits for a task.
func (w *world) awaitTask(t *testing.T) {
	t.Helper()
	w.awaitThat(t, "the agent waits for a task", func() bool { return slices.ContainsFunc(w.wire.sent(), readsTask) })
}

// readsTask holds for a request that reads a task.
func readsTask(r request) bool { return r.tool == "task_result" || r.method == "tasks/get" }

// awaitThat waits until something holds.
func (w *world) awaitThat(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); w.pause(100 * time.Millisecond) {
		select {
		case <-w.agent.Done():
			t.Fatalf("%s ended before %s", w.agent.title, what)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// pause lets time pass while the agent runs.
func (w *world) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.agent.Done():
	}
}

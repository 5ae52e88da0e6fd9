package agents

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/proc"
)

// world is what one run of an agent has around it: a model, an MCP server, a
// gateway in front of that, and the wire between the agent and the gateway.
type world struct {
	*trials
	model *Model
	wire  *wire
	agent *proc.Process

	mu     sync.Mutex
	strays []string
}

// patience is how long a program may take to start or to end.
const patience = 30 * time.Second

// newWorld starts what the agent needs. config has the lines of the configuration that
// differ from the defaults of an upstream.
func newWorld(t *testing.T, config string) *world {
	t.Helper()
	addr, err := proc.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{trials: startTrials(t), wire: &wire{gateway: addr}}
	yaml := fmt.Sprintf("upstreams:\n  - name: trials\n    path: /mcp\n    url: %s\n%s\n", w.url, config)
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := proc.Start(proc.Command{Name: "taskgate", Path: taskgate, Args: []string{"serve", "--config", file, "--listen", addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.WaitListening(ctx, addr); err != nil {
		t.Fatal(err)
	}
	return w
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
	w.model = &Model{Script: func(turn Turn) *Call {
		results, task := follow(turn)
		switch {
		case task != "":
			return &Call{Tool: "task_result", Args: object{"taskId": task}}
		case len(results) < len(calls):
			return &calls[len(results)]
		}
		return nil
	}}
	w.agent = a.start(t, serve(t, w.model), serve(t, w.wire)+"/mcp", serve(t, http.HandlerFunc(w.refuse)))
	if disturb != nil {
		w.await(t, "the call", w.began)
		disturb(t, w)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.agent.Done():
	case <-timer.C:
		t.Errorf("%s has not ended within %s", a.title, limit)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said:\n%s", a.title, w.agent.Output())
			t.Logf("it sent %v", w.wire.requests)
		}
	})
	if len(w.strays) > 0 {
		t.Errorf("%s wanted to reach %q", a.title, w.strays)
	}
	turns := w.model.Turns()
	if len(turns) == 0 {
		t.Fatalf("%s has not shown the tools to its model", a.title)
	}
	results, _ := follow(turns[len(turns)-1])
	return results
}

// told matches the id of a task in what a client is told of it, in JSON or not.
var told = regexp.MustCompile(`\{\\*"taskId\\*": ?\\*"([0-9a-f-]+)`)

// follow sorts out the results of the calls of tools: what each call of the script has
// come to, and the task whose result is still to be read.
func follow(t Turn) (results []Result, task string) {
	for _, r := range t.Results {
		if m := told.FindStringSubmatch(r.Text); m != nil {
			task = m[1]
		} else if !strings.Contains(r.Text, "is still running") {
			results, task = append(results, r), ""
		}
	}
	return results, task
}

// await waits for one of what a channel brings.
func (w *world) await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(2 * patience)
	defer timer.Stop()
	select {
	case <-c:
	case <-w.agent.Done():
		t.Errorf("the agent ended before %s", what)
	case <-timer.C:
		t.Errorf("%s did not come", what)
	}
}

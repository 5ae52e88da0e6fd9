package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// readiness is what /readyz answers.
type readiness struct {
	status int
	Store  struct {
		Reachable   bool
		Kind, Error string
	}
}

// readyz asks the admin listener.
func readyz(addr string) (r readiness, err error) {
	client := &http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + addr + "/readyz")
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	r.status = resp.StatusCode
	return r, json.NewDecoder(resp.Body).Decode(&r)
}

// With a full store, calls that can be answered without a task are; those that cannot
// get an error; what runs is not lost, and ends once there is room.
func checkFull(t *testing.T, store string, fill func(g *gateway, full bool), ready func(readiness) bool) {
	t.Helper()
	admin := freeAddr(t)
	g := startGateway(t, configured(t, fmt.Sprintf(`
store: %s
admin: %s
drain_delay: 0s
upstreams:
  - name: slow
    path: /mcp
    url: %s
    defaults: {tasks: auto, grace: 300ms, poll_interval: 100ms}
    tools:
      - {match: count_words, tasks: required}
`, store, admin, startServer(t, "slowserver")))...)
	client := g.client(true)
	running := callTask(t, client, "research", research(1))
	fill(g, true)
	var answer *taskclient.Error
	_, task, err := client.CallTool(t.Context(), "count_words", map[string]any{"text": "one two"})
	if task != nil || !errors.As(err, &answer) || answer.Code != -32603 {
		t.Errorf("a call that has to be a task: %v %v", task, err)
	}
	// Longer than the first one takes: its outcome has to wait.
	if err := wantReport(callPlain(t, client, "research", research(1.5))); err != nil {
		t.Error(err)
	}
	if now, err := client.Get(t.Context(), running.ID); err != nil || now.Ended() {
		t.Errorf("the task that runs: %+v %v", now, err)
	}
	if r, err := readyz(admin); err != nil || !ready(r) {
		t.Errorf("ready: %+v %v", r, err)
	}
	fill(g, false)
	if err := wantReport(textOf(t, waitFor(t, client, running.ID, "completed").Result)); err != nil {
		t.Error(err)
	}
}

func TestFullRedis(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	checkFull(t, store.URL(), func(_ *gateway, full bool) {
		store.Do("config", "set", "maxmemory", map[bool]string{true: "1", false: "0"}[full])
	}, func(readiness) bool { return true })
}

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

// Without its Redis the gateway serves what needs no task, says so where it needs one, and is itself
// again once Redis is back: a task that has ended meanwhile has its result.
func TestRedisOutage(t *testing.T) {
	t.Parallel()
	store, admin := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no"), freeAddr(t)
	g := startGateway(t, configured(t, fmt.Sprintf(`
store: %s
store_wait: 3s
admin: %s
drain_delay: 0s
upstreams: [{name: slow, path: /mcp, url: %q, defaults: {tasks: auto, grace: 300ms}}]
`, store.URL(), admin, startServer(t, "slowserver")))...)
	client := g.client(true)
	before := callTask(t, client, "research", research(0.5))
	waitFor(t, client, before.ID, "completed")
	during := callTask(t, client, "research", research(2))

	store.Stop()
	if got := callPlain(t, client, "count_words", map[string]any{"text": "one two"}); got != "2" {
		t.Errorf("count_words: %s", got)
	}
	if err := wantReport(callPlain(t, client, "research", research(1))); err != nil {
		t.Errorf("a slow call without a store: %v", err)
	}
	var answer *taskclient.Error
	if _, err := client.Get(t.Context(), before.ID); !errors.As(err, &answer) || answer.Code != -32603 || answer.Status != 200 {
		t.Errorf("tasks/get without a store: %v", err)
	}
	if r, err := readyz(admin); err != nil || r.status != 503 || r.Store.Reachable {
		t.Errorf("ready: %+v %v", r, err)
	}

	store.Restart()
	eventually(t, "tasks again", func() error {
		result, task, err := client.CallTool(t.Context(), "research", research(0.6))
		if err == nil && task == nil {
			err = errors.New("no task: " + string(result))
		}
		return err
	})
	for _, task := range []*taskclient.Task{before, during} {
		if err := wantReport(textOf(t, waitFor(t, client, task.ID, "completed").Result)); err != nil {
			t.Error(err)
		}
	}
	until(t, "readyz says that the store is back", func() bool {
		r, err := readyz(admin)
		return err == nil && r.status == 200
	})
}

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// A Redis that forgets everything, because nothing is on its disk, makes tasks
// unknown; the gateway that ended one a moment ago, or ends it now, writes it again.
func TestRedisForgets(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	g := startGateway(t, "--upstream", startServer(t, "slowserver"), "--store", store.URL(), "--grace", "300ms")
	client := g.client(true)
	ended := callTask(t, client, "research", research(0.5))
	waitFor(t, client, ended.ID, "completed")
	running := callTask(t, client, "research", research(4))
	store.Kill()
	store.Restart()
	for _, id := range []string{ended.ID, running.ID} {
		eventually(t, "the end is written again", func() error {
			now, err := client.Get(t.Context(), id)
			if err == nil && !now.Ended() {
				err = errNotYet
			}
			var answer *taskclient.Error
			if errors.As(err, &answer) && answer.Code != -32602 && answer.Code != -32603 {
				t.Errorf("meanwhile: %v", err)
			}
			return err
		})
		if err := wantReport(textOf(t, waitFor(t, client, id, "completed").Result)); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(g.Output(), "the store had forgotten the end of a task") {
		t.Errorf("nothing of it in the log:\n%s", g.Output())
	}
}

// With a full store, calls that can be answered without a task are; those that cannot
// get an error; what runs is not lost, and ends once there is room.
func checkFull(t *testing.T, store string, fill func(g *gateway, full bool), ready func(readiness) bool) {
	t.Helper()
	admin := freeAddr(t)
	g := startGateway(t, configured(t, fmt.Sprintf(`
store: %s
admin: %s
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
	if r, err := readyz(admin, ""); err != nil || !ready(r) {
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

// A store that is a read-only replica makes a gateway that is not ready, and that
// says why, until the replica is a master.
func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	replica := redistest.Replica(t, redistest.Start(t).Addr)
	admin := freeAddr(t)
	g := startGateway(t, "--upstream", startServer(t, "slowserver"), "--store", replica.URL(), "--admin", admin, "--grace", "300ms")
	if r, err := readyz(admin, ""); err != nil || r.status != 503 {
		t.Errorf("ready: %+v %v", r, err)
	}
	if !strings.Contains(g.Output(), "redis is a read-only replica") {
		t.Errorf("the log does not say why:\n%s", g.Output())
	}
	replica.Promote()
	eventually(t, "ready", func() error {
		if r, err := readyz(admin, ""); err != nil || r.status != 200 {
			return fmt.Errorf("%+v %w", r, err)
		}
		return nil
	})
	waitFor(t, g.client(true), callTask(t, g.client(true), "research", research(1)).ID, "completed")
}

package e2e

import (
	"fmt"
	"testing"
	"time"

	"taskgate/internal/redistest"
)

// replica is the configuration of one of several gateways on one Redis.
const replica = `
store: %s
heartbeat: 1s
upstreams:
  - name: slow
    path: /mcp
    url: %s
    defaults: {tasks: auto, grace: 300ms, poll_interval: 100ms}
    tools:
      - {match: fail, tasks: always}
      - {match: count_words, tasks: always}
`

// twoReplicas are two gateways in front of one server with one store.
func twoReplicas(t *testing.T) (a, b *gateway) {
	t.Helper()
	store, server := redistest.Start(t), startServer(t, "slowserver")
	yaml := fmt.Sprintf(replica, store.URL(), server)
	return startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
}

// A task survives the replica that accepted it in good order, and the other
// replica knows how it ended.
func TestTaskOfAKilledReplica(t *testing.T) {
	t.Parallel()
	a, b := twoReplicas(t)
	done := callTask(t, a.client(true), "count_words", map[string]any{"text": "one"})
	waitFor(t, a.client(true), done.ID, "completed")
	lost := callTask(t, a.client(true), "research", research(60))
	a.Kill()
	if code := a.ExitCode(); code != -1 {
		t.Errorf("exit code %d", code)
	}
	if got := textOf(t, waitFor(t, b.client(true), done.ID, "completed").Result); got != "1" {
		t.Errorf("the result of the finished task is %q", got)
	}
	begin := time.Now()
	end := waitFor(t, b.client(true), lost.ID, "failed")
	if end.Error == nil || end.Error.Code != -32603 || end.StatusMessage == "" {
		t.Errorf("the lost task ended as %+v", end)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("that took %s", took)
	}
}

package redisstore

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// With wait_replicas, that a call is sent has reached a replica before it is: a
// failover does not bring back a record by which it would be sent again. Checkpoints
// that nothing hangs on do not wait.
func TestSentIsReplicated(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(master.Addr)
	must(t, err)
	replica := redistest.Start(t, "--replicaof", host, port, "--repl-diskless-sync-delay", "0")
	inSync := func() bool {
		return strings.Contains(fmt.Sprint(master.Do("info", "replication")), "state=online")
	}
	eventually(t, "replica is in sync", inSync)
	o := testOptions()
	o.WaitReplicas, o.WaitTimeout = 1, 9*time.Second
	task := create(t, openTest(t, master.URL(), o), newTask())

	replica.Kill()
	o.WaitTimeout = 100 * time.Millisecond
	s := openTest(t, master.URL(), o)
	sent := shim.Change{Checkpoint: json.RawMessage(`"sent"`), Durable: true}
	for range 2 {
		_, err = s.Apply(t.Context(), task.ID, &held, sent)
		is(t, err, ErrNotReplicated)
	}
	_, err = s.Apply(t.Context(), task.ID, &held, shim.Change{Checkpoint: json.RawMessage(`"further"`)})
	must(t, err)
	_, err = s.Apply(t.Context(), task.ID, nil, shim.Change{TTL: time.Hour}) // need not last, and waits for nobody
	must(t, err)

	replica.Restart()
	eventually(t, "that it is sent is replicated", func() bool {
		_, err := s.Apply(t.Context(), task.ID, &held, sent)
		return err == nil
	})
	master.Kill()
	replica.Do("replicaof", "no", "one")
	promoted := openTest(t, replica.URL(), testOptionsLike(o))
	same(t, `"sent"`, string(read(t, promoted, task.ID, shim.WithRun).Checkpoint))
}

// testOptionsLike are options for the same tasks, without replicas.
func testOptionsLike(o Options) Options {
	o.WaitReplicas = 0
	return o
}

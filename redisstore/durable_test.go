package redisstore

import (
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// A repeat on another connection has not waited for the replicas only because the
// write itself was made long ago: WAIT asks about the writes of its connection. Nor
// has a cancellation that finds the task at its end.
func TestWaitOfARepeat(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica := redistest.Replica(t, master.Addr)
	o := testOptions()
	o.WaitReplicas, o.WaitTimeout = 1, 20*time.Second
	task := newTask()
	running := create(t, openTest(t, master.URL(), o), newTask())
	o.WaitTimeout = 100 * time.Millisecond
	cancel := shim.Change{Op: "cancel", To: shim.Cancelled}
	replica.Freeze()
	for range 3 {
		s := openTest(t, master.URL(), o)
		_, err := s.Create(t.Context(), task)
		is(t, err, ErrNotReplicated)
		_, err = s.Apply(t.Context(), running.ID, &held, shim.Change{Op: "end", To: shim.Completed})
		is(t, err, ErrNotReplicated)
		_, err = s.Apply(t.Context(), running.ID, nil, cancel)
		is(t, err, ErrNotReplicated)
	}
	replica.Thaw()
	s := openTest(t, master.URL(), o)
	eventually(t, "the replica has them", func() bool {
		_, err := s.Create(t.Context(), task)
		return err == nil
	})
	end(t, s, running)
	writes := commands(master, "hset")
	end(t, openTest(t, master.URL(), o), running)
	_, err := openTest(t, master.URL(), o).Apply(t.Context(), running.ID, nil, cancel)
	is(t, err, shim.ErrFinal)
	if got := commands(master, "hset") - writes; got != 2 {
		t.Errorf("a repeat and a late cancellation have written %d times what a Redis since 7.2 would wait for", got)
	}
}

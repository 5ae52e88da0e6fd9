package redisstore

import (
	"encoding/json"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskgate/shim"
)

// held is the lease of the tasks that newTask makes.
var held = shim.Lease{Replica: "runner"}

// newID is a fresh id.
func newID(t testing.TB) shim.ID {
	t.Helper()
	id, err := shim.NewID()
	must(t, err)
	return id
}

// newTask is an ordinary task.
func newTask(t testing.TB) shim.Task {
	t.Helper()
	return shim.Task{
		ID: newID(t), Op: "create", ListKey: "p:alice", Upstream: "up", Visible: true,
		TTL: time.Hour, Retain: time.Hour, Lease: held,
	}
}

// create stores a task.
func create(t testing.TB, s *Store, task shim.Task, begin ...shim.Batch) shim.Task {
	t.Helper()
	got, err := s.Create(t.Context(), task, begin...)
	must(t, err)
	return got
}

// read reads a task.
func read(t testing.TB, s *Store, id shim.ID, part shim.Part) shim.Task {
	t.Helper()
	got, err := s.Get(t.Context(), id, part)
	must(t, err)
	return got
}

// end completes a task under its lease.
func end(t testing.TB, s *Store, task shim.Task) shim.Task {
	t.Helper()
	got, err := s.Apply(t.Context(), task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Completed})
	must(t, err)
	return got
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t testing.TB, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

func is(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

// eventually waits for something that comes about by itself.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	give := time.NewTimer(20 * time.Second)
	defer give.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-give.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// watching pulls the events of a Watch; it begins with Synced.
func watching(t testing.TB, seq iter.Seq2[shim.Event, error]) func() shim.Event {
	t.Helper()
	next, stop := iter.Pull2(seq)
	t.Cleanup(stop)
	pull := func() shim.Event {
		t.Helper()
		e, err, ok := next()
		if err != nil || !ok {
			t.Fatalf("no event: %v", err)
		}
		return e
	}
	same(t, shim.Event{Synced: true}, pull())
	return pull
}

// content is a batch of one content.
func content(s string) shim.Batch { return shim.Batch{Content: json.RawMessage(s)} }

// batches reads the contents of a task.
func batches(t testing.TB, s *Store, id shim.ID) []string {
	t.Helper()
	raw, err := s.Batches(t.Context(), id, 0)
	must(t, err)
	var out []string
	for _, r := range raw {
		out = append(out, string(r))
	}
	return out
}

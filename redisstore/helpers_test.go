package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskgate/shim"
)

// held is the lease of the tasks that newTask makes.
var held = shim.Lease{Replica: "runner"}

// newTask is an ordinary task.
func newTask() shim.Task {
	return shim.Task{
		ID: shim.NewID(), Op: "create", ListKey: "p:alice", Upstream: "up", Visible: true,
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

// makeSession makes a session, and opens streams of it.
func makeSession(t testing.TB, s *Sessions, id string, streams ...string) {
	t.Helper()
	_, err := s.Make(t.Context(), id, "", "", []byte("{}"))
	must(t, err)
	for _, stream := range streams {
		_, err := s.Open(t.Context(), id, stream, nil)
		must(t, err)
	}
}

// runSessions has sessions run until they are stopped, all of them in use or none. What they are told goes to hear, if
// not nil.
func runSessions(t testing.TB, s *Sessions, busy bool, hear func(text string, at time.Time)) (stop func()) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(string) bool { return busy }, func(string, []byte) {}, func(_, text, _ string, at time.Time) {
			if hear != nil {
				hear(text, at)
			}
		})
	}()
	return func() {
		t.Helper()
		end()
		must(t, <-done)
	}
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

// limit is how long a test waits for anything that is to come about. It is not how
// long that should take: a machine may be busy with other things.
const limit = 50 * time.Second

// eventually waits for something that comes about by itself.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	give := time.NewTimer(limit)
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

// receive waits for a value.
func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	give := time.NewTimer(limit)
	defer give.Stop()
	var v T
	select {
	case v = <-c:
	case <-give.C:
		t.Fatalf("never: %s", what)
	}
	return v
}

// finish waits for a group.
func finish(t testing.TB, g *sync.WaitGroup, what string) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); g.Wait() }()
	receive(t, done, what)
}

// usable waits until a store that gives up early has got rid of the connections that
// broke: what comes then may not fail.
func usable(t testing.TB, s *Store) {
	t.Helper()
	eventually(t, "redis can be used", func() bool { return s.Ping(t.Context()) == nil })
}

// watching pulls the events of a Watch; it begins with Synced.
func watching(t testing.TB, seq iter.Seq2[shim.Event, error]) func() shim.Event {
	t.Helper()
	type step struct {
		event shim.Event
		err   error
	}
	steps, stop := make(chan step), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(steps)
		for e, err := range seq {
			select {
			case steps <- step{e, err}:
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() { // the context of the test has ended, and with it what seq waits for
		close(stop)
		reader.Wait()
	})
	pull := func() shim.Event {
		t.Helper()
		got := receive(t, steps, "an event")
		if e := got.event; got.err != nil || !e.Synced && !e.Goodbye && e.ID == "" {
			t.Fatalf("no event: %v", got.err)
		}
		return got.event
	}
	same(t, shim.Event{Synced: true}, pull())
	return pull
}

// hears waits until a watcher knows of a version of a task: it is told of it, or told
// to read again, as it is when the subscription was lost meanwhile.
func hears(t testing.TB, s *Store, next func() shim.Event, id shim.ID, version int64) {
	t.Helper()
	for {
		e := next()
		if e.ID == id && e.Version >= version || e.Synced && read(t, s, id, shim.Summary).Version >= version {
			return
		}
	}
}

// content is a batch of one content.
func content(s string) shim.Batch { return shim.Batch{Content: json.RawMessage(s)} }

// appendBatches writes batches as the runner.
func appendBatches(ctx context.Context, s *Store, id shim.ID, at shim.Position, b ...shim.Batch) error {
	_, err := s.Apply(ctx, id, &held, shim.Change{At: at, Tail: b})
	return err
}

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

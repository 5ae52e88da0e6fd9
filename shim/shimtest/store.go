// Package shimtest is the contracts of package shim in executable form: Store for
// who writes a store, Upstream for who writes a transport.
package shimtest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskgate/shim"
)

// TB is what an OpenStore may use of a test: both *testing.T and *rapid.T are one.
type TB interface {
	Helper()
	Name() string
	Cleanup(func())
	Context() context.Context
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// OpenStore makes an empty database and returns what opens one more handle on it,
// as another replica has. Handles and database end with the test.
type OpenStore func(t TB) (handle func() shim.Store)

// Store checks that a store keeps the contract of shim.Store.
func Store(t *testing.T, open OpenStore) {
	for _, group := range [][]storeCase{
		createCases, applyCases, questionCases, streamCases, listCases, watchCases, replicaCases, runningCases, expiryCases, raceCases, timelineCases,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
				t.Cleanup(cancel)
				handle := open(t)
				c.run(&storeTest{T: t, ctx: ctx, a: handle(), b: handle(), handle: handle})
			})
		}
	}
	t.Run("Model", func(t *testing.T) {
		t.Parallel()
		testModel(t, open)
	})
}

// storeCase is one sentence of the contract.
type storeCase struct {
	name string
	run  func(*storeTest)
}

// storeTest is a test with two handles on one empty database. What one writes,
// the other reads.
type storeTest struct {
	*testing.T
	ctx    context.Context
	a, b   shim.Store
	handle func() shim.Store
}

const (
	upstream = "up"
	listKey  = "p:alice"
	runner   = shim.Replica("runner")
)

// held is the lease of the tasks that newTask makes.
var held = shim.Lease{Replica: runner}

// newTask is an ordinary task.
func newTask() shim.Task {
	id := shim.NewID()
	return shim.Task{
		ID: id, Op: "create " + string(id), Owner: "alice", ListKey: listKey, Upstream: upstream, Origin: "ext",
		Visible: true, Status: shim.Working, StatusMessage: "begun", TTL: time.Hour, Retain: time.Hour,
		PollInterval: time.Second, Lease: held, Method: "tools/call", Tool: "slow",
	}
}

// create stores an ordinary task, changed as wanted.
func (t *storeTest) create(change func(*shim.Task), begin ...shim.Batch) shim.Task {
	t.Helper()
	task := newTask()
	if change != nil {
		change(&task)
	}
	got, err := t.a.Create(t.ctx, task, begin...)
	t.ok(err)
	return got
}

// ok ends the test at an error.
func (t *storeTest) ok(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get reads a task through the other handle.
func (t *storeTest) get(id shim.ID, part shim.Part) shim.Task {
	t.Helper()
	got, err := t.b.Get(t.ctx, id, part)
	t.ok(err)
	return got
}

// apply makes a change as the runner, with an op of its own, and wants it done.
func (t *storeTest) apply(task shim.Task, c shim.Change) shim.Task {
	t.Helper()
	if c.Op == "" {
		c.Op = string(shim.NewID())
	}
	got, err := t.a.Apply(t.ctx, task.ID, &task.Lease, c)
	t.ok(err)
	t.same(got, t.get(task.ID, shim.Summary))
	return got
}

// end completes a task.
func (t *storeTest) end(task shim.Task) shim.Task {
	t.Helper()
	return t.apply(task, shim.Change{To: shim.Completed, Outcome: &shim.Outcome{Result: json.RawMessage(`{}`)}})
}

// append adds batches as the runner, and wants it done.
func (t *storeTest) append(task shim.Task, at shim.Position, b ...shim.Batch) {
	t.Helper()
	_, err := t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{At: at, Tail: b})
	t.ok(err)
}

// same compares; nothing and empty are the same.
func (t *storeTest) same(want, got any) {
	t.Helper()
	if d := diff(want, got); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

func diff(want, got any) string { return cmp.Diff(want, got, cmpopts.EquateEmpty()) }

// is compares an error.
func (t *storeTest) is(got, want error) {
	t.Helper()
	if !cmp.Equal(got, want, cmpopts.EquateErrors()) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

// stored wants these batches, read through the other handle.
func (t *storeTest) stored(id shim.ID, contents ...string) {
	t.Helper()
	b, err := t.b.Batches(t.ctx, id, 0)
	t.ok(err)
	t.same(contents, texts(b))
	t.same(shim.Position(len(contents)), t.get(id, shim.Summary).Position)
}

func texts(raw []json.RawMessage) []string {
	out := make([]string, len(raw))
	for i, r := range raw {
		out[i] = string(r)
	}
	return out
}

// batch is one with this content.
func batch(content string) shim.Batch { return shim.Batch{Content: json.RawMessage(content)} }

// eventually waits until something is so.
func (t *storeTest) eventually(what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// Rounds is how often something is done that may go wrong by chance: most often it shows in a quarter of them.
func Rounds(n int) int {
	if testing.Short() {
		n /= 4
	}
	return n
}

// pointer is the address of a value.
func pointer[T any](v T) *T { return &v }

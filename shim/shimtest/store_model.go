package shimtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"taskgate/shim"
)

// testModel does anything in any order, through any of three handles, and wants a
// store to be told from a map of tasks by nothing but its clock.
func testModel(t *testing.T, open OpenStore) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithTimeout(rt.Context(), time.Minute)
		defer cancel()
		m := &modelTest{T: rt, ctx: ctx, model: newModel()}
		handle := open(rt)
		for range 3 {
			m.stores = append(m.stores, handle())
		}
		for _, r := range replicas {
			m.ok(m.store().Beat(ctx, r, time.Hour))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": m.check, "create": m.create, "apply": m.apply, "again": m.again,
			"goodbye": m.goodbye, "beat": m.beat, "adopt": m.adopt, "list": m.list,
		})
	})
}

var (
	replicas = []shim.Replica{"r1", "r2", "r3"}
	lists    = []string{"p:a", "s:b", ""}
	servers  = []string{"one", "two"}
	keys     = []string{"q1", "q2", "q3"}
)

// modelTest is a store, the model of it, and what was done last.
type modelTest struct {
	*rapid.T
	ctx    context.Context
	stores []shim.Store
	model  *model
	last   func(shim.Store)
	ops    int
}

// store is any of the handles.
func (m *modelTest) store() shim.Store {
	return m.stores[rapid.IntRange(0, len(m.stores)-1).Draw(m.T, "handle")]
}

// task is any task that there is.
func (m *modelTest) task(rt *rapid.T) *modelTask {
	if len(m.model.tasks) == 0 {
		rt.Skip("no tasks")
	}
	return m.model.tasks[rapid.IntRange(0, len(m.model.tasks)-1).Draw(rt, "task")]
}

func (m *modelTest) ok(err error) {
	m.Helper()
	if err != nil {
		m.Fatalf("%v", err)
	}
}

func (m *modelTest) same(want, got any) {
	m.Helper()
	if d := diff(want, got); d != "" {
		m.Fatalf("(-model +store)\n%s", d)
	}
}

func (m *modelTest) is(got, want error) {
	m.Helper()
	if !errors.Is(got, want) {
		m.Fatalf("store says %v, model %v", got, want)
	}
}

// op is a new operation.
func (m *modelTest) op() string {
	m.ops++
	return fmt.Sprint("op", m.ops)
}

// adjust takes over the store's clock: the times must not go back, and a TTL is
// settled by them.
func (m *modelTest) adjust(k *modelTask, got shim.Task) {
	m.Helper()
	if k.Version == 1 && k.CreatedAt.IsZero() {
		k.CreatedAt, k.UpdatedAt = got.CreatedAt, got.CreatedAt
	}
	if got.Version > k.seen {
		if got.UpdatedAt.Before(k.UpdatedAt) {
			m.Fatalf("time went back from %v to %v", k.UpdatedAt, got.UpdatedAt)
		}
		k.UpdatedAt, k.seen = got.UpdatedAt, got.Version
	}
	if k.Status.Final() {
		k.TTL = k.UpdatedAt.Sub(k.CreatedAt) + k.Retain
	}
}

func (m *modelTest) create(rt *rapid.T) {
	k := newTask()
	k.Op = m.op()
	k.ListKey = rapid.SampledFrom(lists).Draw(rt, "list")
	k.Upstream = rapid.SampledFrom(servers).Draw(rt, "upstream")
	k.Visible = rapid.Bool().Draw(rt, "visible")
	k.Lease = shim.Lease{Replica: m.living(rt)}
	k.Call = json.RawMessage("call")
	k.Arguments = json.RawMessage("arguments")
	begin := m.batches(rt)
	m.model.create(k, begin)
	m.last = func(s shim.Store) {
		got, err := s.Create(m.ctx, k, begin...)
		m.ok(err)
		want := m.model.find(k.ID)
		m.adjust(want, got)
		m.same(want.summary(), got)
	}
	m.last(m.store())
}

// living is a replica that has beaten, as all do before they run anything.
func (m *modelTest) living(rt *rapid.T) shim.Replica {
	r := rapid.SampledFrom(replicas).Draw(rt, "replica")
	if m.model.gone[r] {
		m.model.gone[r] = false
		m.ok(m.store().Beat(m.ctx, r, time.Hour))
	}
	return r
}

// batches are some.
func (m *modelTest) batches(rt *rapid.T) []shim.Batch {
	var out []shim.Batch
	for range rapid.IntRange(0, 3).Draw(rt, "batches") {
		out = append(out, shim.Batch{Content: m.piece(rt)})
	}
	return out
}

// piece is any bytes.
func (m *modelTest) piece(rt *rapid.T) json.RawMessage {
	return rapid.SliceOfN(rapid.Byte(), 1, 5).Draw(rt, "piece")
}

// near is a position near the end of what is stored, most often the end.
func (m *modelTest) near(rt *rapid.T, p shim.Position) shim.Position {
	return max(p+rapid.SampledFrom([]shim.Position{0, 0, 0, 0, -1, -2, 1}).Draw(rt, "off"), 0)
}

// lease is the right one most often.
func (m *modelTest) lease(rt *rapid.T, k *modelTask) *shim.Lease {
	l := k.Lease
	switch rapid.IntRange(0, 8).Draw(rt, "lease") {
	case 0:
		l.Adoption++
	case 1:
		l.Replica = rapid.SampledFrom(replicas).Draw(rt, "replica")
	case 2, 3:
		return nil
	}
	return &l
}

func (m *modelTest) apply(rt *rapid.T) {
	k := m.task(rt)
	lease, c := m.lease(rt, k), m.change(rt, k)
	m.last = func(s shim.Store) {
		want, refused := k.apply(lease, c)
		got, err := s.Apply(m.ctx, k.ID, lease, c)
		m.is(err, refused)
		if refused != nil && !errors.Is(refused, shim.ErrFinal) {
			return
		}
		m.adjust(k, got)
		want.UpdatedAt, want.TTL = k.UpdatedAt, k.TTL
		m.same(want, got)
	}
	m.last(m.store())
}

// again repeats what was done last.
func (m *modelTest) again(rt *rapid.T) {
	if m.last == nil {
		rt.Skip("nothing done")
	}
	m.last(m.store())
}

func (m *modelTest) goodbye(rt *rapid.T) {
	r := rapid.SampledFrom(replicas).Draw(rt, "replica")
	m.model.gone[r] = true
	m.last = func(s shim.Store) { m.ok(s.Beat(m.ctx, r, 0)) }
	m.last(m.store())
}

func (m *modelTest) beat(rt *rapid.T) {
	r := rapid.SampledFrom(replicas).Draw(rt, "replica")
	m.model.gone[r] = false
	m.last = func(s shim.Store) { m.ok(s.Beat(m.ctx, r, time.Hour)) }
	m.last(m.store())
}

// adopt may give any n of the orphans.
func (m *modelTest) adopt(rt *rapid.T) {
	m.last = nil
	r := m.living(rt)
	upstreams := servers[:rapid.IntRange(0, 2).Draw(rt, "upstreams")]
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	orphans := m.model.orphans(r, upstreams)
	got, err := m.store().Adopt(m.ctx, r, upstreams, n)
	m.ok(err)
	m.same(min(n, len(orphans)), len(got))
	for _, g := range got {
		k := m.model.find(g.ID)
		if !slices.Contains(orphans, k) {
			m.Fatalf("adopted %s, which is no orphan", g.ID)
		}
		from := k.Lease.Replica
		k.Lease, k.order = shim.Lease{Replica: r, Adoption: k.Lease.Adoption + 1}, 0
		k.Version++
		m.adjust(k, g)
		want := k.run()
		want.From = from
		m.same(want, g)
	}
}

func (m *modelTest) list(rt *rapid.T) {
	m.last = nil
	key := rapid.SampledFrom(lists).Draw(rt, "list")
	n := rapid.IntRange(1, 5).Draw(rt, "n")
	var got []shim.Task
	for cursor := ""; ; {
		page, next, err := m.store().List(m.ctx, key, cursor, n)
		m.ok(err)
		got = append(got, page...)
		if cursor = next; cursor == "" {
			break
		}
		if len(page) != n {
			m.Fatalf("%d tasks on a page of %d that is not the last", len(page), n)
		}
	}
	byAge := func(a, b shim.Task) int { return a.CreatedAt.Compare(b.CreatedAt) }
	if !slices.IsSortedFunc(got, byAge) {
		m.Fatalf("not the oldest first")
	}
	byID := func(a, b shim.Task) int { return cmpID(a.ID, b.ID) }
	slices.SortFunc(got, byID)
	m.same(slices.SortedFunc(slices.Values(m.model.list(key)), byID), got)
}

// check reads everything of one task.
func (m *modelTest) check(rt *rapid.T) {
	if len(m.model.tasks) == 0 {
		return
	}
	k := m.task(rt)
	for part, want := range map[shim.Part]shim.Task{shim.Summary: k.summary(), shim.WithOutcome: k.whole(), shim.WithRun: k.run()} {
		got, err := m.store().Get(m.ctx, k.ID, part)
		m.ok(err)
		m.same(want, got)
	}
	b, err := m.store().Batches(m.ctx, k.ID, 1)
	m.ok(err)
	m.same(k.contents[min(1, len(k.contents)):], b)
}

// change is any change, more often of one thing than of several.
func (m *modelTest) change(rt *rapid.T, k *modelTask) shim.Change {
	c := shim.Change{Op: m.op()}
	some := func() []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 2, rapid.ID).Draw(rt, "keys")
	}
	parts := map[string]func(){
		"to": func() { c.To = rapid.SampledFrom(statuses[:4]).Draw(rt, "to") },
		"end": func() {
			c.To, c.Outcome = shim.Completed, &shim.Outcome{Result: m.piece(rt), IsError: rapid.Bool().Draw(rt, "is error")}
		},
		"fail":    func() { c.To, c.Outcome = shim.Failed, &shim.Outcome{Error: m.piece(rt)} },
		"message": func() { c.StatusMessage = pointer(rapid.String().Draw(rt, "message")) },
		"progress": func() {
			c.Progress = shim.TaskProgress{Token: json.RawMessage(`"t"`), Params: m.piece(rt)}
		},
		"tail":     func() { c.Tail, c.At = m.batches(rt), m.near(rt, k.Position) },
		"ask":      func() { c.Ask = ask(some()...) },
		"ask2":     func() { c.Ask = ask(some()...) },
		"withdraw": func() { c.Withdraw = some() },
		"answer":   func() { c.Answer = answer(some()...) },
		"take":     func() { c.Take = some() },
		"visible":  func() { c.Visible = true },
		"ttl":      func() { c.TTL = time.Duration(rapid.IntRange(1, 10).Draw(rt, "ttl")) * time.Hour },
		"retain":   func() { c.Retain = time.Duration(rapid.IntRange(1, 3).Draw(rt, "retain")) * time.Hour },
		"keep":     func() { c.KeepArguments = true },
		"run":      func() { c.Checkpoint, c.Call = m.piece(rt), m.piece(rt) },
		"order":    func() { c.Order = int64(rapid.IntRange(1, 5).Draw(rt, "order")) },
	}
	names := slices.Sorted(maps.Keys(parts))
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(rt, "parts") {
		parts[rapid.SampledFrom(names).Draw(rt, "part")]()
	}
	if len(c.Take) == 0 && c.To == "" && c.StatusMessage == nil && !c.Visible && rapid.Bool().Draw(rt, "without op") {
		c.Op = ""
	}
	return c
}

package shimtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/shim"
)

// adopt adopts through the other handle.
func (t *storeTest) adopt(r shim.Replica, n int, upstreams ...string) []shim.Task {
	t.Helper()
	got, err := t.b.Adopt(t.ctx, r, upstreams, n)
	t.ok(err)
	return got
}

// beat has a replica live, or say goodbye.
func (t *storeTest) beat(r shim.Replica, ttl time.Duration) {
	t.Helper()
	t.ok(t.a.Beat(t.ctx, r, ttl))
}

// precision is how exactly a store counts time.
const precision = time.Millisecond

var replicaCases = []storeCase{
	{"Adopt/not from the living", func(t *storeTest) {
		t.beat(runner, time.Hour)
		t.create(nil)
		t.same(0, len(t.adopt("heir", 10, upstream)))
		t.beat(runner, 0)
		t.beat(runner, time.Hour)
		t.same(0, len(t.adopt("heir", 10, upstream)))
	}},
	{"Adopt/at once after goodbye", func(t *storeTest) {
		t.beat(runner, time.Hour)
		task := t.create(func(k *shim.Task) { k.Call, k.Checkpoint = json.RawMessage("1"), json.RawMessage("2") })
		t.beat(runner, 0)
		got := t.adopt("heir", 10, "a", upstream)
		t.same([]shim.ID{task.ID}, ids(got))
		want := task
		want.Lease, want.Version = shim.Lease{Replica: "heir", Adoption: 1}, task.Version+1
		if want.UpdatedAt = got[0].UpdatedAt; want.UpdatedAt.Before(task.UpdatedAt) {
			t.Errorf("updated at %v, adopted at %v", task.UpdatedAt, want.UpdatedAt)
		}
		t.same(want, t.get(task.ID, shim.Summary))
		want.From, want.Call, want.Checkpoint = runner, json.RawMessage("1"), json.RawMessage("2")
		t.same(want, got[0])
		t.same(0, len(t.adopt("other", 10, upstream)))
	}},
	{"Adopt/when the heartbeat has expired", func(t *storeTest) {
		const ttl = 300 * time.Millisecond
		began := time.Now()
		t.beat(runner, ttl)
		task := t.create(nil)
		var got []shim.Task
		t.eventually("adopted", func() bool {
			got = t.adopt("heir", 10, upstream)
			return len(got) > 0
		})
		if d := time.Since(began); d < ttl-precision {
			t.Errorf("adopted %v after the last beat", d)
		}
		t.same(task.ID, got[0].ID)
	}},
	{"Adopt/shuts out the old runner", func(t *storeTest) {
		t.beat(runner, time.Hour)
		task := t.create(nil)
		t.beat(runner, 0)
		adopted := t.adopt("heir", 1, upstream)[0]
		_, err := t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{Op: "x", To: shim.Completed})
		t.is(err, shim.ErrLeaseLost)
		t.append(adopted, 0, batch("[0]"))
		t.beat("heir", time.Hour)
		t.beat("heir", 0)
		again := t.adopt(runner, 1, upstream)
		t.same(shim.Lease{Replica: runner, Adoption: 2}, again[0].Lease)
		_, err = t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{Op: "x", To: shim.Completed})
		t.is(err, shim.ErrLeaseLost)
		t.end(again[0])
	}},
	{"Adopt/only on these upstreams", func(t *storeTest) {
		t.beat(runner, time.Hour)
		one := t.create(func(k *shim.Task) { k.Upstream = "one" })
		two := t.create(func(k *shim.Task) { k.Upstream = "two" })
		t.beat(runner, 0)
		t.same(0, len(t.adopt("heir", 10, "three")))
		t.same(0, len(t.adopt("heir", 10)))
		t.same([]shim.ID{two.ID}, ids(t.adopt("heir", 10, "two", "three")))
		t.same([]shim.ID{one.ID}, ids(t.adopt("heir", 10, "one", "two")))
	}},
	{"Adopt/on any upstream after ten expiries", func(t *storeTest) {
		const ttl = 40 * time.Millisecond
		began := time.Now()
		t.beat(runner, ttl)
		task := t.create(nil)
		var got []shim.Task
		t.eventually("adopted", func() bool {
			got = t.adopt("heir", 10, "other")
			return len(got) > 0
		})
		if d := time.Since(began); d < 10*ttl-precision {
			t.Errorf("adopted %v after the last beat", d)
		}
		t.same([]shim.ID{task.ID}, ids(got))
	}},
	{"Adopt/no more than asked for", func(t *storeTest) {
		t.beat(runner, time.Hour)
		for range 7 {
			t.create(nil)
		}
		t.beat(runner, 0)
		t.same([]int{3, 3, 1, 0}, []int{
			len(t.adopt("heir", 3, upstream)), len(t.adopt("heir", 3, upstream)),
			len(t.adopt("heir", 3, upstream)), len(t.adopt("heir", 3, upstream)),
		})
	}},
	{"Adopt/hidden calls, but nothing that has ended", func(t *storeTest) {
		t.beat(runner, time.Hour)
		t.end(t.create(nil))
		cancelled := t.create(nil)
		t.anyone(cancelled, shim.Change{Op: "x", To: shim.Cancelled})
		hidden := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, 1 })
		t.beat(runner, 0)
		t.same([]shim.ID{hidden.ID}, ids(t.adopt("heir", 10, upstream)))
	}},
	{"Adopt/not its own", func(t *storeTest) {
		t.beat(runner, time.Hour)
		t.create(nil)
		t.beat(runner, 0)
		t.same(0, len(t.adopt(runner, 10, upstream)))
	}},
	{"Adopt/several at once share", func(t *storeTest) {
		t.beat(runner, time.Hour)
		n := Rounds(100)
		for range n {
			t.create(nil)
		}
		t.beat(runner, 0)
		var all sync.WaitGroup
		var found atomic.Int64
		got := make([][]shim.Task, 6)
		for i := range got {
			store := []shim.Store{t.a, t.b}[i%2]
			all.Go(func() {
				for found.Load() < int64(n) && t.ctx.Err() == nil {
					tasks, err := store.Adopt(t.ctx, shim.Replica(fmt.Sprint("heir", i)), []string{upstream}, 4)
					if err != nil && !errors.Is(err, shim.ErrUnavailable) { // a store that answers late is asked again
						t.Error(err)
						return
					}
					found.Add(int64(len(tasks)))
					got[i] = append(got[i], tasks...)
				}
			})
		}
		all.Wait()
		adopted := slices.Concat(got...)
		t.same(n, len(adopted))
		for i, tasks := range got {
			for _, k := range tasks {
				t.same(shim.Lease{Replica: shim.Replica(fmt.Sprint("heir", i)), Adoption: 1}, k.Lease)
			}
		}
		slices.SortFunc(adopted, func(a, b shim.Task) int { return cmpID(a.ID, b.ID) })
		t.same(n, len(slices.CompactFunc(adopted, func(a, b shim.Task) bool { return a.ID == b.ID })))
	}},
	{"Adopt/from several", func(t *storeTest) {
		for i := range 3 {
			r := shim.Replica(fmt.Sprint("dead", i))
			t.beat(r, time.Hour)
			t.create(func(k *shim.Task) { k.Lease.Replica = r })
			t.beat(r, 0)
		}
		t.same(3, len(t.adopt("heir", 10, upstream)))
	}},
}

package shimtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"sync"
	"time"

	"taskgate/shim"
)

// watching pulls the events of a Watch or an Inbox; it ends with the test.
func (t *storeTest) watching(seq iter.Seq2[shim.Event, error]) func() shim.Event {
	t.Helper()
	next, stop := iter.Pull2(seq)
	t.Cleanup(stop)
	return func() shim.Event {
		t.Helper()
		e, err, ok := next()
		if err != nil || !ok {
			t.Fatalf("no event: %v, %v", err, t.ctx.Err())
		}
		return e
	}
}

// synced wants a Synced.
func (t *storeTest) synced(e shim.Event) {
	t.Helper()
	t.same(shim.Event{Synced: true}, e)
}

// hears waits for an event of a task at this version. Events of what was before may
// still come, for an event may be late; those of other tasks may not.
func (t *storeTest) hears(next func() shim.Event, task shim.Task) {
	t.Helper()
	for {
		e := next()
		if e.ID != task.ID || e.Version > task.Version {
			t.Fatalf("heard %+v instead of version %d of %s", e, task.Version, task.ID)
		}
		if e.Version == task.Version {
			return
		}
	}
}

// heardAt returns the newest token that comes until a task is at this version.
func heardAt(next func() shim.Event, task shim.Task) (last shim.Event) {
	for token := ""; ; {
		last = next()
		token = cmp.Or(last.Token, token)
		if last.Token = token; last.Version >= task.Version {
			return last
		}
	}
}

// steps are changes of a task of every kind, in an order in which they apply, and
// whether the runner's inbox hears of them.
var steps = []struct {
	name   string
	change func(t *storeTest, task shim.Task)
	inbox  bool
}{
	{"message", func(t *storeTest, k shim.Task) { t.apply(k, shim.Change{StatusMessage: pointer("x")}) }, false},
	{"append", func(t *storeTest, k shim.Task) { t.append(k, 0, batch("[0]")) }, false},
	{"ask", func(t *storeTest, k shim.Task) { t.apply(k, shim.Change{Ask: ask("1", "2")}) }, false},
	{"answer", func(t *storeTest, k shim.Task) { t.anyone(k, shim.Change{Answer: answer("1")}) }, true},
	{"take", func(t *storeTest, k shim.Task) { t.apply(k, shim.Change{Take: []string{"1"}}) }, false},
	{"withdraw", func(t *storeTest, k shim.Task) { t.apply(k, shim.Change{Withdraw: []string{"2"}}) }, false},
	{"cancel", func(t *storeTest, k shim.Task) { t.anyone(k, shim.Change{Op: "x", To: shim.Cancelled}) }, true},
}

var watchCases = []storeCase{
	{"Watch/every change by anyone", func(t *storeTest) {
		task := t.create(nil)
		a, b := t.watching(t.a.Watch(t.ctx, task.ID)), t.watching(t.b.Watch(t.ctx, task.ID))
		t.synced(a())
		t.synced(b())
		for _, step := range steps {
			step.change(t, task)
			want := t.get(task.ID, shim.Summary)
			t.hears(a, want)
			t.hears(b, want)
		}
	}},
	{"Watch/nothing has changed", func(t *storeTest) {
		task := t.create(nil, batch("[0]"))
		next := t.watching(t.b.Watch(t.ctx, task.ID))
		t.synced(next())
		t.hears(next, t.apply(task, shim.Change{Op: "m", StatusMessage: pointer("x")}))
		t.append(task, 0, batch("[0]"))
		t.apply(task, shim.Change{Op: "m", StatusMessage: pointer("x")})
		t.anyone(task, shim.Change{Answer: answer("9")})
		t.anyone(task, shim.Change{TTL: 1})
		end := t.end(task)
		t.same(shim.Event{ID: task.ID, Version: end.Version}, next())
	}},
	{"Watch/several tasks, and no others", func(t *storeTest) {
		first, second, other := newTask(), newTask(), newTask()
		next := t.watching(t.b.Watch(t.ctx, first.ID, second.ID, first.ID))
		t.synced(next())
		for _, k := range []shim.Task{other, first, second} {
			_, err := t.a.Create(t.ctx, k)
			t.ok(err)
		}
		// In a cluster, events of two tasks may overtake each other.
		heard := map[shim.ID]bool{}
		for len(heard) < 2 {
			heard[next().ID] = true
		}
		t.same(map[shim.ID]bool{first.ID: true, second.ID: true}, heard)
		t.end(other)
		t.hears(next, t.end(second))
		t.hears(next, t.end(first))
	}},
	{"Watch/events merge while nobody listens", func(t *storeTest) {
		task := t.create(nil)
		slow, quick := t.watching(t.b.Watch(t.ctx, task.ID)), t.watching(t.b.Watch(t.ctx, task.ID))
		t.synced(slow())
		t.synced(quick())
		var last shim.Task
		for i := range 50 {
			last = t.apply(task, shim.Change{StatusMessage: pointer(fmt.Sprint(i))})
		}
		for e := quick(); e.Version < last.Version; e = quick() {
		}
		n := 1
		for e := slow(); e.Version < last.Version; e = slow() {
			n++
		}
		if n > 2 {
			t.Errorf("%d events where nobody listened to 50", n)
		}
	}},
	{"Watch/ends with its context", func(t *storeTest) {
		task := t.create(nil)
		ctx, cancel := context.WithCancel(t.ctx)
		for e, err := range t.a.Watch(ctx, task.ID) {
			t.ok(err)
			t.synced(e)
			cancel()
		}
		ended, cancel := context.WithCancel(t.ctx)
		cancel()
		for range t.a.Watch(ended, task.ID) {
			t.Error("an event for a context that has ended")
		}
	}},
	{"Watch/many come and go", func(t *storeTest) {
		task := t.create(nil)
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				for range 10 {
					ids := []shim.ID{task.ID, shim.NewID()}[:1+i%2]
					for e, err := range t.b.Watch(t.ctx, ids...) {
						if err != nil || !e.Synced {
							t.Errorf("begins with %+v %v", e, err)
						}
						break
					}
				}
			})
		}
		all.Wait()
		next := t.watching(t.b.Watch(t.ctx, task.ID))
		t.synced(next())
		t.hears(next, t.end(task))
	}},
	{"Watch/nothing is missed between Synced and a read", func(t *storeTest) {
		for i := range Rounds(40) {
			task := t.create(nil)
			var all sync.WaitGroup
			all.Go(func() {
				if _, err := t.a.Apply(t.ctx, task.ID, nil, shim.Change{Op: fmt.Sprint(i), To: shim.Cancelled}); err != nil {
					t.Error(err)
				}
			})
			for _, err := range t.b.Watch(t.ctx, task.ID) {
				t.ok(err)
				if t.get(task.ID, shim.Summary).Status.Final() {
					break
				}
			}
			all.Wait()
		}
	}},
	{"Watch/no tasks", func(t *storeTest) {
		t.synced(t.watching(t.a.Watch(t.ctx))())
		t.synced(t.watching(t.a.Watch(t.ctx, "no id"))())
	}},
	{"Inbox/what others change", func(t *storeTest) {
		task := t.create(nil)
		other := t.create(func(k *shim.Task) { k.Lease.Replica = "other" })
		next := t.watching(t.a.Inbox(t.ctx, runner))
		t.synced(next())
		t.anyone(other, shim.Change{Op: "x", To: shim.Cancelled})
		for _, step := range steps {
			step.change(t, task)
			if step.inbox {
				t.hears(next, t.get(task.ID, shim.Summary))
			}
		}
	}},
	{"Inbox/tokens", func(t *storeTest) {
		task := t.create(nil)
		inbox, watch := t.watching(t.a.Inbox(t.ctx, runner)), t.watching(t.a.Watch(t.ctx, task.ID))
		t.synced(inbox())
		t.synced(watch())
		t.apply(task, shim.Change{Ask: ask("1", "2")})
		first := t.anyone(task, shim.Change{Answer: answer("1"), Token: "one"})
		t.same(shim.Event{ID: task.ID, Version: first.Version, Token: "one"}, inbox())
		t.same(first.Version, first.TokenAt)
		t.apply(task, shim.Change{StatusMessage: pointer("x"), Op: "m"})
		t.anyone(task, shim.Change{Answer: answer("1"), Token: "of what changes nothing"})
		// What has not been taken yet is one event, with the newest token.
		t.anyone(task, shim.Change{Answer: answer("2"), Token: "two"})
		last := t.anyone(task, shim.Change{Op: "x", To: shim.Cancelled})
		t.same("two", heardAt(inbox, last).Token)
		t.same(last.Version-1, t.get(task.ID, shim.Summary).TokenAt)
		for e := watch(); ; e = watch() {
			t.same("", e.Token)
			if e.Version == last.Version {
				break
			}
		}
	}},
	{"Inbox/goodbyes", func(t *storeTest) {
		next := t.watching(t.a.Inbox(t.ctx, "heir"))
		t.synced(next())
		for _, r := range []shim.Replica{runner, "other"} {
			t.beat(r, time.Hour) // to live is nothing to tell of
			t.beat(r, 0)
			t.same(shim.Event{Goodbye: true}, next())
		}
	}},
	{"Inbox/adoption", func(t *storeTest) {
		task := t.create(nil)
		next := t.watching(t.a.Inbox(t.ctx, runner))
		t.synced(next())
		t.ok(t.b.Beat(t.ctx, runner, 0))
		t.same(shim.Event{Goodbye: true}, next())
		adopted, err := t.b.Adopt(t.ctx, "heir", []string{upstream}, 10)
		t.ok(err)
		t.same([]shim.ID{task.ID}, ids(adopted))
		t.same(shim.Event{ID: task.ID, Version: adopted[0].Version}, next())
		heir := t.watching(t.b.Inbox(t.ctx, "heir"))
		t.synced(heir())
		_, err = t.a.Apply(t.ctx, task.ID, nil, shim.Change{Op: "x", To: shim.Cancelled, Outcome: &shim.Outcome{Error: json.RawMessage("{}")}})
		t.ok(err)
		e := heir()
		for e.Goodbye { // of a cluster's nodes another one may tell of it again, late
			e = heir()
		}
		t.same(task.ID, e.ID)
	}},
}

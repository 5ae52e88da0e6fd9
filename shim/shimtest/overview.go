package shimtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"taskgate/shim"
)

// Overview checks that what a store can do for operators keeps the contract of shim.Overview.
func Overview(t *testing.T, open OpenStore, of func(shim.Store) shim.Overview) {
	for _, c := range overviewCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			t.Cleanup(cancel)
			handle := open(t)
			s := &storeTest{T: t, ctx: ctx, a: handle(), b: handle(), handle: handle}
			c.run(&overviewTest{storeTest: s, view: of(s.b), other: of(s.a)})
		})
	}
}

// overviewTest looks through the other handle than the one that writes.
type overviewTest struct {
	*storeTest
	view, other shim.Overview
}

type overviewCase struct {
	name string
	run  func(*overviewTest)
}

// search reads all pages of a query, and checks that each has at most as many as it may.
func (t *overviewTest) search(q shim.Query) (all []shim.Task) {
	t.Helper()
	for q.Limit = max(q.Limit, 3); ; {
		page, next, err := t.view.Search(t.ctx, q)
		t.ok(err)
		if len(page) > q.Limit {
			t.Fatalf("%d tasks on a page of %d", len(page), q.Limit)
		}
		all = append(all, page...)
		if q.Cursor = next; next == "" {
			return all
		}
	}
}

// finds wants a query to find these, in any order, and in the order of their creation.
func (t *overviewTest) finds(q shim.Query, want ...shim.Task) {
	t.Helper()
	got := t.search(q)
	if !slices.IsSortedFunc(got, func(a, b shim.Task) int { return b.CreatedAt.Compare(a.CreatedAt) }) {
		t.Error("not the newest first")
	}
	slices.SortFunc(got, func(a, b shim.Task) int { return cmpID(a.ID, b.ID) })
	slices.SortFunc(want, func(a, b shim.Task) int { return cmpID(a.ID, b.ID) })
	t.same(ids(want), ids(got))
	for i := range got {
		t.same(t.get(want[i].ID, shim.Summary), got[i])
	}
}

var overviewCases = []overviewCase{
	{"Search/all, page by page, from both ends", func(t *overviewTest) {
		var want []shim.Task
		for i := range 60 {
			task := t.create(func(k *shim.Task) { k.ListKey, k.Visible = "", i%5 > 0 })
			if i%2 == 0 {
				t.end(task)
			}
			want = append(want, task)
		}
		for _, n := range []int{3, 7, 59, 60, 61, 500} {
			t.finds(shim.Query{Limit: n}, want...)
		}
		newest := t.search(shim.Query{Limit: 7})
		oldest := t.search(shim.Query{Limit: 7, Oldest: true})
		slices.Reverse(oldest)
		t.same(ids(newest), ids(oldest))
	}},
	{"Search/many of one moment", func(t *overviewTest) {
		var want []shim.Task
		id := shim.NewID()
		for i := range 40 { // in one shard, and many within a ms
			task, err := t.a.Create(t.ctx, func() shim.Task {
				k := newTask()
				k.ID = id[:32] + shim.ID(fmt.Sprintf("%04x", i))
				return k
			}())
			t.ok(err)
			want = append(want, task)
		}
		t.finds(shim.Query{Limit: 3}, want...)
		t.same(40, len(t.search(shim.Query{Oldest: true})))
	}},
	{"Search/a cursor outlives what comes and goes", func(t *overviewTest) {
		for range 20 {
			t.create(nil)
		}
		first, cursor, err := t.view.Search(t.ctx, shim.Query{Limit: 5})
		t.ok(err)
		for _, k := range first {
			t.anyone(k, shim.Change{Op: "x", To: shim.Cancelled, Retain: 1})
			t.gone(k.ID)
		}
		t.create(nil)
		rest := t.search(shim.Query{Limit: 5, Cursor: cursor})
		t.same(15, len(rest))
		for _, k := range rest {
			if slices.Contains(ids(first), k.ID) {
				t.Errorf("%s was shown twice", k.ID)
			}
		}
		_, _, err = t.view.Search(t.ctx, shim.Query{Limit: 5, Cursor: "nonsense"})
		t.is(err, shim.ErrCursor)
	}},
	{"Search/by what a task is", func(t *overviewTest) {
		t.beat(runner, time.Hour)
		t.beat("second", time.Hour)
		mine := t.create(nil)
		bob := t.create(func(k *shim.Task) { k.Owner, k.ListKey, k.Upstream = "bob", "two/p:bob", "two" })
		nobody := t.create(func(k *shim.Task) { k.Owner, k.ListKey, k.Tool, k.Lease.Replica = "", "", "quick", "second" })
		asking := t.create(nil)
		t.apply(asking, shim.Change{Ask: []shim.Question{{Key: "q", Method: "m"}}})
		done := t.create(nil)
		t.end(done)
		read := t.create(func(k *shim.Task) { k.Method, k.Tool, k.Visible = "prompts/get", "", false })

		t.finds(shim.Query{}, mine, bob, nobody, asking, done, read)
		t.finds(shim.Query{Upstream: "two"}, bob)
		t.finds(shim.Query{Tool: "quick"}, nobody)
		t.finds(shim.Query{Tool: "prompts/get"}, read)
		t.finds(shim.Query{States: []shim.State{shim.StateAsking}}, asking)
		t.finds(shim.Query{States: shim.OpenStates}, mine, bob, nobody, asking, read)
		t.finds(shim.Query{States: []shim.State{shim.StateWorking, shim.StateCompleted}, Upstream: upstream}, mine, nobody, done, read)
		t.finds(shim.Query{States: []shim.State{shim.StateCompleted}, EndedAfter: t.get(done.ID, shim.Summary).UpdatedAt}, done)
		t.finds(shim.Query{EndedAfter: t.get(done.ID, shim.Summary).UpdatedAt}, done)
		t.finds(shim.Query{EndedAfter: t.get(done.ID, shim.Summary).UpdatedAt.Add(time.Millisecond)})
		t.finds(shim.Query{Owner: pointer("")}, nobody)
		t.finds(shim.Query{Owner: pointer("bob"), Lists: []string{"one/p:bob", "two/p:bob"}}, bob)
		t.finds(shim.Query{Owner: pointer("alice"), Lists: []string{listKey}}, mine, asking, done, read)
		t.finds(shim.Query{Owner: pointer("alice"), Lists: []string{listKey}, States: shim.OpenStates}, mine, asking, read)
		t.finds(shim.Query{Replica: "second"}, nobody)
		t.finds(shim.Query{Replica: runner}, mine, bob, asking, read)
		t.finds(shim.Query{Replica: "none"})
		t.finds(shim.Query{Prefix: string(done.ID)}, done)
		t.finds(shim.Query{Prefix: string(done.ID[:9])}, done)
		t.finds(shim.Query{Prefix: "x"})
		t.finds(shim.Query{Prefix: string(mine.ID[:6]), States: shim.OpenStates}, mine)
	}},
	{"Search/by when it was made", func(t *overviewTest) {
		t.beat(runner, time.Hour)
		old := t.create(nil)
		t.eventually("a later time", func() bool { return t.create(nil).CreatedAt.After(old.CreatedAt.Add(20 * time.Millisecond)) })
		later := t.create(nil)
		before, after := later.CreatedAt.Add(-10*time.Millisecond), later.CreatedAt.Add(-time.Millisecond/2)
		for _, q := range []shim.Query{{}, {States: shim.OpenStates}, {Owner: pointer("alice"), Lists: []string{listKey}}} {
			q.After = after
			t.same(true, slices.Contains(ids(t.search(q)), later.ID))
			t.same(false, slices.Contains(ids(t.search(q)), old.ID))
			q.After, q.Before = time.Time{}, before
			t.same(false, slices.Contains(ids(t.search(q)), later.ID))
			t.same(true, slices.Contains(ids(t.search(q)), old.ID))
		}
	}},
	{"Search/by its state", func(t *overviewTest) {
		t.beat(runner, time.Hour)
		queued := t.create(func(k *shim.Task) { k.StatusMessage = shim.MessageQueued })
		works := t.create(nil)
		ends := func(to shim.Status, o shim.Outcome) shim.Task {
			k := t.create(nil)
			_, err := t.a.Apply(t.ctx, k.ID, &k.Lease, shim.Change{Op: "end", To: to, Outcome: &o})
			t.ok(err)
			return k
		}
		done := ends(shim.Completed, shim.Outcome{Result: json.RawMessage(`{}`)})
		wrong := ends(shim.Completed, shim.Outcome{Result: json.RawMessage(`{}`), IsError: true})
		failed := ends(shim.Failed, shim.Outcome{Error: json.RawMessage(`{}`)})
		lost := ends(shim.Failed, shim.Outcome{Error: json.RawMessage(`{}`), Unknown: true})
		t.finds(shim.Query{States: []shim.State{shim.StateQueued}}, queued)
		t.finds(shim.Query{States: []shim.State{shim.StateWorking}}, works)
		t.finds(shim.Query{States: []shim.State{shim.StateCompleted}}, done)
		t.finds(shim.Query{States: []shim.State{shim.StateToolError}}, wrong)
		t.finds(shim.Query{States: []shim.State{shim.StateFailed}}, failed)
		t.finds(shim.Query{States: []shim.State{shim.StateFailed, shim.StateToolError, shim.StateUnknown}}, wrong, failed, lost)
		t.finds(shim.Query{States: shim.EndedStates}, done, wrong, failed, lost)
	}},
	{"Search/an unknown outcome", func(t *overviewTest) {
		lost := t.create(func(k *shim.Task) { k.ListKey = "" })
		t.end(t.create(nil))
		end := shim.Change{Op: "end", To: shim.Failed, Outcome: &shim.Outcome{Error: json.RawMessage(`{}`), Unknown: true}}
		for range 2 { // also where the first reply was lost
			got, err := t.a.Apply(t.ctx, lost.ID, &lost.Lease, end)
			t.ok(err)
			t.same(true, got.Unknown)
		}
		t.finds(shim.Query{States: []shim.State{shim.StateUnknown}}, lost)
		t.finds(shim.Query{States: []shim.State{shim.StateUnknown}, Upstream: "other"})
	}},
	{"Sweep/leaves what is there", func(t *overviewTest) {
		kept := t.create(nil)
		for range 10 {
			k := t.create(nil)
			t.anyone(k, shim.Change{Op: "x", To: shim.Cancelled, Retain: 1})
			t.gone(k.ID)
		}
		for range 300 { // each begins somewhere
			t.ok(t.view.Sweep(t.ctx))
		}
		t.finds(shim.Query{}, kept)
	}},
	{"Replicas/those that live, and those that are gone", func(t *overviewTest) {
		t.beat(runner, time.Hour)
		t.beat("second", time.Hour)
		t.create(nil)
		t.end(t.create(nil))
		t.ok(t.other.Report(t.ctx, runner, []byte("hello"), time.Hour))
		t.ok(t.other.Report(t.ctx, runner, []byte("again"), time.Hour))
		t.ok(t.other.Report(t.ctx, "second", []byte("brief"), 20*time.Millisecond))
		t.beat("second", 0)
		var got []shim.Standing
		t.eventually("what was said is over", func() bool {
			var err error
			got, err = t.view.Replicas(t.ctx)
			t.ok(err)
			return got[1].About == nil
		})
		for i := range got {
			if got[i].Seen.IsZero() {
				t.Errorf("%s was never seen", got[i].Replica)
			}
			got[i].Seen = time.Time{}
		}
		t.same([]shim.Standing{{Replica: runner, Alive: true, Running: 1, About: []byte("again")}, {Replica: "second"}}, got)
	}},
	{"Notes/of each replica and minute", func(t *overviewTest) {
		at := time.Unix(60*1000, 0)
		for _, note := range []string{"a", "b"} { // one takes the place of the one before
			t.ok(t.other.Note(t.ctx, runner, at, []byte(note), time.Hour))
		}
		t.ok(t.other.Note(t.ctx, "second", at.Add(59*time.Second), []byte("c"), time.Hour))
		got, err := t.view.Notes(t.ctx, []time.Time{at.Add(-time.Minute), at})
		t.ok(err)
		t.same([]map[shim.Replica][]byte{{}, {runner: []byte("b"), "second": []byte("c")}}, got)
	}},
	{"Changes/of any task", func(t *overviewTest) {
		ctx, stop := context.WithCancel(t.ctx)
		defer stop()
		news, over := make(chan struct{}, 1), make(chan error, 1)
		go func() {
			over <- t.view.Changes(ctx, func() {
				select {
				case news <- struct{}{}:
				default:
				}
			})
		}()
		hear := func() {
			t.Helper()
			select {
			case <-news:
			case <-t.ctx.Done():
				t.Fatal("nothing is heard")
			}
		}
		hear() // it is in step
		task := t.create(nil)
		hear()
		t.end(task)
		hear()
		stop()
		t.is(<-over, context.Canceled)
	}},
}

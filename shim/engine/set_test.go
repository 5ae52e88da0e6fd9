package engine_test

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// watches counts the Watches that are under way.
type watches struct {
	shim.Store
	n atomic.Int64
}

func (w *watches) Watch(ctx context.Context, ids ...shim.ID) iter.Seq2[shim.Event, error] {
	return func(yield func(shim.Event, error) bool) {
		w.n.Add(1)
		defer w.n.Add(-1)
		w.Store.Watch(ctx, ids...)(yield)
	}
}

// unknown names no task.
const unknown = shim.ID("00000000-0000-4000-8000-000000000001")

// What is added to a set is followed at once, and the tasks that are in it already do not
// begin anew. A Watch lasts for as long as one of its tasks is in the set.
func TestSetTakesMoreTasksWhileItIsFollowed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.gateway("a", takes(time.Hour), policy(shim.Always))
		over := &watches{Store: w.store}
		b := w.gatewayOf("b", shim.Server{Upstream: takes(0)}, func(o *engine.Options) { o.Store = over })
		one, two, three := begin(t, a, call()).ID, begin(t, a, call()).ID, begin(t, a, call()).ID
		pass(time.Second)
		set := b.NewSet(anyone, "up")
		f := followSet(t, set, one, two, three)
		f.want(t, "")
		set.Add(shim.Tracked{ID: one}, shim.Tracked{ID: two}, shim.Tracked{ID: one})
		f.want(t, "a:working b:working")
		set.Add(shim.Tracked{ID: two}, shim.Tracked{ID: three})
		f.want(t, "c:working")
		if n := over.n.Load(); n != 2 {
			t.Errorf("%d watches of two sets of tasks", n)
		}
		for i, id := range []shim.ID{one, three, two} {
			cancelTask(t, a, id)
			f.want(t, []string{"a:cancelled", "c:cancelled", "b:cancelled"}[i])
			if n, want := over.n.Load(), int64(2-i); n != want {
				t.Errorf("%d watches, want %d", n, want)
			}
		}
		if n := len(set.Tasks()); n != 0 {
			t.Errorf("%d tasks in the set that have ended", n)
		}
		set.Add(shim.Tracked{ID: one})
		f.want(t, "a:cancelled")
		select {
		case err := <-f.done:
			t.Errorf("an open set is followed no more: %v", err)
		default:
		}
		set.Close()
		must(t, <-f.done)
	})
}

// A closed set is followed until the last task has left it, by its end or otherwise.
func TestSetIsFollowedUntilItIsEmpty(t *testing.T) {
	for name, leave := range map[string]func(s *engine.Shim, set shim.Set, id shim.ID){
		"ended": func(s *engine.Shim, _ shim.Set, id shim.ID) {
			_, _ = s.Cancel(context.Background(), anyone, "up", id)
		},
		"removed": func(_ *engine.Shim, set shim.Set, id shim.ID) { set.Remove(id, unknown) },
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			s := w.gateway("a", takes(time.Hour), policy(shim.Always))
			id := begin(t, s, call()).ID
			pass(time.Second)
			set := s.NewSet(anyone, "up", shim.Tracked{ID: unknown}, shim.Tracked{ID: id})
			set.Close()
			f := followSet(t, set, id, unknown)
			f.want(t, "b:gone a:working")
			if tasks := set.Tasks(); len(tasks) != 1 || tasks[0].ID != id {
				t.Errorf("the set has %v", tasks)
			}
			leave(s, set, id)
			must(t, <-f.done)
		})
	}
}

// What is removed from a set is yielded no more.
func TestSetForgetsWhatIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(10*time.Second), policy(shim.Always))
		id := begin(t, s, call()).ID
		pass(time.Second)
		set := s.NewSet(anyone, "up", shim.Tracked{ID: id})
		f := followSet(t, set, id)
		f.want(t, "a:working")
		set.Remove(id)
		pass(time.Minute)
		f.want(t, "")
		set.Add(shim.Tracked{ID: id})
		f.want(t, "a:completed")
		set.Close()
		<-f.done
	})
}

// The end of a task comes with its outcome, where that is wanted: once it can be read.
func TestSetTellsOutcomes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(10*time.Second), policy(shim.Always))
		var away atomic.Bool
		h := &hooked{get: unless(&away)}
		b := w.over("b", h, takes(0), policy(shim.Always))
		one, two := begin(t, s, call()).ID, begin(t, s, call()).ID
		pass(time.Second)
		set := b.NewSet(anyone, "up", shim.Tracked{ID: one, Outcome: true}, shim.Tracked{ID: two})
		set.Close()
		f := followSet(t, set, one, two)
		f.want(t, "a:working b:working")
		away.Store(true)
		pass(20 * time.Second)
		f.want(t, "")
		away.Store(false)
		must(t, <-f.done)
		for _, task := range f.tasks[2:] {
			whole := task.Outcome != nil && string(task.Outcome.Result) == result
			if task.Status != shim.Completed || whole != (task.ID == one) {
				t.Errorf("%s has the outcome %+v", task.ID, task.Outcome)
			}
		}
	})
}

// One set has tasks and what AskSession has stored, and one without pieces beside one with them.
func TestSetOfAllKinds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gatewayFor("a", shim.Server{
			Upstream: says("", words(time.Second, "1", "2")...), Policy: func(string, shim.Hints) shim.Policy { return streaming(true) },
		})
		q := w.poses("b", elicits(0, "q"))
		question, err := q.AskSession(t.Context(), sessionQuestion(), json.RawMessage(`{}`), func(shim.ID, bool) {})
		must(t, err)
		c := call()
		c.Principal = client
		task := begin(t, s, c).ID
		pass(100 * time.Millisecond)
		set := q.NewSet(client, "up", shim.Tracked{ID: question, Hidden: true}, shim.Tracked{ID: task, Pieces: true})
		set.Close()
		f := followSet(t, set, question, task)
		f.want(t, "a:input_required b:working")
		answerTask(t, q, client, question, "q", `{}`)
		must(t, <-f.done)
		pieces, ended := slices.Index(f.lines, "b:0:1"), slices.Index(f.lines, "b:completed")
		if pieces < 0 || ended < pieces || !slices.Contains(f.lines, "a:completed") {
			t.Errorf("yielded %s", f.lines)
		}
	})
}

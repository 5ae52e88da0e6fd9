package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// failsFirst fails the first call of each of its replicas with err, and answers all others. It keeps the requests.
type failsFirst struct {
	scripted
	mu   sync.Mutex
	seen []shim.Request
}

func newFailsFirst(err error) *failsFirst {
	u := &failsFirst{}
	u.call = sending(func(ctx context.Context, r shim.Request, _ shim.Sink) (shim.Reply, error) {
		u.mu.Lock()
		u.seen = append(u.seen, r)
		first := len(u.seen) == 1
		u.mu.Unlock()
		reply, ended := after(ctx, 10*time.Second)
		if first && ended == nil {
			return shim.Reply{}, err
		}
		return reply, ended
	})
	return u
}

// rerunnable is a policy of tools whose failed calls may be run again.
func rerunnable() shim.Policy {
	p := policy(shim.Auto)
	p.Rerun = true
	return p
}

var (
	errClosed   = &shim.UpstreamError{Kind: shim.KindClosed, Message: "the stream ended"}
	errNoSignIn = &shim.UpstreamError{Kind: shim.KindRefused, Message: "refused", Unsent: true}
)

// An operator runs a failed call again, and one with an unknown outcome: as a new task of the same owner, with the same
// arguments, and once.
func TestRerun(t *testing.T) {
	for name, err := range map[string]error{"failed": errNoSignIn, "unknown": errClosed} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := newFailsFirst(err)
			s := w.gateway("a", u, rerunnable())
			c := ownedBy("ann")
			c.Request.Shown, c.Request.Session.Token = "shown", "ann's token"
			task := begin(t, s, c)
			pass(20 * time.Second)
			wantStatus(t, readAs(t, s, "ann", task.ID), shim.Failed)

			o := engine.NewOperator(s, nil)
			old, made, err := o.Rerun(t.Context(), task.ID, "op")
			must(t, err)
			if old.ID != task.ID || made.ID == task.ID || made.Owner != "ann" || made.Tool != "slow" || made.Origin != task.Origin {
				t.Errorf("made %+v", made)
			}
			pass(20 * time.Second)
			wantStatus(t, readAs(t, s, "ann", made.ID), shim.Completed)
			again := u.seen[1]
			if len(u.seen) != 2 || string(again.Params) != string(c.Request.Params) || again.Shown != "shown" || again.Session.Token != "" || again.Session.Principal != "ann" {
				t.Errorf("%d calls, the last %+v", len(u.seen), again)
			}
			listed, _, err := s.List(t.Context(), c.Principal, "up", "")
			if must(t, err); len(listed) != 2 {
				t.Errorf("the owner's list has %d tasks", len(listed))
			}
			whole, err := o.Read(t.Context(), made.ID, shim.WithAll)
			must(t, err)
			if whole.RerunOf != task.ID || whole.Timeline[0].Kind != shim.KindRerun || whole.Timeline[0].Detail != "operator op" || whole.Arguments != nil {
				t.Errorf("%s %+v, arguments %s", whole.RerunOf, whole.Timeline, whole.Arguments)
			}
			before, err := o.Read(t.Context(), task.ID, shim.WithAll)
			if must(t, err); before.RerunAs != made.ID {
				t.Errorf("the first names %q", before.RerunAs)
			}
			wantRefusal(t, o, task.ID, "it has been run again already, as "+string(made.ID))
			wantRefusal(t, o, made.ID, "only a tool call that has failed, or whose outcome is unknown, can be run again")
		})
	}
}

// wantRefusal tries to run a task again.
func wantRefusal(t *testing.T, o *engine.Operator, id shim.ID, reason string) {
	t.Helper()
	var refused *shim.ChangeError
	if _, _, err := o.Rerun(t.Context(), id, "op"); !errors.As(err, &refused) || refused.Reason != reason {
		t.Errorf("%v, not %q", err, reason)
	}
}

// What the policy does not allow is not run again, nor what runs, nor what was made while the policy kept no arguments.
func TestRerunIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := policy(shim.Auto)
		srv := serves(newFailsFirst(errClosed), p)
		srv.Policy = func(string, shim.Hints) shim.Policy { return p }
		s := w.gatewayFor("a", srv)
		o := engine.NewOperator(s, nil)
		task := begin(t, s, call())
		wantRefusal(t, o, task.ID, "the task has not ended")
		pass(20 * time.Second)
		wantRefusal(t, o, task.ID, "the policy of its tool does not allow that (rerun: on)")
		p.Rerun = true
		wantRefusal(t, o, task.ID, "its arguments were not kept")
		s.Serve(map[string]shim.Server{"up": {Removed: true, Policy: srv.Policy}})
		wantRefusal(t, o, task.ID, "its server is no longer offered")
		if _, _, err := o.Rerun(t.Context(), shim.NewID(), "op"); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("an unknown task: %v", err)
		}
	})
}

// Two operators at two replicas run the same call again at the same moment: the server gets it once.
func TestRerunTwiceAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := newFailsFirst(errClosed)
		a, b := w.gateway("a", u, rerunnable()), w.gateway("b", u, rerunnable())
		task := begin(t, a, call())
		pass(20 * time.Second)
		var made [2]shim.Task
		var both sync.WaitGroup
		for i, s := range []*engine.Shim{a, b} {
			both.Go(func() { _, made[i], _ = engine.NewOperator(s, nil).Rerun(t.Context(), task.ID, "op") })
		}
		both.Wait()
		pass(20 * time.Second)
		if n := u.calls.Load(); n != 2 {
			t.Errorf("%d calls", n)
		}
		done := 0
		for _, one := range made {
			if one.ID != "" && read(t, a, one.ID).Status == shim.Completed {
				done++
			}
		}
		if done != 1 {
			t.Errorf("%d of %v are completed", done, made)
		}
	})
}

// unclaimed is a store at which a claim of a rerun gets no answer.
type unclaimed struct{ shim.Store }

func (unclaimed) NoteRerun(ctx context.Context, _, _ shim.ID) (shim.ID, error) {
	<-ctx.Done()
	return "", shim.ErrUnavailable
}

// The replica is lost after it has made the new task, and before it has sent the call: another one sends it, and nobody
// can run the call a third time.
func TestRerunOutlivesItsReplica(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := newFailsFirst(errClosed)
		b := w.gateway("b", u, rerunnable())
		task := begin(t, b, call())
		pass(20 * time.Second)
		a := w.still("a", serves(u, rerunnable()), func(o *engine.Options) { o.Store = unclaimed{w.store} })
		defer func() { must(t, a.Halt(t.Context())) }()
		_, made, err := engine.NewOperator(a, nil).Rerun(t.Context(), task.ID, "op")
		must(t, err)
		pass(time.Minute)
		wantStatus(t, read(t, b, made.ID), shim.Completed)
		wantRefusal(t, engine.NewOperator(b, nil), task.ID, "it has been run again already, as "+string(made.ID))
		if n := u.calls.Load(); n != 2 {
			t.Errorf("%d calls", n)
		}
	})
}

// A rerun counts as a call of its owner: it is refused where that is.
func TestRerunIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		srv := serves(newFailsFirst(errClosed), rerunnable())
		srv.MaxTasks = 1
		s := w.gatewayFor("a", srv)
		var busy *shim.BusyError
		task := begin(t, s, call())
		pass(20 * time.Second)
		begin(t, s, call())
		if _, _, err := engine.NewOperator(s, nil).Rerun(t.Context(), task.ID, "op"); !errors.As(err, &busy) {
			t.Errorf("%v", err)
		}
		pass(time.Minute)
		_, _, err := engine.NewOperator(s, nil).Rerun(t.Context(), task.ID, "op")
		must(t, err)
		pass(time.Minute)
	})
}

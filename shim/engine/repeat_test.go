package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/programtest"
	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// repeats is the policy of a tool whose calls may be picked up.
func repeats(mode shim.RepeatMode) shim.Policy {
	p := policy(shim.Never)
	p.Repeat, p.Linger = mode, 5*time.Minute
	return p
}

// repeating starts a replica that knows of calls which may be picked up.
func (w *world) repeating(name string, u shim.Upstream, p shim.Policy) *engine.Shim {
	w.t.Helper()
	return w.repeatingOf(name, shim.Server{Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return p }, Queue: 1, QueueWait: 5 * time.Second})
}

func (w *world) repeatingOf(name string, srv shim.Server) *engine.Shim {
	w.t.Helper()
	return w.gatewayOf(name, srv, func(o *engine.Options) {
		o.Repeats = faultyRepeats{redisstore.NewRepeats(w.store.Store.(*redisstore.Store)), w.store}
		o.StoreWait = 25 * time.Second
	})
}

// faultyRepeats fails while the store does.
type faultyRepeats struct {
	shim.Repeats
	store *faultyStore
}

func (f faultyRepeats) Note(ctx context.Context, e shim.Lingering, state shim.LingerState, from []shim.LingerState, life time.Duration) (shim.LingerState, error) {
	if f.store.down.Load() {
		return "", errDown
	}
	return f.Repeats.Note(ctx, e, state, from, life)
}

func (f faultyRepeats) Take(ctx context.Context, client, call, op string, last bool, life time.Duration) (shim.ID, shim.LingerState, bool, error) {
	if f.store.down.Load() {
		return "", "", false, errDown
	}
	return f.Repeats.Take(ctx, client, call, op, last, life)
}

func (f faultyRepeats) Expire(ctx context.Context, client string, id shim.ID, force bool) (time.Duration, error) {
	if f.store.down.Load() {
		return 0, errDown
	}
	return f.Repeats.Expire(ctx, client, id, force)
}

// errGaveUp is the cause with which the context of a client ends that gives up.
var errGaveUp = &shim.CancelledError{Reason: "gave up"}

// sameCall is a call of a client without tasks, in a session, which says which client and which call it is.
func sameCall(client, call string) shim.Call {
	c := told()
	c.After, c.Stay, c.Block = 0, true, true
	c.Request.Params = json.RawMessage(`{"name":"slow","arguments":{"call":"` + call + `"}}`)
	c.Principal = shim.Principal{Session: client}
	c.Repeat = shim.Repeat{
		Name: func() string { return "app 1" }, Client: func() string { return client }, Call: func() string { return call },
		GaveUp: func(cause error) bool { return cause == error(errGaveUp) },
	}
	return c
}

// patient makes a call, and gives up or cancels after a time.
func patient(s *engine.Shim, c shim.Call, after time.Duration, why error) (shim.Answered, error) {
	ctx, leave := context.WithCancelCause(context.Background())
	defer leave(nil)
	defer time.AfterFunc(after, func() { leave(why) }).Stop()
	return s.Call(ctx, c)
}

// gaveUp makes a call whose client gives up after a minute.
func gaveUp(t *testing.T, s *engine.Shim, c shim.Call) {
	t.Helper()
	if _, err := patient(s, c, time.Minute, errGaveUp); !errors.Is(err, shim.ErrCancelled) {
		t.Fatalf("the client that gave up got %v", err)
	}
	synctest.Wait()
}

// wantAnswer makes a call that is answered after a time, by work that began so long before.
func wantAnswer(t *testing.T, s *engine.Shim, c shim.Call, after, old time.Duration) {
	t.Helper()
	begun := time.Now()
	a, err := s.Call(t.Context(), c)
	if err != nil || string(a.Reply.Result) != result || time.Since(begun).Round(time.Second) != after {
		t.Fatalf("after %v: %s, %v", time.Since(begun), a.Reply.Result, err)
	}
	if picked := !a.PickedUp.IsZero(); picked != (old > 0) || picked && begun.Sub(a.PickedUp).Round(time.Second) != old {
		t.Errorf("picked up a call that began %v before, want %v", begun.Sub(a.PickedUp), old)
	}
	synctest.Wait()
}

// wantShown wants what operators see of the one call.
func wantShown(t *testing.T, w *world, message string) {
	t.Helper()
	all, _, err := w.store.Store.(*redisstore.Store).Overview().Search(t.Context(), shim.Query{States: shim.OpenStates, Limit: 9})
	if err != nil || len(all) != 1 || all[0].StatusMessage != message || all[0].KeptUntil.IsZero() {
		t.Errorf("operators see %+v, %v", all, err)
	}
}

func wantCalls(t *testing.T, u *scripted, n int64) {
	t.Helper()
	if got := u.calls.Load(); got != n {
		t.Errorf("%d calls at the server, want %d", got, n)
	}
}

// A client that gives up each minute gets the answer of the one call, whichever replica it asks.
func TestRepeatPicksUp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(150 * time.Second)
		a, b := w.repeating("a", u, repeats(shim.RepeatAuto)), w.repeating("b", u, repeats(shim.RepeatAuto))
		c := sameCall("client", "call")
		gaveUp(t, a, c)
		wantShown(t, w, "given up by its client; kept until 00:06:00 UTC")
		gaveUp(t, b, c)
		wantShown(t, w, "given up by its client; kept until 00:07:00 UTC")
		wantAnswer(t, a, c, 30*time.Second, 2*time.Minute)
		wantCalls(t, u, 1)
		wantAnswer(t, b, c, 150*time.Second, 0) // the answer was given: this is new work
		wantCalls(t, u, 2)
	})
}

// A repeat at once finds the call, though the news that its client gave up is still on its way.
func TestRepeatCrossesTheNews(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(100 * time.Second)
		a, b := w.repeating("a", u, repeats(shim.RepeatAuto)), w.repeating("b", u, repeats(shim.RepeatAuto))
		c := sameCall("client", "call")
		go func() { _, _ = patient(a, c, time.Minute, errGaveUp) }()
		pass(59500 * time.Millisecond)
		wantAnswer(t, b, c, 41*time.Second, time.Minute)
		wantCalls(t, u, 1)
	})
}

// What is no giving up is cancelled at the server at once, and so is a call that is cheap to repeat.
func TestRepeatCancels(t *testing.T) {
	for name, test := range map[string]struct {
		mode  shim.RepeatMode
		after time.Duration
		why   error
	}{
		"the user":  {shim.RepeatJoin, time.Minute, &shim.CancelledError{Reason: "AbortError"}},
		"cheap":     {shim.RepeatJoin, 19 * time.Second, errGaveUp},
		"by policy": {shim.RepeatRun, time.Minute, errGaveUp},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := takes(150 * time.Second)
			s := w.repeating("a", u, repeats(test.mode))
			begun := time.Now()
			_, err := patient(s, sameCall("client", "call"), test.after, test.why)
			synctest.Wait()
			if !errors.Is(err, shim.ErrCancelled) || !errors.Is(u.ended(), shim.ErrCancelled) || time.Since(begun) != test.after {
				t.Errorf("after %v: %v; at the server %v", time.Since(begun), err, u.ended())
			}
			wantAnswer(t, s, sameCall("client", "call"), 150*time.Second, 0)
		})
	}
}

// A call is cancelled at the server once nobody has come back in time, and its user's cancellation of the repeat is one.
func TestRepeatRunsOut(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		a, b := w.repeating("a", u, repeats(shim.RepeatAuto)), w.repeating("b", u, repeats(shim.RepeatAuto))
		c := sameCall("client", "call")
		gaveUp(t, a, c)
		pass(5*time.Minute - time.Second)
		if u.ended() != nil {
			t.Error("cancelled too soon")
		}
		pass(2 * time.Second)
		if u.ended() == nil {
			t.Fatal("still there")
		}
		u.mu.Lock()
		u.cause = nil
		u.mu.Unlock()
		gaveUp(t, a, c)
		_, err := patient(b, c, 10*time.Minute, &shim.CancelledError{Reason: "the user"})
		synctest.Wait()
		if !errors.Is(err, shim.ErrCancelled) || u.ended() == nil {
			t.Errorf("%v; at the server %v", err, u.ended())
		}
		wantCalls(t, u, 2)
	})
}

// The answer that comes while nobody waits is given once, to the next call of the client that is the same.
func TestRepeatKeptAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		mode    shim.RepeatMode
		change  func(w *world, s *engine.Shim, c *shim.Call) // before the repeat
		picksUp bool
	}{
		"it is": {shim.RepeatAuto, func(*world, *engine.Shim, *shim.Call) {}, true},
		"another call came": {shim.RepeatAuto, func(w *world, s *engine.Shim, _ *shim.Call) {
			_, _ = s.Call(context.Background(), sameCall("client", "other"))
		}, false},
		"another client's came": {shim.RepeatAuto, func(w *world, s *engine.Shim, _ *shim.Call) {
			go s.Call(context.Background(), sameCall("other", "other"))
		}, true}, //nolint
		"another came, under join": {shim.RepeatJoin, func(w *world, s *engine.Shim, _ *shim.Call) {
			_, _ = s.Call(context.Background(), sameCall("client", "other"))
		}, true},
		"late":                 {shim.RepeatAuto, func(*world, *engine.Shim, *shim.Call) { pass(45 * time.Second) }, false},
		"late, under join":     {shim.RepeatJoin, func(*world, *engine.Shim, *shim.Call) { pass(4 * time.Minute) }, true},
		"too late, under join": {shim.RepeatJoin, func(*world, *engine.Shim, *shim.Call) { pass(6 * time.Minute) }, false},
		"the tool reads only": {shim.RepeatAuto, func(_ *world, _ *engine.Shim, c *shim.Call) {
			c.Repeat.ReadOnly = func(context.Context) bool { return true }
		}, false},
		"another call":   {shim.RepeatJoin, func(_ *world, _ *engine.Shim, c *shim.Call) { *c = sameCall("client", "call2") }, false},
		"another client": {shim.RepeatJoin, func(_ *world, _ *engine.Shim, c *shim.Call) { *c = sameCall("client2", "call") }, false},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := takes(80 * time.Second)
			a, b := w.repeating("a", u, repeats(test.mode)), w.repeating("b", u, repeats(test.mode))
			c := sameCall("client", "call")
			gaveUp(t, a, c)
			pass(25 * time.Second)
			test.change(w, b, &c)
			synctest.Wait()
			calls := u.calls.Load()
			got, err := b.Call(t.Context(), c)
			if err != nil || string(got.Reply.Result) != result || test.picksUp == got.PickedUp.IsZero() {
				t.Fatalf("%+v, %v", got, err)
			}
			if ran := u.calls.Load() > calls; ran == test.picksUp {
				t.Errorf("it ran again: %v", ran)
			}
			synctest.Wait()
			if test.picksUp {
				wantAnswer(t, a, sameCall("client", "call"), 80*time.Second, 0)
			}
		})
	}
}

// Two same calls at once are two calls, and what failed in transport is not given again.
func TestRepeatIsNone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(100 * time.Second)
		s := w.repeating("a", u, repeats(shim.RepeatJoin))
		c := sameCall("client", "call")
		go func() { _, _ = s.Call(context.Background(), c) }()
		pass(30 * time.Second)
		wantAnswer(t, s, c, 101*time.Second, 0)
		wantCalls(t, u, 2)
		u.call = sending(func(ctx context.Context, _ shim.Request, _ shim.Sink) (shim.Reply, error) {
			if _, err := after(ctx, 70*time.Second); err != nil {
				return shim.Reply{}, err
			}
			return shim.Reply{}, &shim.UpstreamError{Kind: shim.KindClosed, Message: "closed"}
		})
		gaveUp(t, s, c)
		pass(15 * time.Second)
		u.call = takes(0).call
		wantAnswer(t, s, c, 0, 0)
	})
}

// A call that lingers survives its replica as a task does.
func TestRepeatOutlivesItsReplica(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(200 * time.Second)
		u.resume = func(ctx context.Context, _ shim.Request, _ json.RawMessage, _ shim.Sink) (shim.Reply, error) {
			return after(ctx, 100*time.Second)
		}
		a := w.still("a", serves(u, repeats(shim.RepeatAuto)), func(o *engine.Options) { o.Repeats = redisstore.NewRepeats(w.store.Store.(*redisstore.Store)) })
		b := w.repeating("b", u, repeats(shim.RepeatAuto))
		stop := run(a)
		c := sameCall("client", "call")
		gaveUp(t, a, c)
		stop() // it beats no more
		pass(20 * time.Second)
		got, err := b.Call(t.Context(), c)
		must(t, a.Close(t.Context()))
		if err != nil || string(got.Reply.Result) != result || got.PickedUp.IsZero() {
			t.Fatalf("%+v, %v", got, err)
		}
		wantCalls(t, u, 1)
	})
}

// A call that lingers never keeps the place that another call needs.
func TestRepeatGivesWay(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		s := w.repeatingOf("a", shim.Server{Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return repeats(shim.RepeatAuto) }, Concurrency: 2, Queue: 1, QueueWait: 5 * time.Second})
		for _, call := range []string{"first", "second"} {
			go func() { _, _ = patient(s, sameCall("client "+call, call), time.Minute, errGaveUp) }()
			pass(time.Second)
		}
		pass(70 * time.Second)
		picked := make(chan error, 1)
		go func() { // the one that has lingered for longest gives way, and this one keeps its place
			_, err := patient(s, sameCall("client second", "second"), time.Minute, &shim.CancelledError{Reason: "the user"})
			picked <- err
		}()
		pass(time.Second)
		u.call = takes(time.Second).call
		wantAnswer(t, s, sameCall("new", "new"), time.Second, 0)
		if err := <-picked; !errors.Is(err, shim.ErrCancelled) {
			t.Errorf("the call that was picked up: %v", err)
		}
		wantCalls(t, u, 3)
	})
}

// While the store is away, only the calls that may be repeats wait for it, and are not sent.
func TestRepeatWithoutStore(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := takes(100 * time.Second)
		s := w.repeating("a", u, repeats(shim.RepeatAuto))
		c := sameCall("client", "call")
		gaveUp(t, s, c)
		w.store.down.Store(true)
		go func() {
			<-time.After(20 * time.Second)
			w.store.down.Store(false)
		}()
		got, err := s.Call(t.Context(), c)
		if err != nil || got.PickedUp.IsZero() {
			t.Fatalf("through an outage: %+v, %v", got, err)
		}
		wantCalls(t, u, 1)
		synctest.Wait()
		gaveUp(t, s, c)
		w.store.down.Store(true)
		calls := u.calls.Load()
		if _, err := s.Call(t.Context(), c); !errors.Is(err, shim.ErrUnavailable) || u.calls.Load() != calls {
			t.Errorf("%v, %d calls", err, u.calls.Load()-calls)
		}
		wantAnswer(t, s, sameCall("other", "other"), 100*time.Second, 0)
		w.store.down.Store(false)
		pass(10 * time.Second)
	})
}

// A client that gives up on 10,000 calls has as many of them kept as its owner may have tasks; the others are cancelled. Its
// owner's next task is refused for that. Those of other callers are not: where the kept calls leave no room, they give way.
func TestRepeatIsBounded(t *testing.T) {
	calls, kept := 10_000, 1000
	if !programtest.Whole() {
		calls, kept = 1000, 100
	}
	hours(t, func(t *testing.T, w *world) {
		u := &scripted{}
		var running atomic.Int64
		u.call = sending(func(ctx context.Context, _ shim.Request, _ shim.Sink) (shim.Reply, error) {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return shim.Reply{}, context.Cause(ctx)
		})
		s := w.repeatingOf("a", shim.Server{
			Upstream: u, MaxTasksPerOwner: kept, MaxTasks: 2 * kept,
			Policy: func(tool string, _ shim.Hints) shim.Policy {
				if tool == "task" {
					return policy(shim.Required)
				}
				return repeats(shim.RepeatAuto)
			},
		})
		task := func(owner string) error {
			c := call()
			c.Request.Name, c.Principal = "task", shim.Principal{Subject: owner}
			_, err := s.Call(t.Context(), c)
			synctest.Wait()
			return err
		}
		wantRunning := func(n int) {
			t.Helper()
			if got := running.Load(); got != int64(n) {
				t.Errorf("%d calls go on, want %d", got, n)
			}
		}
		giveUpMany := func(owner string, calls int) {
			for i := range calls {
				c := sameCall(owner, strconv.Itoa(i))
				c.Principal = shim.Principal{Subject: owner}
				go func() { _, _ = patient(s, c, time.Minute, errGaveUp) }()
			}
			pass(2 * time.Minute)
		}
		giveUpMany("alice", calls)
		wantRunning(kept)
		pass(time.Second)
		all, _, err := w.store.Store.(*redisstore.Store).Overview().Search(t.Context(), shim.Query{Limit: calls})
		if err != nil || len(all) != kept {
			t.Errorf("%d records are stored, %v", len(all), err)
		}
		busy, ok := errors.AsType[*shim.BusyError](task("alice"))
		if !ok || busy.Key != "max_tasks_per_owner" {
			t.Errorf("the owner's next task: %v", busy)
		}
		giveUpMany("carol", kept)
		wantRunning(2 * kept)
		for range 3 {
			if err := task("bob"); err != nil {
				t.Errorf("a task of another caller: %v", err)
			}
		}
		wantRunning(2 * kept) // with the tasks
		pass(10 * time.Minute)
		wantRunning(3) // the tasks alone
	})
}

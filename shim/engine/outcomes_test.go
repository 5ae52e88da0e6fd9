package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// replicate has another store hear of what the world's has of a task.
func (w *world) replicate(id shim.ID, to shim.Store) {
	w.t.Helper()
	task, err := w.store.Get(w.t.Context(), id, shim.WithRun)
	must(w.t, err)
	pieces, err := w.store.Batches(w.t.Context(), id, 0)
	must(w.t, err)
	var begin []shim.Batch
	for _, piece := range pieces {
		begin = append(begin, shim.Batch{Content: piece})
	}
	must(w.t, errorOf(to.Create(w.t.Context(), task, begin...)))
}

// A replica of the store that takes over without having heard of a task's end, or
// of the task, is told again (design.md 0.20).
func TestEndIsWrittenAgainAfterAFailover(t *testing.T) {
	for name, heard := range map[string]bool{"task gone": false, "task still working": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			s := w.gateway("a", takes(10*time.Second), policy(shim.Always))
			task := begin(t, s, call())
			other := openEmbedded(t)
			if heard {
				w.replicate(task.ID, other)
			}
			pass(15 * time.Second)
			w.store.failover.Store(&other)
			pass(30 * time.Second)
			got := read(t, s, task.ID)
			wantStatus(t, got, shim.Completed)
			if string(got.Outcome.Result) != result {
				t.Errorf("result %s", got.Outcome.Result)
			}
		})
	}
}

// A record that is written again before its end does not call the call unsent: it has run.
func TestForgottenTaskIsNotSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(10*time.Second), policy(shim.Required))
		task := begin(t, s, call())
		pass(5 * time.Second)
		endless := &hooked{Store: openEmbedded(t)} // takes no end of a task that it has
		endless.apply = func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if _, err := endless.Get(ctx, task.ID, shim.Summary); err == nil && c.To.Final() {
				return shim.Task{}, shim.ErrUnavailable
			}
			return next(ctx)
		}
		var other shim.Store = endless
		w.store.failover.Store(&other)
		pass(20 * time.Second)
		if got, err := other.Get(t.Context(), task.ID, shim.WithRun); err != nil || got.Status != shim.Working || got.Call != nil && got.Checkpoint == nil {
			t.Errorf("%s, %v: an adopter would have %s", got.Status, err, got.Call)
		}
		w.store.failover.Store(nil)
	})
}

// A task that the store forgets while it runs goes on all the same, and its record is
// written again by the first write that finds none: here that of its progress.
func TestRunOutlivesItsRecord(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := &scripted{call: sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if _, err := after(ctx, time.Hour); err != nil {
				return shim.Reply{}, err
			}
			s.Progress(shim.Progress{Message: "half"})
			return after(ctx, time.Hour)
		})}
		s := w.gateway("a", u, policy(shim.Always))
		task := begin(t, s, call())
		other := openEmbedded(t)
		pass(time.Second) // the call has been sent
		w.store.failover.Store(&other)
		pass(90 * time.Minute)
		wantStatus(t, read(t, s, task.ID), shim.Working)
		pass(31 * time.Minute)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.Completed)
		if string(got.Outcome.Result) != result {
			t.Errorf("result %s", got.Outcome.Result)
		}
	})
}

// So is a cancellation, whichever replica it came by: the call has been stopped for
// it, so there is nobody else to end the task.
func TestCancellationIsWrittenAgainAfterAFailover(t *testing.T) {
	for _, by := range []string{"a", "b"} {
		bubbleOf(t, "by "+by, func(t *testing.T, w *world) {
			gateways := map[string]*engine.Shim{}
			for _, name := range []string{"a", "b"} {
				gateways[name] = w.gateway(name, takes(time.Hour), policy(shim.Always))
			}
			task := begin(t, gateways["a"], call())
			other := openEmbedded(t)
			w.replicate(task.ID, other)
			cancelTask(t, gateways[by], task.ID)
			pass(time.Second)
			w.store.failover.Store(&other)
			wantStatus(t, read(t, gateways["b"], task.ID), shim.Working)
			pass(30 * time.Second)
			wantStatus(t, read(t, gateways["b"], task.ID), shim.Cancelled)
		})
	}
}

// A task that the store has forgotten just now can be cancelled all the same: the request waits until the
// record is there again.
func TestCancelOfATaskThatTheStoreForgot(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		up := takes(time.Hour)
		a := w.gateway("a", up, policy(shim.Always))
		b := w.gatewayOf("b", serves(up, policy(shim.Always)),
			func(o *engine.Options) { o.StoreWait = 25 * time.Second })
		task := begin(t, a, call())
		full := func(context.Context, func(context.Context) (shim.Task, error)) (shim.Task, error) {
			return shim.Task{}, errDown
		}
		var other shim.Store = &hooked{Store: openEmbedded(t), create: full} // else the audit brings the record back at a time of its own
		pass(time.Second)
		w.store.failover.Store(&other)
		pass(5 * time.Second)
		wantStatus(t, read(t, b, task.ID), shim.Working)
		time.AfterFunc(10*time.Second, func() { w.store.failover.Store(nil) })
		asked := time.Now()
		if got, err := b.Cancel(t.Context(), anyone, "up", task.ID); err != nil || got.Status != shim.Working || !got.CreatedAt.Equal(task.CreatedAt) {
			t.Errorf("cancel: %+v, %v", got, err)
		}
		if waited := time.Since(asked); waited > 0 {
			t.Errorf("it was answered after %s", waited)
		}
		pass(12 * time.Second)
		wantStatus(t, read(t, a, task.ID), shim.Cancelled)
		if up.ended() == nil {
			t.Error("the call goes on at the server")
		}

		lost := begin(t, a, call())
		pass(time.Second)
		w.store.failover.Store(&other)
		if got, err := b.Cancel(t.Context(), anyone, "up", lost.ID); err != nil || got.Status != shim.Working {
			t.Errorf("cancel of one that is not there again: %+v, %v", got, err)
		}
		pass(time.Minute)
		if got, err := b.Cancel(t.Context(), anyone, "up", lost.ID); !errors.Is(err, shim.ErrFinal) || got.Status != shim.Failed {
			t.Errorf("cancel of one that is lost: %+v, %v", got, err)
		}
		w.store.failover.Store(nil)
	})
}

// A task that is gone because its time was over stays gone.
func TestExpiredTaskIsNotBroughtBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(time.Second), policy(shim.Always))
		c := call()
		c.TTL = 10 * time.Second
		task := begin(t, s, c)
		pass(time.Minute)
		if _, err := s.Get(t.Context(), anyone, "up", task.ID); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("after its ttl: %v", err)
		}
	})
}

package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
)

// resumable is a call that takes an hour, and that another replica, or this one, can go on
// with: it is answered then after d.
func resumable(d time.Duration) *scripted {
	u := takes(time.Hour)
	u.resume = func(ctx context.Context, _ shim.Request, _ json.RawMessage, _ shim.Sink) (shim.Reply, error) {
		return after(ctx, d)
	}
	return u
}

// adoptedOnce is the get of a store whose next answer is that of an adoption, which is lost then.
func adoptedOnce(next *atomic.Bool) func(context.Context, shim.ID, func(context.Context) (shim.Task, error)) (shim.Task, error) {
	return func(ctx context.Context, _ shim.ID, get func(context.Context) (shim.Task, error)) (shim.Task, error) {
		task, err := get(ctx)
		if next.CompareAndSwap(true, false) {
			task.Lease = shim.Lease{Replica: "lost", Adoption: 1}
		}
		return task, err
	}
}

// A run lets go of a task that another replica has adopted. If a failover loses that
// adoption, the task is this replica's again by its record, and it goes on with it.
func TestTaskWhoseAdoptionWasLost(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := resumable(time.Second)
		var adopted atomic.Bool
		h := &hooked{get: adoptedOnce(&adopted)}
		s := w.over("a", h, u, policy(shim.Always))
		task := begin(t, s, call())
		pass(time.Second)
		adopted.Store(true)
		updateTask(t, s, task.ID, nil)
		adopted.Store(true)
		must(t, errorOf(w.store.Store.Apply(t.Context(), task.ID, nil, shim.Change{TTL: 48 * time.Hour})))
		pass(time.Second)
		if err := u.ended(); !errors.Is(err, shim.ErrDetached) {
			t.Fatalf("the call of a task that was adopted ended with %v", err)
		}
		pass(period + 2*time.Second)
		wantStatus(t, read(t, s, task.ID), shim.Completed)
		if u.calls.Load() != 1 {
			t.Errorf("it was sent %d times", u.calls.Load())
		}
	})
}

// A run that has let go of a task does not go on with it when this replica adopts that:
// the call is resumed.
func TestRunThatHasLetGoIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		release := make(chan struct{})
		u := resumable(time.Second)
		slow := u.call
		u.call = func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
			reply, err := slow(ctx, r, s)
			<-release // it takes its time to end
			return reply, err
		}
		var lost atomic.Bool
		var back atomic.Pointer[shim.Task]
		h := &hooked{get: adoptedOnce(&lost)}
		h.adopt = func(context.Context, func(context.Context) ([]shim.Task, error)) ([]shim.Task, error) {
			if task := back.Swap(nil); task != nil {
				return []shim.Task{*task}, nil
			}
			return nil, nil
		}
		s := w.over("a", h, u, policy(shim.Always))
		task := begin(t, s, call())
		pass(6 * time.Second)
		lost.Store(true)
		must(t, errorOf(w.store.Store.Apply(t.Context(), task.ID, nil, shim.Change{TTL: 48 * time.Hour})))
		pass(100 * time.Millisecond)
		whole, err := w.store.Store.Get(t.Context(), task.ID, shim.WithRun)
		must(t, err)
		back.Store(&whole) // as adopted again, under a lease that is no newer
		pass(5 * time.Second)
		close(release)
		pass(5 * time.Second)
		wantStatus(t, read(t, s, task.ID), shim.Completed)
	})
}

// A creation or an adoption that the store makes when its caller has given up leaves no task that
// nobody runs: the one finds its record ended, and the other is found, and ends.
func TestTaskThatNobodyRuns(t *testing.T) {
	bubbleOf(t, "created late", func(t *testing.T, w *world) {
		u := takes(time.Hour)
		var first atomic.Bool
		h := &hooked{create: func(ctx context.Context, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if first.Swap(true) {
				return next(ctx)
			}
			<-ctx.Done()
			time.AfterFunc(10*time.Second, func() { _, _ = next(context.WithoutCancel(ctx)) })
			return shim.Task{}, ctx.Err()
		}}
		s := w.over("a", h, u, policy(shim.Always))
		c := call()
		c.Demand, c.Principal = true, shim.Principal{Subject: "ann"}
		if _, err := s.Call(t.Context(), c); !errors.Is(err, shim.ErrUnavailable) {
			t.Fatalf("a task that could not be created: %v", err)
		}
		pass(10*time.Second + period)
		tasks, _, err := s.List(t.Context(), c.Principal, "up", "")
		if err != nil || len(tasks) != 0 {
			t.Errorf("%+v, %v: want no task, as its caller was told", tasks, err)
		}
		if u.calls.Load() != 0 {
			t.Error("the call was sent, though its caller was told that it was not")
		}
	})
	bubbleOf(t, "adopted late", func(t *testing.T, w *world) {
		h := &hooked{adopt: func(context.Context, func(context.Context) ([]shim.Task, error)) ([]shim.Task, error) {
			return nil, shim.ErrUnavailable
		}}
		b := w.over("b", h, resumable(time.Second), policy(shim.Always))
		id := w.lostAfter(takes(time.Hour), policy(shim.Always), call(), func(shim.Answered) { pass(time.Second) }).Task.ID
		pass(10 * time.Second)
		if tasks, err := w.store.Store.Adopt(t.Context(), "b", []string{"up"}, 10); err != nil || len(tasks) != 1 {
			t.Fatalf("%v, %v", tasks, err)
		}
		pass(period + 2*time.Second)
		wantStatus(t, read(t, b, id), shim.Completed)
	})
}

// The end of a task is told, also where its version is one that was seen before.
func TestEndOfARepeatedVersionIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var ended atomic.Bool // without a new version, as after a failover that has lost a change
		h := &hooked{get: func(ctx context.Context, _ shim.ID, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			task, err := next(ctx)
			if ended.Load() {
				task.Status, task.UpdatedAt = shim.Failed, task.UpdatedAt.Add(time.Second)
			}
			return task, err
		}}
		s := w.over("a", h, takes(time.Hour), policy(shim.Always))
		task := begin(t, s, call())
		f := follow(t, s, anyone, task.ID)
		pass(time.Second)
		f.want(t, "working")
		ended.Store(true)
		pass(31 * time.Second)
		f.want(t, "failed")
	})
}

// A cancellation that a client was told of is written again where the store has lost it,
// also if the replica that ran the task is lost at the same time.
func TestAcknowledgedCancellationIsWrittenAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		before := openEmbedded(t)
		b := w.gateway("b", takes(0), policy(shim.Always))
		pass(6 * time.Second)
		answer := w.lostAfter(takes(time.Hour), policy(shim.Always), call(), func(a shim.Answered) {
			pass(time.Second)
			must(t, errorOf(before.Create(t.Context(), *a.Task)))
			cancelTask(t, b, a.Task.ID)
		})
		w.store.failover.Store(&before)
		pass(31 * time.Second) // settle
		wantStatus(t, read(t, b, answer.Task.ID), shim.Cancelled)
	})
}

// A store that has forgotten a task, and cannot take it again at once, is waited for like any store that is away.
func TestForgottenTaskWaitsForTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var forgotten, full atomic.Bool
		h := &hooked{
			apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if forgotten.Load() {
					return shim.Task{}, shim.ErrNotFound
				}
				return next(ctx)
			},
			get: func(ctx context.Context, id shim.ID, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if forgotten.Load() {
					return shim.Task{}, shim.ErrNotFound
				}
				return next(ctx)
			},
			create: func(ctx context.Context, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if full.Load() {
					return shim.Task{}, shim.ErrUnavailable
				}
				forgotten.Store(false)
				return next(ctx)
			},
		}
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if _, err := after(ctx, time.Second); err != nil {
				return shim.Reply{}, err
			}
			forgotten.Store(true)
			full.Store(true)
			time.AfterFunc(2*time.Second, func() { full.Store(false) })
			if err := s.Checkpoint(json.RawMessage(`{"sent":true}`))(ctx); err != nil {
				return shim.Reply{}, &shim.UpstreamError{Kind: "unreachable", Message: "not sent", Err: err}
			}
			return after(ctx, time.Second)
		}}
		s := w.over("a", h, u, policy(shim.Always))
		task := begin(t, s, call())
		pass(20 * time.Second)
		wantStatus(t, read(t, s, task.ID), shim.Completed)
	})
}

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

// An answer that comes before the runner has heard that its question is stored is used at
// once.
func TestAnswerBeforeTheQuestionIsKnownToBeStored(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(0, "a")
		h := &hooked{}
		s, b := w.over("a", h, u, policy(shim.Always)), w.gateway("b", u, policy(shim.Always))
		h.apply = func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			task, err := next(ctx)
			if len(c.Ask) > 0 {
				if err := b.Update(t.Context(), anyone, "up", task.ID, results("a")); err != nil {
					t.Error(err)
				}
				<-time.After(time.Second) // the event of the answer has been heard by then
			}
			return task, err
		}
		task := begin(t, s, taskCall())
		pass(2 * time.Second)
		wantStatus(t, read(t, b, task.ID), shim.Completed)
		if u.delivered() != 1 {
			t.Errorf("the server got %d sets of answers", u.delivered())
		}
	})
}

// A read that an event asks for is repeated until it succeeds.
func TestFailedReadIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		var away atomic.Bool
		h := &hooked{get: unless(&away)}
		s, b := w.over("a", h, u, policy(shim.Always)), w.gateway("b", u, policy(shim.Always))
		task := begin(t, s, call())
		pass(time.Second)
		away.Store(true)
		cancelTask(t, b, task.ID)
		pass(4 * time.Second)
		away.Store(false)
		pass(8 * time.Second) // the longest pause is 5 s, and half of that by chance
		if u.ended() == nil {
			t.Error("the call of a cancelled task goes on")
		}
	})
}

// One task that cannot be read holds up no other.
func TestUnreadableTaskHoldsUpNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		var frozen atomic.Pointer[shim.ID]
		h := &hooked{get: func(ctx context.Context, id shim.ID, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if f := frozen.Load(); f != nil && *f == id {
				<-ctx.Done()
				return shim.Task{}, ctx.Err()
			}
			return next(ctx)
		}}
		s, b := w.over("a", h, u, policy(shim.Always)), w.gateway("b", u, policy(shim.Always))
		first, second := begin(t, s, call()), begin(t, s, call())
		pass(time.Second)
		frozen.Store(&first.ID)
		for _, id := range []shim.ID{first.ID, second.ID} {
			cancelTask(t, b, id)
		}
		pass(100 * time.Millisecond)
		if !errors.Is(u.ended(), shim.ErrDetached) && u.ended() == nil {
			t.Error("an event waits for a read of another task")
		}
		frozen.Store(nil)
	})
}

// A heartbeat waits for no adoption, an adoption lasts no longer than an expiry, and none
// begins while the heart misses.
func TestHeartBeatsDuringAdoption(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var beats, adoptions atomic.Int64
		h := &hooked{beat: func() { beats.Add(1) }}
		h.adopt = func(ctx context.Context, _ func(context.Context) ([]shim.Task, error)) ([]shim.Task, error) {
			adoptions.Add(1)
			<-ctx.Done()
			return nil, shim.ErrUnavailable
		}
		w.over("a", h, takes(0), policy(shim.Always))
		pass(time.Minute)
		if n := beats.Load(); n < 36 {
			t.Errorf("%d beats in a minute", n)
		}
		if n := adoptions.Load(); n < 8 {
			t.Errorf("%d adoptions in a minute, which each take an expiry at most", n)
		}
		w.store.down.Store(true)
		pass(6 * time.Second)
		n := adoptions.Load()
		pass(20 * time.Second)
		if adoptions.Load() != n {
			t.Error("a replica adopts though its own heart does not beat")
		}
		w.store.down.Store(false)
	})
}

// A cancellation that comes between the adoption of a task and its run is not lost.
func TestCancelDuringAdoption(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		old := takes(time.Hour)
		heir := takes(time.Hour)
		heir.resume = func(ctx context.Context, _ shim.Request, _ json.RawMessage, _ shim.Sink) (shim.Reply, error) {
			return after(ctx, time.Hour)
		}
		h := &hooked{drop: hint}
		h.adopt = func(ctx context.Context, next func(context.Context) ([]shim.Task, error)) ([]shim.Task, error) {
			tasks, err := next(ctx)
			for _, task := range tasks {
				message := "no more"
				if _, err := w.store.Store.Apply(t.Context(), task.ID, nil, shim.Change{Op: "x", To: shim.Cancelled, StatusMessage: &message}); err != nil {
					t.Error(err)
				}
			}
			return tasks, err
		}
		b := w.over("b", h, heir, policy(shim.Always))
		id := w.lostAfter(old, policy(shim.Always), call(), func(shim.Answered) { pass(time.Second) }).Task.ID
		pass(12 * time.Second)
		wantStatus(t, read(t, b, id), shim.Cancelled)
		if heir.ended() == nil {
			t.Error("the call of a cancelled task goes on")
		}
	})
}

// Nor is one that comes between the creation of a task and its run.
func TestCancelDuringCreation(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		h := &hooked{create: func(ctx context.Context, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			task, err := next(ctx)
			if _, err := w.store.Apply(ctx, task.ID, nil, shim.Change{Op: "x", To: shim.Cancelled}); err != nil {
				t.Error(err)
			}
			pass(time.Second) // the event has been heard by then
			return task, err
		}}
		s := w.over("a", h, u, policy(shim.Always))
		pass(time.Second) // until it hears messages
		task := begin(t, s, call())
		pass(time.Second)
		wantStatus(t, read(t, s, task.ID), shim.Cancelled)
		if u.calls.Load() > 0 && u.ended() == nil {
			t.Error("the call of a cancelled task goes on")
		}
	})
}

// A status message goes out in order, however slow the store is, and one whose write fails
// goes out again. What arrives late does not replace what is newer.
func TestNewestMessageIsStored(t *testing.T) {
	type next = func(context.Context) (shim.Task, error)
	for name, fault := range map[string]func(ctx context.Context, next next) (shim.Task, error){
		"slow": func(ctx context.Context, next next) (shim.Task, error) {
			<-time.After(5 * time.Second)
			return next(ctx)
		},
		"fails": func(context.Context, next) (shim.Task, error) { return shim.Task{}, errDown },
		"late": func(ctx context.Context, next next) (shim.Task, error) {
			<-ctx.Done()
			time.AfterFunc(5*time.Second, func() { _, _ = next(context.WithoutCancel(ctx)) })
			return shim.Task{}, errDown
		},
	} {
		t.Run(name, func(t *testing.T) {
			nth := int64(1)
			if name == "fails" {
				nth = 2 // after which there is nothing more to say
			}
			bubble(t, func(t *testing.T, w *world) {
				var faults atomic.Int64
				h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
					if c.StatusMessage != nil && faults.Add(1) == nth {
						return fault(ctx, next)
					}
					return next(ctx)
				}}
				u := says("", said{time.Second, "one"}, said{1500 * time.Millisecond, "two"}, said{time.Hour, "three"})
				s := w.over("a", h, u, policy(shim.Always))
				task := begin(t, s, call())
				pass(time.Minute)
				if got := read(t, s, task.ID).StatusMessage; got != "two" {
					t.Errorf("the message is %q", got)
				}
				got, err := w.store.Store.Get(t.Context(), task.ID, shim.WithRun)
				if err != nil || string(got.Checkpoint) != `{"at":2}` {
					t.Errorf("the checkpoint is %s, %v", got.Checkpoint, err)
				}
			})
		})
	}
}

package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// errStrange is an error of the store that is in no list.
var errStrange = errors.New("no upstream host")

// The store answers in words that nobody knows while calls end. It may have taken each end or not. All tasks
// have their outcome once the store has its own words again, and none of them is run again.
func TestUnknownErrorsOfTheStore(t *testing.T) {
	for name, wrote := range map[string]bool{"written": true, "not written": false} {
		for _, strange := range []error{errStrange, errors.Join(shim.ErrUnavailable, errStrange)} {
			bubbleOf(t, name+", "+strange.Error(), func(t *testing.T, w *world) {
				up := takes(10 * time.Second)
				var plain atomic.Bool
				time.AfterFunc(20*time.Second, func() { plain.Store(true) })
				b := w.gateway("b", up, policy(shim.Always))
				pass(6 * time.Second)
				store := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
					if plain.Load() || !c.To.Final() {
						return next(ctx)
					}
					if wrote {
						_, _ = next(ctx)
					}
					return shim.Task{}, strange
				}}
				a := w.over("a", store, up, policy(shim.Always))
				task, other := begin(t, a, call()), begin(t, b, call())
				pass(12 * time.Second)
				wantStatus(t, read(t, b, other.ID), shim.Completed) // it is none of their business
				pass(time.Minute)
				got := read(t, b, task.ID)
				wantStatus(t, got, shim.Completed)
				if string(got.Outcome.Result) != result || up.calls.Load() != 2 {
					t.Errorf("result %s after %d calls", got.Outcome.Result, up.calls.Load())
				}
			})
		}
	}
}

// One record cannot be written for as long as its task is kept. The log names the task then; until then it is
// told as working, and its slot at the server is free for others.
func TestRecordThatIsNeverWritten(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		var broken atomic.Bool
		store := &hooked{Store: w.store, apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if c.To.Final() && broken.Load() {
				return shim.Task{}, errStrange
			}
			return next(ctx)
		}}
		one := policy(shim.Always)
		one.Concurrency = 1
		up := takes(10 * time.Second)
		s := w.gatewayOf("a", serves(up, one), func(o *engine.Options) {
			o.Store, o.Logger = store, slog.New(slog.NewTextHandler(&log, nil))
		})
		broken.Store(true)
		id := begin(t, s, call()).ID
		pass(30 * time.Minute)
		wantStatus(t, read(t, s, id), shim.Working)
		next := begin(t, s, call())
		pass(20 * time.Second)
		if n := up.calls.Load(); n != 2 {
			t.Errorf("%d calls at the server", n)
		}
		broken.Store(false)
		pass(time.Minute)
		wantStatus(t, read(t, s, id), shim.Completed)
		wantStatus(t, read(t, s, next.ID), shim.Completed)

		broken.Store(true)
		id = begin(t, s, call()).ID
		pass(2 * time.Hour)
		if !strings.Contains(log.String(), "could not be recorded") || !strings.Contains(log.String(), "task_id="+string(id)) {
			t.Errorf("the log says %s", log.String())
		}
	})
}

// A creation that the store has refused is none: the client hears that it may call again, and not that the
// call may still be made.
func TestRefusedCreation(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		full := errors.Join(shim.ErrUnavailable, shim.ErrRefusedWrite, errors.New("redis is full"))
		creates := 0
		store := &hooked{create: func(context.Context, func(context.Context) (shim.Task, error)) (shim.Task, error) {
			creates++
			return shim.Task{}, full
		}}
		up := takes(time.Second)
		s := w.over("a", store, up, policy(shim.Auto))
		c := call()
		c.Demand = true
		if _, err := s.Call(t.Context(), c); !errors.Is(err, shim.ErrUnavailable) || errors.Is(err, shim.ErrUnconfirmed) {
			t.Errorf("the client got %v", err)
		}
		before := creates
		pass(2 * time.Minute)
		if creates != before || up.calls.Load() != 0 {
			t.Errorf("%d creations later, %d calls", creates-before, up.calls.Load())
		}
		store.create = func(context.Context, func(context.Context) (shim.Task, error)) (shim.Task, error) {
			return shim.Task{}, errStrange
		}
		if _, err := s.Call(t.Context(), c); !errors.Is(err, shim.ErrUnconfirmed) {
			t.Errorf("after an unknown error the client got %v", err)
		}
	})
}

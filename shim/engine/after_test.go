package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// told is a call of a client that cannot take a task and is told of one in words
// after 45s.
func told() shim.Call {
	c := call()
	c.Handle, c.After = false, 45*time.Second
	return c
}

// Who leaves before is treated as ever: its call is cancelled, unless it stays.
func TestAfterCallerLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		call shim.Call
		stay bool
		wait time.Duration
	}{"modern": {told(), false, 30 * time.Second}, "legacy": {told(), true, 30 * time.Second}, "before its handle": {call(), false, 2 * time.Second}} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := takes(time.Minute)
			s := w.gateway("a", u, policy(shim.Auto))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			c.call.Stay = c.stay
			done := make(chan error, 1)
			var got shim.Answered
			go func() {
				var err error
				got, err = s.Call(ctx, c.call)
				done <- err
			}()
			pass(c.wait)
			leave()
			err := <-done
			synctest.Wait()
			if c.stay {
				if err != nil || got.Task == nil || u.ended() != nil {
					t.Errorf("got %+v, %v; upstream %v", got, err, u.ended())
				}
				return
			}
			if !errors.Is(err, context.Canceled) || !errors.Is(u.ended(), context.Canceled) || errors.Is(u.ended(), shim.ErrDetached) || w.store.creates.Load() != 0 {
				t.Errorf("%v; upstream %v; %d tasks", err, u.ended(), w.store.creates.Load())
			}
		})
	}
}

// A caller that was asked and comes back is told of a task as well, once its call has
// taken After from then on, be it on another replica.
func TestAfterAQuestion(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		often := policy(shim.Auto)
		often.PollInterval = 0 // it grows
		a, b := w.gateway("a", elicits(time.Minute, "a"), often), w.gateway("b", takes(0), often)
		for _, s := range []*engine.Shim{a, b} {
			c := askable(shim.AskPark)
			c.After = 45 * time.Second
			p := parked(t, a, c, "a")
			start := time.Now()
			got, err := s.Reattach(t.Context(), c, p.ID, results("a"))
			if err != nil || got.Task == nil || time.Since(start) != 45*time.Second {
				t.Fatalf("after %v: %+v, %v", time.Since(start), got, err)
			}
			if got.Task.PollInterval <= 0 {
				t.Error("it is not told how often to ask")
			}
			pass(time.Minute)
			wantStatus(t, read(t, b, got.Task.ID), shim.Completed)
		}
	})
}

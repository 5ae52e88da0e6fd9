package shim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// demanded is a call of a legacy client that wants a task in so many words.
func demanded(ttl time.Duration) shim.Call {
	c := call()
	c.Origin, c.Handle, c.Demand, c.Block, c.Stay, c.TTL = "legacy", false, true, true, true, ttl
	c.Principal = shim.Principal{Session: "s1"}
	return c
}

// A demand is met at once whatever the mode is, except where it is never (L4, L6).
func TestDemandedTask(t *testing.T) {
	for mode, want := range map[shim.Mode]error{
		shim.Never: shim.ErrForbidsTask, shim.Auto: nil, shim.Always: nil, shim.Required: nil,
	} {
		bubbleOf(t, string(mode), func(t *testing.T, w *world) {
			u := takes(time.Hour)
			s := w.gateway("a", u, policy(mode))
			start := time.Now()
			got, err := s.Call(t.Context(), demanded(0))
			if !errors.Is(err, want) || (got.Task == nil) != (want != nil) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if d := time.Since(start); d != 0 {
				t.Errorf("the answer took %v", d)
			}
			synctest.Wait()
			if want != nil && u.calls.Load() != 0 {
				t.Error("a call that was refused was sent")
			}
		})
	}
}

// A ttl is a wish: it is met within the policy's bounds, and never so short that
// a client that polls would miss the end (L10).
func TestWishedTTL(t *testing.T) {
	for wish, want := range map[time.Duration]time.Duration{
		0:                      time.Hour,
		time.Millisecond:       10 * time.Second,
		time.Minute:            time.Minute,
		1000 * 24 * time.Hour:  time.Hour,
		1<<63 - 1:              time.Hour,
		9999 * time.Nanosecond: 10 * time.Second,
	} {
		hours(t, func(t *testing.T, w *world) {
			p := policy(shim.Auto)
			p.PollInterval = 5 * time.Second
			s := w.gateway("a", takes(time.Minute), p)
			task := begin(t, s, demanded(wish))
			if task.TTL != want {
				t.Errorf("a wish of %v gave %v, want %v", wish, task.TTL, want)
			}
			pass(61 * time.Second) // running, it is kept; afterwards for as long again
			done := read(t, s, task.ID)
			wantStatus(t, done, shim.Completed)
			if kept := done.TTL - done.UpdatedAt.Sub(done.CreatedAt); kept != want {
				t.Errorf("a wish of %v keeps the result for %v, want %v", wish, kept, want)
			}
		})
	}
}

// Where a demanded task cannot be made the call fails before anything is sent
// (design.md 0.13).
func TestDemandWithoutStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Second)
		s := w.gateway("a", u, policy(shim.Auto))
		w.store.down.Store(true)
		if _, err := s.Call(t.Context(), demanded(0)); !errors.Is(err, shim.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		w.store.down.Store(false)
		pass(10 * time.Second)
		if n := u.calls.Load(); n != 0 {
			t.Errorf("sent %d times", n)
		}
	})
}

// A client that cancels its call while the task is being made is told of no task,
// so none goes on.
func TestCancelledBeforeTheHandle(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(time.Hour), policy(shim.Auto))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(shim.ErrCancelled)
		c := demanded(0)
		if _, err := s.Call(ctx, c); !errors.Is(err, shim.ErrCancelled) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		tasks, _, err := s.List(t.Context(), c.Principal, "up", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			wantStatus(t, task, shim.Cancelled)
		}
	})
}

// Peek reads what Get reads, but for the outcome.
func TestPeek(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(0), policy(shim.Always))
		task := begin(t, s, call())
		pass(time.Second)
		got, err := s.Peek(t.Context(), anyone, "up", task.ID)
		if err != nil || got.Status != shim.Completed || got.Outcome != nil {
			t.Errorf("got %+v, %v", got, err)
		}
		if _, err := s.Peek(t.Context(), shim.Principal{Subject: "bob"}, "up", task.ID); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("a stranger: %v", err)
		}
	})
}

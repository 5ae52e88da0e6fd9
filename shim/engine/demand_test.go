package engine_test

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
		must(t, err)
		for _, task := range tasks {
			wantStatus(t, task, shim.Cancelled)
		}
	})
}

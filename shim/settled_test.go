package shim_test

import (
	"errors"
	"testing"
	"time"

	"taskgate/shim"
)

// A replica of the store that takes over without having heard of a task's end, or
// of the task, is told again (design.md 0.20).
func TestEndIsWrittenAgainAfterAFailover(t *testing.T) {
	for name, heard := range map[string]bool{"task gone": false, "task still working": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				s := w.gateway("a", takes(10*time.Second), policy(shim.Always))
				task := begin(t, s, call())
				other := openEmbedded(t)
				if heard {
					replicated, err := w.store.Get(t.Context(), task.ID, shim.WithRun)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := other.Create(t.Context(), replicated); err != nil {
						t.Fatal(err)
					}
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
		})
	}
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

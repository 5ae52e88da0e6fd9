package shim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// returning has the caller of a call that ran out of time come back half a minute later,
// at this replica.
func returning(t *testing.T, s *shim.Shim, c shim.Call, p shim.Parked) *calling {
	t.Helper()
	pass(10*time.Minute + 30*time.Second)
	k := &calling{done: make(chan struct{})}
	go func() {
		defer close(k.done)
		k.a, k.err = s.Reattach(t.Context(), c, p.ID, nil)
	}()
	synctest.Wait()
	return k
}

// A parked call whose questions ran out is not given up while its caller waits for it on
// another replica, and with the store away for a while neither.
func TestParkedCallIsAwaitedElsewhere(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(4*time.Minute, "a")
		s, other := w.gateway("r1", u, policy(shim.Never)), w.gateway("r2", u, policy(shim.Never))
		c := askable(shim.AskPark)
		k := returning(t, other, c, parked(t, s, c, "a"))
		pass(20 * time.Second)
		w.store.down.Store(true)
		pass(time.Minute)
		w.store.down.Store(false)
		<-k.done
		wantReply(t, k.a, k.err, `{"answers":[{"action":"cancel"}]}`)
	})
}

// If the replica is lost that the caller waits on, nobody waits any more.
func TestParkedCallWasAwaitedElsewhere(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(time.Hour, "a")
		s := w.gateway("r1", u, policy(shim.Never))
		other := w.still("r2", serves(u, policy(shim.Never)), nil)
		c := askable(shim.AskPark)
		c.Stay = true // so that its end is not taken for the caller's
		k := returning(t, other, c, parked(t, s, c, "a"))
		pass(time.Minute)
		if u.ended() != nil {
			t.Fatalf("given up with a caller: %v", u.ended())
		}
		w.mute(other)
		<-k.done
		if !errors.Is(k.err, shim.ErrDraining) {
			t.Errorf("the caller got %v", k.err)
		}
		pass(4 * time.Minute)
		var failure *shim.UpstreamError
		if cause := u.ended(); !errors.As(cause, &failure) || failure.Kind != "abandoned" {
			t.Errorf("the call ended with %v", cause)
		}
	})
}

// A caller who comes back at the replica that runs the call is known there.
func TestParkedCallIsAwaitedHere(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(4*time.Minute, "a")
		s := w.gateway("r1", u, policy(shim.Never))
		c := askable(shim.AskPark)
		k := returning(t, s, c, parked(t, s, c, "a"))
		writes := w.store.ops.Load()
		pass(3 * time.Minute)
		if n := w.store.ops.Load() - writes; n > 30 {
			t.Errorf("%d operations on the store", n)
		}
		<-k.done
		wantReply(t, k.a, k.err, `{"answers":[{"action":"cancel"}]}`)
		if cause := u.ended(); cause != nil && !errors.Is(cause, context.Canceled) {
			t.Errorf("the call ended with %v", cause)
		}
	})
}

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

// returning has the caller of a call that ran out of time come back half a minute later,
// at this replica.
func returning(t *testing.T, s *engine.Shim, c shim.Call, p shim.Parked) *calling {
	t.Helper()
	pass(10*time.Minute + 30*time.Second)
	k := goes(func() (shim.Answered, error) { return s.Reattach(t.Context(), c, p.ID, nil) })
	synctest.Wait()
	return k
}

// A parked call whose questions ran out goes on, and its caller gets the answer on any replica, on another one with the
// store away for a while too. At the replica that runs the call the caller is known, and the store is asked little.
func TestParkedCallIsAwaited(t *testing.T) {
	for _, at := range []string{"here", "elsewhere"} {
		hoursOf(t, at, func(t *testing.T, w *world) {
			u := elicits(4*time.Minute, "a")
			s := w.gateway("r1", u, policy(shim.Never))
			back := map[string]*engine.Shim{"here": s, "elsewhere": w.gateway("r2", u, policy(shim.Never))}[at]
			c := askable(shim.AskPark)
			k := returning(t, back, c, parked(t, s, c, "a"))
			ops := w.store.ops.Load()
			pass(20 * time.Second)
			w.store.down.Store(at == "elsewhere")
			pass(time.Minute)
			w.store.down.Store(false)
			pass(100 * time.Second)
			if n := w.store.ops.Load() - ops; at == "here" && n > 30 {
				t.Errorf("%d operations on the store", n)
			}
			<-k.done
			wantReply(t, k.a, k.err, `{"answers":[{"action":"cancel"}]}`)
			if cause := u.ended(); cause != nil && !errors.Is(cause, context.Canceled) {
				t.Errorf("the call ended with %v", cause)
			}
		})
	}
}

// A parked call whose client stays away ends by its time limit, and its record stays until then.
func TestParkedCallEndsInTime(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(5*time.Hour, "a")
		p := policy(shim.Never)
		p.Timeout = time.Hour
		s := w.gateway("r1", u, p)
		id := parked(t, s, askable(shim.AskPark), "a").ID
		pass(59 * time.Minute)
		if got, err := w.store.Get(t.Context(), id, shim.Summary); err != nil || got.Status != shim.Working || u.ended() != nil {
			t.Fatalf("after 59 minutes: %v, %v, the call ended with %v", got.Status, err, u.ended())
		}
		pass(2 * time.Minute)
		var failure *shim.UpstreamError
		if cause := u.ended(); !errors.As(cause, &failure) || failure.Kind != shim.KindTimeout {
			t.Errorf("the call ended with %v", cause)
		}
	})
}

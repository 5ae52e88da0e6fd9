package shim_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
)

// A client that asks for its task while the store is away hears of the outage only if that lasts
// for longer than StoreWait, and may ask again then.
func TestPollOutlastsAnOutage(t *testing.T) {
	for _, c := range []struct {
		outage, wait, answer time.Duration // how long each request takes at least, and at most 2 s more
		fails                bool
	}{
		{20 * time.Second, 25 * time.Second, 20 * time.Second, false},
		{time.Minute, 25 * time.Second, 25 * time.Second, true},
		{time.Minute, 0, 0, true},
	} {
		for name, ask := range map[string]func(context.Context, *shim.Shim, shim.ID) error{
			"get": func(ctx context.Context, s *shim.Shim, id shim.ID) error {
				_, err := s.Get(ctx, anyone, "up", id)
				return err
			},
			"update": func(ctx context.Context, s *shim.Shim, id shim.ID) error { return s.Update(ctx, anyone, "up", id, nil) },
			"cancel": func(ctx context.Context, s *shim.Shim, id shim.ID) error {
				_, err := s.Cancel(ctx, anyone, "up", id)
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					var away atomic.Bool
					store := &hooked{Store: w.store}
					store.apply = func(ctx context.Context, _ shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
						if away.Load() {
							return shim.Task{}, shim.ErrUnavailable
						}
						return next(ctx)
					}
					store.get = func(ctx context.Context, id shim.ID, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
						if away.Load() {
							return shim.Task{}, shim.ErrUnavailable
						}
						return next(ctx)
					}
					srv := shim.Server{Upstream: takes(time.Hour), Policy: func(string) shim.Policy { return policy(shim.Always) }}
					s := w.gatewayOf("a", srv, func(o *shim.Options) { o.Store, o.StoreWait = store, c.wait })
					id := begin(t, s, call()).ID
					away.Store(true)
					time.AfterFunc(c.outage, func() { away.Store(false) })
					start := time.Now()
					err := ask(t.Context(), s, id)
					if took := time.Since(start); took < c.answer || took > c.answer+2*time.Second {
						t.Errorf("answered after %v", took)
					}
					if (err != nil) != c.fails || c.fails && !(errors.Is(err, shim.ErrRepeat) && errors.Is(err, shim.ErrUnavailable)) {
						t.Errorf("got %v", err)
					}
				})
			})
		}
	}
}

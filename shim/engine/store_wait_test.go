package engine_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
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
		for name, ask := range map[string]func(context.Context, *engine.Shim, shim.ID) error{
			"get": func(ctx context.Context, s *engine.Shim, id shim.ID) error {
				_, err := s.Get(ctx, anyone, "up", id)
				return err
			},
			"result": func(ctx context.Context, s *engine.Shim, id shim.ID) error {
				ctx, seen := context.WithCancel(ctx)
				defer seen()
				_, err := s.Wait(ctx, anyone, "up", id, func(shim.Task) { seen() })
				if ctx.Err() != nil { // the task goes on, and it would wait for its end
					return nil
				}
				return err
			},
			"update": func(ctx context.Context, s *engine.Shim, id shim.ID) error {
				return s.Update(ctx, anyone, "up", id, nil)
			},
			"cancel": func(ctx context.Context, s *engine.Shim, id shim.ID) error {
				_, err := s.Cancel(ctx, anyone, "up", id)
				return err
			},
		} {
			hoursOf(t, name, func(t *testing.T, w *world) {
				s, away := w.patient(c.wait, takes(time.Hour))
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
		}
	}
}

// patient is a gateway whose clients wait for the store for so long while that is away.
func (w *world) patient(wait time.Duration, u shim.Upstream) (s *engine.Shim, away *atomic.Bool) {
	away = &atomic.Bool{}
	store := &hooked{Store: w.store, get: unless(away)}
	store.apply = func(ctx context.Context, _ shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
		return store.get(ctx, "", next)
	}
	srv := serves(u, policy(shim.Always))
	return w.gatewayOf("a", srv, func(o *engine.Options) { o.Store, o.StoreWait = store, wait }), away
}

// The first attempt, which takes a while where the store is silent, is a part of StoreWait.
func TestPollOfASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gatewayOf("a", serves(takes(time.Hour), policy(shim.Always)), func(o *engine.Options) {
			o.Store, o.StoreWait = &hooked{Store: w.store, get: saysNothing}, 25*time.Second
		})
		id := begin(t, s, call()).ID
		start := time.Now()
		if _, err := s.Get(t.Context(), anyone, "up", id); !errors.Is(err, shim.ErrRepeat) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 25*time.Second {
			t.Errorf("answered after %v", took)
		}
	})
}

// A client that waits for the result of its task gets it although the task ends in an outage, which
// lasts for longer than StoreWait.
func TestResultOutlastsAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s, away := w.patient(25*time.Second, takes(time.Minute))
		id := begin(t, s, call()).ID
		time.AfterFunc(30*time.Second, func() { away.Store(true) })
		time.AfterFunc(2*time.Minute, func() { away.Store(false) })
		start := time.Now()
		got, err := s.Wait(t.Context(), anyone, "up", id, nil)
		if err != nil || got.Status != shim.Completed || got.Outcome == nil || string(got.Outcome.Result) != result {
			t.Fatalf("got %+v, %v", got, err)
		}
		if took := time.Since(start); took < 2*time.Minute || took > 2*time.Minute+10*time.Second {
			t.Errorf("answered after %v", took)
		}
	})
}

// A thousand requests wait for the store at a time: one more hears of the outage at once, and the
// next may wait when they have gone.
func TestWaitingRequestsAreBounded(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		const wait = 5 * time.Second
		s, away := w.patient(wait, takes(time.Hour))
		id := begin(t, s, call()).ID
		away.Store(true)
		get := func() (took time.Duration, err error) {
			start := time.Now()
			_, err = s.Get(t.Context(), anyone, "up", id)
			return time.Since(start), err
		}
		var waiting sync.WaitGroup
		for range 1000 {
			waiting.Go(func() {
				if took, err := get(); took < wait || !errors.Is(err, shim.ErrRepeat) {
					t.Errorf("one of a thousand: %v after %v", err, took)
				}
			})
		}
		pass(wait / 2)
		if took, err := get(); took != 0 || !errors.Is(err, shim.ErrRepeat) {
			t.Errorf("one more: %v after %v", err, took)
		}
		waiting.Wait()
		time.AfterFunc(wait/2, func() { away.Store(false) })
		if took, err := get(); took < wait/2 || err != nil {
			t.Errorf("afterwards: %v after %v", err, took)
		}
	})
}

// A store that has forgotten a task, and is too full to take it again, is not asked for that without a pause.
func TestForgottenStreamInAFullStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var full atomic.Bool
		var tries atomic.Int64
		h := &hooked{
			apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if c.Tail != nil && full.Load() && tries.Add(1) < 1000 {
					return shim.Task{}, shim.ErrNotFound
				}
				return next(ctx)
			},
			create: func(ctx context.Context, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if full.Load() {
					return shim.Task{}, shim.ErrUnavailable
				}
				return next(ctx)
			},
		}
		u := &scripted{call: sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			full.Store(true)
			s.Progress(shim.Progress{Progress: 1, Message: "one"})
			return after(ctx, time.Minute)
		})}
		p := policy(shim.Always)
		p.Partials = shim.NewPartials(true)
		s := w.over("a", h, u, p)
		task := begin(t, s, call())
		pass(30 * time.Second)
		full.Store(false)
		pass(40 * time.Second)
		wantStatus(t, read(t, s, task.ID), shim.Completed)
		if n := tries.Load(); n > 50 || n < 2 {
			t.Errorf("asked %d times in 30 s", n)
		}
	})
}

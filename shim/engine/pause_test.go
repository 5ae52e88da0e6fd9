package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// pausing starts a replica whose operators can pause calls.
func (w *world) pausing(name string, u shim.Upstream, p shim.Policy) *engine.Shim {
	w.t.Helper()
	return w.gatewayOf(name, serves(u, p), func(o *engine.Options) {
		o.Pauses = faultyPauses{w.store.Store.(*redisstore.Store).Overview(), w.store}
	})
}

// faultyPauses fails while the store does.
type faultyPauses struct {
	shim.Pauses
	store *faultyStore
}

func (f faultyPauses) Paused(ctx context.Context) ([]shim.Pause, error) {
	if f.store.down.Load() {
		return nil, errDown
	}
	return f.Pauses.Paused(ctx)
}

// toldPaused wants a call to be refused, and returns the text for its client.
func toldPaused(t *testing.T, s *engine.Shim, c shim.Call) string {
	t.Helper()
	_, err := s.Call(t.Context(), c)
	busy, ok := errors.AsType[*shim.BusyError](err)
	if !ok || busy.Key != shim.KeyPaused || busy.RetryAfter != shim.RetryPaused {
		t.Fatalf("the call is answered with %v", err)
	}
	return err.Error()
}

// What an operator pauses at one replica is refused at each, for callers of each kind; what runs ends as it would, and
// other tools are called.
func TestPause(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(10 * time.Second)
		a, b := w.pausing("a", u, policy(shim.Auto)), w.pausing("b", u, policy(shim.Auto))
		running := begin(t, a, call())
		o := engine.NewOperator(a, nil)
		_, err := o.Pause(t.Context(), shim.Pause{Upstream: "up", Tool: "slow", By: "ann"})
		must(t, err)
		pass(0)
		plain, shown := call(), call()
		plain.Handle, shown.Request.Shown = false, "mine"
		for _, s := range []*engine.Shim{a, b} {
			if text := toldPaused(t, s, plain); text != `the tool "slow" is paused by its operator; try again later` {
				t.Error(text)
			}
			if text := toldPaused(t, s, shown); text != `the tool "mine" is paused by its operator; try again later` {
				t.Error(text)
			}
		}
		other := call()
		other.Request.Name = "other"
		begin(t, b, other)
		_, err = engine.NewOperator(b, nil).Pause(t.Context(), shim.Pause{Upstream: "up", By: "bob"})
		must(t, err)
		pass(0)
		if text := toldPaused(t, a, other); text != "this server is paused by its operator; try again later" {
			t.Error(text)
		}
		prompt := call()
		prompt.Request.Method, prompt.Handle = "prompts/get", false
		if _, err := b.Call(t.Context(), prompt); err != nil {
			t.Errorf("a prompt: %v", err)
		}
		pass(20 * time.Second)
		wantStatus(t, read(t, b, running.ID), shim.Completed)
		for _, tool := range []string{"", "slow"} {
			p, err := o.Resume(t.Context(), shim.Pause{Upstream: "up", Tool: tool})
			if must(t, err); p.By != map[string]string{"": "bob", "slow": "ann"}[tool] {
				t.Errorf("resumed %+v", p)
			}
		}
		pass(0)
		begin(t, a, call())
		begin(t, b, call())
		for want, err := range map[string]error{
			"it is not paused":            func() error { _, err := o.Resume(t.Context(), shim.Pause{Upstream: "up"}); return err }(),
			`there is no upstream "none"`: func() error { _, err := o.Pause(t.Context(), shim.Pause{Upstream: "none"}); return err }(),
		} {
			if refused, ok := errors.AsType[*shim.ChangeError](err); !ok || refused.Reason != want {
				t.Errorf("%v, not %s", err, want)
			}
		}
		pass(time.Minute)
	})
}

// A replica that starts refuses its first call if that was paused before. One that cannot read what is paused takes
// calls, and hears of it from a beat.
func TestPauseOutlivesAStart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(10 * time.Second)
		a := w.pausing("a", u, policy(shim.Auto))
		_, err := engine.NewOperator(a, nil).Pause(t.Context(), shim.Pause{Upstream: "up"})
		must(t, err)
		toldPaused(t, w.pausing("b", u, policy(shim.Auto)), call())
		w.store.down.Store(true)
		c := w.pausing("c", u, policy(shim.Auto))
		plain := call()
		plain.Handle = false
		if _, err := c.Call(t.Context(), plain); err != nil {
			t.Errorf("while the store is away: %v", err)
		}
		w.store.down.Store(false)
		pass(5 * time.Second)
		toldPaused(t, c, plain)
	})
}

// A pause refuses new work. A repeat that picks up a call which runs already gets its answer, and the next one is refused.
func TestPauseLetsARepeatPickUp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(100 * time.Second)
		s := w.gatewayOf("a", serves(u, repeats(shim.RepeatAuto)), func(o *engine.Options) {
			o.Repeats = redisstore.NewRepeats(w.store.Store.(*redisstore.Store))
			o.Pauses = w.store.Store.(*redisstore.Store).Overview()
		})
		c := sameCall("client", "call")
		gaveUp(t, s, c)
		_, err := engine.NewOperator(s, nil).Pause(t.Context(), shim.Pause{Upstream: "up"})
		must(t, err)
		wantAnswer(t, s, c, 40*time.Second, time.Minute)
		wantCalls(t, u, 1)
		toldPaused(t, s, c)
		wantCalls(t, u, 1)
	})
}

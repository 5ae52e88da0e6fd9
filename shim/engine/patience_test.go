package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/job"
)

// needsStore is an upstream that cannot send without something of the store.
func needsStore(away *atomic.Bool) *scripted {
	sends := takes(time.Second)
	return &scripted{call: func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
		if away.Load() {
			return shim.Reply{}, &shim.UpstreamError{Kind: "unreachable", Message: "cannot be looked up", Err: errDown, Unsent: true}
		}
		return sends.call(ctx, r, s)
	}}
}

// A task whose call cannot be sent for want of the store waits until it is back, for
// as long as it may run; who blocks waits as for any answer of the store.
func TestCallWaitsForTheStore(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		var away atomic.Bool
		away.Store(true)
		p := policy(shim.Always)
		p.Timeout = 10 * time.Minute
		u := needsStore(&away)
		s := w.gateway("a", u, p)
		returns, never := begin(t, s, call()), begin(t, s, call())
		pass(5 * time.Minute)
		wantStatus(t, read(t, s, returns.ID), shim.Working)
		if n := u.calls.Load(); n < 100 || n > 400 {
			t.Errorf("%d attempts in 5 minutes", n)
		}
		cancelTask(t, s, never.ID)
		away.Store(false)
		pass(10 * time.Second)
		wantStatus(t, read(t, s, returns.ID), shim.Completed)
		wantStatus(t, read(t, s, never.ID), shim.Cancelled)

		away.Store(true)
		late := begin(t, s, call())
		pass(10*time.Minute + time.Second)
		wantStatus(t, read(t, s, late.ID), shim.Failed)

		blocks := call()
		blocks.Handle = false
		for _, back := range []time.Duration{time.Second, time.Hour} {
			away.Store(true)
			time.AfterFunc(back, func() { away.Store(false) })
			start := time.Now()
			_, err := s.Call(t.Context(), blocks)
			if took := time.Since(start); took > 5*time.Second || (err == nil) != (back == time.Second) {
				t.Errorf("back after %v: %v after %v", back, err, took)
			}
			if err != nil && !errors.Is(err, shim.ErrUnavailable) {
				t.Error(err)
			}
		}
	})
}

// Where the record says that the call was not sent, that it is sent must not be lost, nor the id of a server's job;
// no other checkpoint costs more than it has to.
func TestSentIsDurable(t *testing.T) {
	for name, c := range map[string]struct {
		mode shim.Mode
		job  *job.Rules
		safe []string
	}{
		"required":      {mode: shim.Required, safe: []string{`"sent"`}},
		"always":        {mode: shim.Always},
		"always, a job": {mode: shim.Always, job: &job.Rules{}, safe: []string{`"sent"`, `"further"`}},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			var safe []string // the checkpoints that are to be kept as safe as an end
			h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if c.Durable {
					safe = append(safe, string(c.Checkpoint))
				}
				return next(ctx)
			}}
			p := policy(c.mode)
			p.Job = c.job
			s := w.over("a", h, &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
				for _, mark := range []string{`"sent"`, `"further"`} {
					if err := s.Checkpoint(json.RawMessage(mark))(ctx); err != nil {
						return shim.Reply{}, err
					}
				}
				return after(ctx, time.Second)
			}}, p)
			task := begin(t, s, call())
			pass(2 * time.Second)
			wantStatus(t, read(t, s, task.ID), shim.Completed)
			if !slices.Equal(safe, c.safe) {
				t.Errorf("safe: %q, want %q", safe, c.safe)
			}
		})
	}
}

package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskgate/internal/budget"
	"taskgate/shim"
)

// waitsFor is an upstream whose requests wait until the owner has come, and say so.
func waitsFor(came <-chan struct{}, resumed *int) *scripted {
	return &scripted{resume: func(ctx context.Context, _ shim.Request, _ json.RawMessage, _ shim.Sink) (shim.Reply, error) {
		over := shim.SayWaiting(ctx)
		defer over()
		select {
		case <-came:
		case <-ctx.Done():
			return shim.Reply{}, context.Cause(ctx)
		}
		*resumed++
		return shim.Reply{Result: json.RawMessage(result)}, nil
	}}
}

// lose has a task of ann run at a replica that is lost.
func (w *world) lose(srv shim.Server) shim.Task {
	w.t.Helper()
	s := w.still("a", srv, nil)
	c := call()
	c.Principal = ann
	task := begin(w.t, s, c)
	pass(time.Second)
	w.mute(s)
	return task
}

var ann = shim.Principal{Subject: "ann"}

// TestAdoptedTasksWaitForTheirOwner: nothing is asked of the server on behalf of an owner who has
// not been seen; the task says so, goes on when the owner is there, and can be cancelled before.
func TestAdoptedTasksWaitForTheirOwner(t *testing.T) {
	for name, c := range map[string]struct {
		come   bool
		status shim.Status
	}{"who comes": {true, shim.Completed}, "who cancels elsewhere": {false, shim.Cancelled}} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			first := takes(time.Hour)
			task := w.lose(serves(first, policy(shim.Always)))
			resumed, came := 0, make(chan struct{})
			b := w.gatewayFor("b", serves(waitsFor(came, &resumed), policy(shim.Always)))
			pass(20 * time.Second)
			got, err := b.Get(t.Context(), ann, "up", task.ID)
			must(t, err)
			wantStatus(t, got, shim.Working)
			if !strings.HasPrefix(got.StatusMessage, "waits for its owner") || resumed != 0 {
				t.Errorf("it says %q, and was resumed %d times", got.StatusMessage, resumed)
			}
			if c.come {
				close(came)
			} else if _, err := b.Cancel(t.Context(), ann, "up", task.ID); err != nil {
				t.Fatal(err)
			}
			pass(5 * time.Second)
			if got, err = b.Get(t.Context(), ann, "up", task.ID); err != nil {
				t.Fatal(err)
			}
			wantStatus(t, got, c.status)
			if strings.Contains(got.StatusMessage, "waits") || c.come != (resumed == 1) {
				t.Errorf("it says %q, and was resumed %d times", got.StatusMessage, resumed)
			}
		})
	}
}

// TestResultsThatAreReadTakeRoom: a result that is read from the store counts as bytes in flight of the
// request that reads it, and one for which there is no room is not read.
func TestResultsThatAreReadTakeRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const size, wait = 1 << 20, 10 * time.Second
		large := json.RawMessage(`{"content":[],"filler":"` + strings.Repeat("x", size) + `"}`)
		s := w.gateway("a", ends(shim.Reply{Result: large}, nil), policy(shim.Always))
		c := call()
		c.Principal = ann
		task := begin(t, s, c)
		pass(2 * time.Second)
		bytes := budget.New(4*size, size, wait)
		var holds []*budget.Hold
		for n := range 10 {
			hold := bytes.Hold()
			holds = append(holds, hold)
			got, err := s.Get(budget.With(t.Context(), hold), ann, "up", task.ID)
			var busy *shim.BusyError
			switch {
			case n < 3 && (err != nil || len(got.Outcome.Result) != len(large) || bytes.Held() != int64((n+1)*len(large))):
				t.Errorf("reader %d: %v, %d bytes held", n, err, bytes.Held())
			case n >= 3 && !errors.As(err, &busy):
				t.Errorf("reader %d: %v", n, err)
			}
		}
		for _, hold := range holds {
			hold.Release()
		}
		must(t, errorOf(s.Get(budget.With(t.Context(), bytes.Hold()), ann, "up", task.ID)))
	})
}

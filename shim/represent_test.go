package shim_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
)

// owners are those on whose behalf a server can be asked something.
type owners struct {
	came chan struct{} // closed when ann shows up
}

// represent waits for ann.
func (o *owners) represent(ctx context.Context, _ string, waits func()) error {
	waits()
	select {
	case <-o.came:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lose has a task of ann run at a replica that is lost.
func (w *world) lose(srv shim.Server) shim.Task {
	w.t.Helper()
	s, err := shim.New(shim.Options{Replica: "a", Store: w.store, Heartbeat: 5 * time.Second, Servers: map[string]shim.Server{"up": srv}})
	if err != nil {
		w.t.Fatal(err)
	}
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
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				first := takes(time.Hour)
				task := w.lose(shim.Server{Upstream: first, Policy: func(string) shim.Policy { return policy(shim.Always) }})
				resumed := 0
				second := &scripted{resume: func(context.Context, shim.Request, json.RawMessage, shim.Sink) (shim.Reply, error) {
					resumed++
					return shim.Reply{Result: json.RawMessage(result)}, nil
				}}
				o := &owners{came: make(chan struct{})}
				b := w.gatewayFor("b", shim.Server{Upstream: second, Represent: o.represent, Policy: func(string) shim.Policy { return policy(shim.Always) }})
				pass(20 * time.Second)
				got, err := b.Get(t.Context(), ann, "up", task.ID)
				if err != nil {
					t.Fatal(err)
				}
				wantStatus(t, got, shim.Working)
				if !strings.HasPrefix(got.StatusMessage, "waits for its owner") || resumed != 0 {
					t.Errorf("it says %q, and was resumed %d times", got.StatusMessage, resumed)
				}
				if c.come {
					close(o.came)
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
		})
	}
}

// TestPrincipalsWithoutTasks: a call of one who gets no tasks blocks, whatever its client and the
// operator want.
func TestPrincipalsWithoutTasks(t *testing.T) {
	for _, mode := range []shim.Mode{shim.Never, shim.Auto, shim.Always, shim.Required} {
		for name, change := range map[string]func(*shim.Call){
			"takes tasks": func(*shim.Call) {},
			"demands one": func(c *shim.Call) { c.Handle, c.Demand = false, true },
			"is told":     func(c *shim.Call) { c.Handle, c.After = false, time.Second },
		} {
			bubble(t, func(t *testing.T, w *world) {
				s := w.gateway("a", takes(time.Minute), policy(mode))
				c := call()
				change(&c)
				c.Principal = shim.Principal{Subject: "x", NoTasks: true}
				answered, err := s.Call(t.Context(), c)
				if err != nil || answered.Task != nil || string(answered.Reply.Result) != result || w.store.creates.Load() != 0 {
					t.Errorf("%s, %s: %+v, %v", mode, name, answered, err)
				}
			})
		}
	}
}

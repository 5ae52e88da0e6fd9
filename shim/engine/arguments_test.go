package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// shown are the arguments of a task that an operator of the replica is shown.
func (w *world) shown(s *engine.Shim, id shim.ID) string {
	w.t.Helper()
	o := engine.NewOperator(s, nil)
	got, err := o.Read(w.t.Context(), id, shim.WithAll)
	must(w.t, err)
	return string(o.Arguments(got))
}

// showing is a policy that keeps arguments for operators.
func showing(mode shim.Mode) shim.Policy {
	p := policy(mode)
	p.ShowArguments = true
	return p
}

// The arguments of a task are kept from its sending to its end, and longer only if its outcome is unknown.
func TestArgumentsAreShownWhileItRuns(t *testing.T) {
	arguments := string(call().Request.Params)
	limited := showing(shim.Auto)
	limited.Timeout = 20 * time.Second
	lost := &shim.UpstreamError{Kind: shim.KindClosed, Message: "the stream ended"}
	for name, c := range map[string]struct {
		p       shim.Policy
		fails   error
		cancels bool
		after   string
	}{
		"a result":           {p: showing(shim.Auto)},
		"a task at once":     {p: showing(shim.Always)},
		"the time limit":     {p: limited},
		"an unknown outcome": {p: showing(shim.Auto), fails: lost, after: arguments},
		"a cancellation":     {p: showing(shim.Auto), cancels: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				s := w.gateway("a", &scripted{call: sending(func(ctx context.Context, _ shim.Request, _ shim.Sink) (shim.Reply, error) {
					reply, err := after(ctx, 40*time.Second)
					return reply, cmp.Or(err, c.fails)
				})}, c.p)
				task := begin(t, s, call())
				pass(time.Second)
				if got := w.shown(s, task.ID); got != arguments {
					t.Errorf("while it runs: %s", got)
				}
				if c.cancels {
					_, err := s.Cancel(t.Context(), anyone, "up", task.ID)
					must(t, err)
				}
				pass(time.Minute)
				if got := w.shown(s, task.ID); got != c.after {
					t.Errorf("after its end: %q", got)
				}
			})
		})
	}
}

// A replica that takes over a task keeps its arguments, also if it finds that the outcome is unknown.
func TestArgumentsOutlastTheirReplica(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.still("a", serves(takes(time.Hour), showing(shim.Always)), nil)
		task := begin(t, a, call())
		defer func() { must(t, a.Halt(t.Context())) }()
		b := w.gateway("b", &scripted{}, showing(shim.Always))
		pass(time.Minute)
		got := read(t, b, task.ID)
		wantStatus(t, got, shim.Failed)
		if shown := w.shown(b, task.ID); !got.Unknown || shown != string(call().Request.Params) {
			t.Errorf("unknown %v, %q", got.Unknown, shown)
		}
	})
}

// Without the policy the store has none.
func TestArgumentsAreNotKept(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", saysLarge(time.Minute), policy(shim.Always))
		task := begin(t, s, call())
		pass(time.Second)
		if got, err := w.store.Get(t.Context(), task.ID, shim.WithAll); err != nil || got.Arguments != nil || strings.Contains(string(got.Call), "9007199254740993") {
			t.Errorf("%v %s %s", err, got.Arguments, got.Call)
		}
	})
}

// Arguments count towards the bytes that are kept for their owner. Where those have no room, the task goes on without.
func TestArgumentsHaveNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.keeping(saysLarge(time.Minute), showing(shim.Always), 10*large, 2*large)
		c := ownedBy("mallory")
		c.Request.Params = json.RawMessage(`{"name":"slow","arguments":{"text":"` + strings.Repeat("x", large) + `"}}`)
		first, second := begin(t, s, c), begin(t, s, c)
		pass(time.Second)
		if got := w.shown(s, first.ID); got != string(c.Request.Params) {
			t.Errorf("%d bytes are shown of the first", len(got))
		}
		if got := w.shown(s, second.ID); got != "" {
			t.Errorf("%d bytes are shown of the second", len(got))
		}
		pass(time.Minute)
		wantStatus(t, readAs(t, s, "mallory", first.ID), shim.Completed)
	})
}

package shim_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
)

// What the tasks of one caller take in the store is bounded. At the bound a call is refused
// before it is sent, or goes on without a task; a task that runs has its result kept.
func TestStoredBytesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		large := json.RawMessage(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 60_000) + `"}]}`)
		u := &scripted{call: func(ctx context.Context, _ shim.Request, _ shim.Sink) (shim.Reply, error) {
			reply, err := after(ctx, 10*time.Second)
			reply.Result = large
			return reply, err
		}}
		mode := shim.Required
		srv := limited(u, mode, func(srv *shim.Server) {
			srv.Concurrency, srv.MaxStoredBytesPerOwner = 0, 100_000
			srv.Policy = func(string) shim.Policy { return policy(mode) }
		})
		s, other := w.gatewayFor("a", srv), w.gatewayFor("b", srv)
		ann, bob := call(), call()
		ann.Principal, bob.Principal = shim.Principal{Subject: "ann"}, shim.Principal{Subject: "bob"}
		first, second, third := begin(t, s, ann), begin(t, other, ann), begin(t, s, ann)
		pass(time.Minute)
		for _, task := range []shim.Task{first, second, third} {
			got, err := s.Get(t.Context(), ann.Principal, "up", task.ID)
			if err != nil || got.Outcome == nil || len(got.Outcome.Result) != len(large) {
				t.Errorf("a task that ran at the bound: %v", err)
			}
		}
		for _, gate := range []*shim.Shim{s, other} {
			var busy *shim.BusyError
			if _, err := gate.Call(t.Context(), ann); !errors.As(err, &busy) || busy.Key != "max_stored_bytes_per_owner" {
				t.Errorf("a task beyond the bound: %v", err)
			}
		}
		if n := u.calls.Load(); n != 3 {
			t.Errorf("%d calls were sent, want those of three tasks", n)
		}
		for _, mode = range []shim.Mode{shim.Auto, shim.Always} {
			start := time.Now()
			got, err := s.Call(t.Context(), ann)
			if err != nil || got.Task != nil || len(got.Reply.Result) != len(large) || time.Since(start) != 10*time.Second {
				t.Errorf("%s: after %v %+v, %v; want the answer of the server", mode, time.Since(start), got.Task, err)
			}
		}
		begin(t, s, bob)
		pass(2 * time.Hour) // until they have expired
		begin(t, s, ann)
		pass(time.Minute)
	})
}

package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"taskgate/shim"
)

func limited(u shim.Upstream, mode shim.Mode, change func(*shim.Server)) shim.Server {
	srv := shim.Server{Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return policy(mode) }, Concurrency: 1, Queue: 1, QueueWait: 5 * time.Second}
	if change != nil {
		change(&srv)
	}
	return srv
}

// Over the limit tasks wait in the queue and say so; when it is full, callers are
// refused before anything is sent or stored.
func TestTasksQueue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(10 * time.Second)
		s := w.gatewayFor("a", limited(u, shim.Always, nil))
		first, second := begin(t, s, call()), begin(t, s, call())
		if second.StatusMessage != "queued" {
			t.Errorf("message %q, want queued", second.StatusMessage)
		}
		var busy *shim.BusyError
		if _, err := s.Call(t.Context(), call()); !errors.As(err, &busy) || busy.RetryAfter <= 0 {
			t.Errorf("with a full queue: %v", err)
		}
		pass(5 * time.Second)
		if u.calls.Load() != 1 {
			t.Errorf("%d calls in flight, want 1", u.calls.Load())
		}
		pass(6 * time.Second)
		wantStatus(t, read(t, s, first.ID), shim.Completed)
		if got := read(t, s, second.ID); got.StatusMessage == "queued" {
			t.Error("still queued while it runs")
		}
		pass(10 * time.Second)
		wantStatus(t, read(t, s, second.ID), shim.Completed)
	})
}

// A call whose server waits for answers has nothing in flight, and holds no place; also where
// another replica has taken it over. It waits for a place before it takes the answers.
func TestWaitingRoundHoldsNoPlace(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubbleOf(t, fmt.Sprintf("lost=%t", lost), func(t *testing.T, w *world) {
			u := asksInRounds(time.Second, "a")
			s := w.gatewayFor("b", limited(u, shim.Always, nil))
			c := taskCall()
			pass(6 * time.Second)
			var asked shim.ID
			if lost {
				asked = w.lost(u, policy(shim.Always), c, 2*time.Second).Task.ID
				pass(20 * time.Second)
			} else {
				asked = begin(t, s, c).ID
				pass(2 * time.Second)
			}
			wantStatus(t, read(t, s, asked), shim.InputRequired)
			other := begin(t, s, call())
			pass(2 * time.Second)
			wantStatus(t, read(t, s, other.ID), shim.Completed)
			begin(t, s, call())
			updateTask(t, s, asked, results("q1"))
			pass(500 * time.Millisecond)
			if n := u.calls.Load(); n != 3 {
				t.Errorf("%d calls, want 3: there is no place yet", n)
			}
			pass(2 * time.Second)
			wantStatus(t, read(t, s, asked), shim.Completed)
			if n := u.calls.Load(); n != 4 {
				t.Errorf("%d calls, want 4", n)
			}
		})
	}
}

// A queued task that is cancelled never reaches the upstream, and makes room.
func TestCancelWhileQueued(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(10 * time.Second)
		s := w.gatewayFor("a", limited(u, shim.Always, nil))
		begin(t, s, call())
		queued := begin(t, s, call())
		cancelTask(t, s, queued.ID)
		pass(0)
		begin(t, s, call())
		pass(time.Minute)
		if u.calls.Load() != 2 {
			t.Errorf("%d calls, want 2", u.calls.Load())
		}
	})
}

// A caller that cannot take a task waits a bounded time.
func TestBlockingCallsWaitForASlot(t *testing.T) {
	for name, c := range map[string]struct {
		first time.Duration
		err   bool
	}{"in time": {4 * time.Second, false}, "too long": {10 * time.Second, true}} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := takes(c.first)
			s := w.gatewayFor("a", limited(u, shim.Always, nil))
			begin(t, s, call())
			blocking := call()
			blocking.Handle = false
			_, err := s.Call(t.Context(), blocking)
			var busy *shim.BusyError
			if errors.As(err, &busy) != c.err {
				t.Errorf("got %v", err)
			}
			pass(time.Minute)
		})
	}
}

// oneSlowCall allows one call of the tool "slow" at a time.
func oneSlowCall(tool string, _ shim.Hints) shim.Policy {
	p := policy(shim.Always)
	if tool == "slow" {
		p.Concurrency = 1
	}
	return p
}

func TestNumberOfTasksIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(10 * time.Second)
		s := w.gatewayFor("a", limited(u, shim.Required, func(srv *shim.Server) {
			srv.Concurrency, srv.MaxTasks, srv.MaxTasksPerOwner = 0, 3, 2
		}))
		ann, bob := call(), call()
		ann.Principal, bob.Principal = shim.Principal{Subject: "ann"}, shim.Principal{Subject: "bob"}
		begin(t, s, ann)
		begin(t, s, ann)
		var busy *shim.BusyError
		if _, err := s.Call(t.Context(), ann); !errors.As(err, &busy) {
			t.Errorf("a third task of one owner: %v", err)
		}
		begin(t, s, bob)
		if _, err := s.Call(t.Context(), bob); !errors.As(err, &busy) {
			t.Errorf("a fourth task on the server: %v", err)
		}
		if n := u.calls.Load(); n > 3 {
			t.Errorf("%d calls were sent", n)
		}
		pass(time.Minute)
		begin(t, s, ann) // ended tasks no longer count
		pass(time.Minute)
	})
}

// Calls that wait for their tool do not keep the server's places from others.
func TestQueueOfAToolLeavesTheServerFree(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(10 * time.Second)
		s := w.gatewayFor("a", shim.Server{Upstream: u, Concurrency: 2, Queue: 10, QueueWait: time.Second, Policy: oneSlowCall})
		for range 4 {
			begin(t, s, call())
		}
		other := call()
		other.Request.Name, other.Handle = "other", false
		start := time.Now()
		if _, err := s.Call(t.Context(), other); err != nil || time.Since(start) != 10*time.Second {
			t.Errorf("after %v: %v, want its answer at once", time.Since(start), err)
		}
		pass(time.Minute)
		if u.calls.Load() != 5 {
			t.Errorf("%d calls", u.calls.Load())
		}
	})
}

// Tasks that are taken over wait for their turn like any other, but none is
// refused: they were acknowledged.
func TestAdoptedTasksKeepToTheLimits(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		retry := policy(shim.Always)
		retry.Retry = true
		u := takes(10 * time.Second)
		b := w.gatewayFor("b", shim.Server{Upstream: u, Concurrency: 2, Queue: 1, Policy: func(string, shim.Hints) shim.Policy { return retry }})
		pass(6 * time.Second)
		tasks := w.diesWith("a", takes(time.Hour), retry, 6)
		pass(9 * time.Second)
		if n := u.calls.Load(); n != 2 {
			t.Errorf("%d calls in flight, want 2", n)
		}
		pass(time.Minute)
		for _, task := range tasks {
			wantStatus(t, read(t, b, task.ID), shim.Completed)
		}
		if n := u.calls.Load(); n != 6 {
			t.Errorf("%d calls for 6 tasks", n)
		}
	})
}

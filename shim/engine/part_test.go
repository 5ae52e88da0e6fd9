package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

const shutDown = "the gateway was shut down while this call ran; the upstream may have finished the work"

// leaving is a gateway that a test closes itself. Its loops run until the test ends.
func (w *world) leaving(srv shim.Server) *engine.Shim {
	w.t.Helper()
	a := w.still("a", srv, nil)
	w.stops = append(w.stops, run(a))
	return a
}

// closes closes a gateway as a process does that has drained for long enough.
func (w *world) closes(a *engine.Shim) {
	w.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := a.Close(ctx); err != nil {
		w.t.Errorf("close: %v", err)
	}
}

func resumes(context.Context, shim.Request, json.RawMessage, shim.Sink) (shim.Reply, error) {
	return shim.Reply{Result: json.RawMessage(result)}, nil
}

// What becomes of a task whose replica stops: what another can go on with is left to
// it and goes on at once, the rest fails before the replica is gone.
func TestTasksOfAReplicaThatStops(t *testing.T) {
	retry := policy(shim.Always)
	retry.Retry = true
	unsent := func() *scripted {
		return &scripted{call: func(ctx context.Context, _ shim.Request, _ shim.Sink) (shim.Reply, error) {
			return after(ctx, time.Hour) // waits before it has said that it sends
		}}
	}
	resumable := takes(time.Hour)
	resumable.resume = resumes
	for name, c := range map[string]struct {
		first   *scripted
		policy  shim.Policy
		second  *scripted
		message string // of the failure, "" for none
		calls   int64  // by the second replica
	}{
		"not sent":            {unsent(), policy(shim.Always), takes(50 * time.Millisecond), "", 1},
		"not sent, insisted":  {unsent(), policy(shim.Required), takes(50 * time.Millisecond), "", 1},
		"resumable":           {resumable, policy(shim.Always), &scripted{resume: resumes}, "", 0},
		"may be run again":    {takes(time.Hour), retry, takes(50 * time.Millisecond), "", 1},
		"cannot be gone on":   {takes(time.Hour), policy(shim.Always), takes(50 * time.Millisecond), shutDown, 0},
		"became one by grace": {takes(time.Hour), policy(shim.Auto), takes(50 * time.Millisecond), shutDown, 0},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			b := w.gateway("b", c.second, c.policy)
			a := w.leaving(serves(c.first, c.policy))
			pass(7 * time.Second) // b beats without a miss
			task := begin(t, a, call())
			pass(time.Second)
			w.closes(a)
			if c.message == "" {
				if err := c.first.ended(); !errors.Is(err, shim.ErrDetached) {
					t.Errorf("the call ended with %v, want ErrDetached", err)
				}
				pass(100 * time.Millisecond) // far less than the pause between two beats
				wantStatus(t, read(t, b, task.ID), shim.Completed)
			} else {
				got := read(t, b, task.ID)
				wantStatus(t, got, shim.Failed)
				if want := `{"code":-32603,"message":"` + c.message + `"}`; got.StatusMessage != c.message || string(got.Outcome.Error) != want {
					t.Errorf("failed with %q, %s", got.StatusMessage, got.Outcome.Error)
				}
				if err := c.first.ended(); err == nil || errors.Is(err, shim.ErrDetached) {
					t.Errorf("the call ended with %v, want it cancelled", err)
				}
			}
			pass(10 * time.Second)
			if n := c.second.calls.Load(); c.first.calls.Load() != 1 || n != c.calls {
				t.Errorf("called %d times, and %d times by the other replica", c.first.calls.Load(), n)
			}
		})
	}
}

// A call that waits for its turn at a replica that stops, or is lost, is sent by another one, whether it was a task
// before it waited or became one meanwhile.
func TestQueuedCallOfAReplicaThatStops(t *testing.T) {
	for name, c := range map[string]struct {
		mode shim.Mode
		lost bool
	}{"stops": {shim.Always, false}, "is lost": {shim.Always, true}, "is lost, made meanwhile": {shim.Auto, true}} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			first, second := takes(time.Hour), takes(50*time.Millisecond)
			b := w.gateway("b", second, policy(c.mode))
			a := w.still("a", limited(first, c.mode, func(srv *shim.Server) { srv.QueueWait = time.Minute }), nil)
			pass(7 * time.Second)
			sent, queued := begin(t, a, call()), begin(t, a, call())
			pass(time.Second)
			if c.lost {
				w.mute(a)
				pass(10 * time.Second)
			} else {
				w.stops = append(w.stops, run(a))
				w.closes(a)
			}
			pass(100 * time.Millisecond)
			wantStatus(t, read(t, b, sent.ID), shim.Failed)
			wantStatus(t, read(t, b, queued.ID), shim.Completed)
			if first.calls.Load() != 1 || second.calls.Load() != 1 {
				t.Errorf("called %d times, and %d times by the other replica", first.calls.Load(), second.calls.Load())
			}
		})
	}
}

// Who takes over resumes from the newest that was known, however little time there
// was to store it, and a replica that stops in turn hands over what it had itself.
func TestNewestCheckpointIsHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		at := make(chan string, 2)
		goesOn := func(marks ...string) *scripted {
			say := func(ctx context.Context, s shim.Sink) (shim.Reply, error) {
				for i, mark := range marks {
					s.Progress(shim.Progress{Progress: float64(i), Checkpoint: json.RawMessage(mark)})
				}
				reply, err := after(ctx, time.Hour)
				if err != nil { // what an upstream client says when it is let go of
					_ = s.Checkpoint(json.RawMessage(`"last ` + marks[0][1:]))(ctx)
				}
				return reply, err
			}
			return &scripted{
				call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
					if err := s.Checkpoint(json.RawMessage(`"sent"`))(ctx); err != nil {
						return shim.Reply{}, err
					}
					return say(ctx, s)
				},
				resume: func(ctx context.Context, _ shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
					at <- string(cp)
					return say(ctx, s)
				},
			}
		}
		a := w.leaving(serves(goesOn(`"a1"`, `"a2"`), policy(shim.Always)))
		begin(t, a, call())
		b := w.gateway("b", goesOn(`"b1"`), policy(shim.Always))
		pass(7 * time.Second)
		w.closes(a)
		if got := <-at; got != `"last a1"` {
			t.Errorf("resumed at %s", got)
		}
		w.gateway("c", goesOn(`"c1"`), policy(shim.Always))
		pass(7 * time.Second)
		w.closes(b)
		if got := <-at; got != `"last b1"` {
			t.Errorf("resumed at %s", got)
		}
	})
}

// Without another replica, what can be gone on with waits for the next one to start.
// The one that has stopped does not come back to life in the store meanwhile, though
// its loops still run.
func TestNextReplicaGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first := takes(time.Hour)
		first.resume = resumes
		a := w.leaving(serves(first, policy(shim.Always)))
		task := begin(t, a, call())
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		if err := a.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drain: %v", err)
		}
		if _, err := a.Call(t.Context(), call()); !errors.Is(err, shim.ErrDraining) {
			t.Errorf("a call while draining: %v", err)
		}
		w.closes(a)
		w.closes(a) // once more changes nothing
		pass(2 * time.Minute)
		b := w.gateway("b", &scripted{resume: resumes}, policy(shim.Always))
		pass(7 * time.Second)
		wantStatus(t, read(t, b, task.ID), shim.Completed)
	})
}

// Who waits at the replica that stops hears of the end of a task that ends with it,
// and is sent elsewhere for one that goes on.
func TestWaitersOfAReplicaThatStops(t *testing.T) {
	for name, goesOn := range map[string]bool{"goes on": true, "ends": false} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := takes(time.Hour)
			if goesOn {
				u.resume = resumes
			}
			a := w.leaving(serves(u, policy(shim.Always)))
			task := begin(t, a, call())
			var end shim.Task
			var waited error
			var caller sync.WaitGroup
			caller.Go(func() { end, waited = a.Wait(context.Background(), anyone, "up", task.ID, nil) })
			pass(time.Second)
			w.closes(a)
			caller.Wait()
			if goesOn && !errors.Is(waited, shim.ErrDraining) {
				t.Errorf("a task that goes on: %+v, %v", end, waited)
			}
			if !goesOn && (waited != nil || end.StatusMessage != shutDown) {
				t.Errorf("a task that ends: %+v, %v", end, waited)
			}
		})
	}
}

// A call that was sent may have been done, and its caller is told so. Only the caller of one that
// was not sent is invited to make it again.
func TestBlockedCallsOfAReplicaThatStops(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		a := w.leaving(limited(u, shim.Never, func(srv *shim.Server) { srv.QueueWait = time.Hour }))
		sent, queued := calls(t, a, call()), calls(t, a, call())
		w.closes(a)
		<-sent.done
		<-queued.done
		wantMayBeDone(t, sent.err, shutDown)
		if !errors.Is(queued.err, shim.ErrDraining) || u.calls.Load() != 1 {
			t.Errorf("the queued caller got %v; %d calls were sent", queued.err, u.calls.Load())
		}
	})
}

// A replica that was taken for lost may run a call on whose caller still waits. The record of
// the call has ended, and the caller gets that end.
func TestCallThatAnotherReplicaHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(time.Hour, "a")
		s := w.gateway("r1", u, policy(shim.Auto))
		stream := &relayed{}
		k := calls(t, s, legacy(stream))
		wantKeys(t, stream.asked, "a")
		message := "lost"
		if _, err := w.store.Apply(t.Context(), stream.id, nil, shim.Change{Op: "elsewhere", To: shim.Failed, StatusMessage: &message,
			Outcome: &shim.Outcome{Error: []byte(`{"code":-32603,"message":"lost"}`)}}); err != nil {
			t.Fatal(err)
		}
		<-k.done
		wantMayBeDone(t, k.err, "the replica that ran this call was lost; the upstream may have finished the work")
	})
}

// wantMayBeDone fails unless a caller was told that the server may have done what it asked for.
func wantMayBeDone(t *testing.T, err error, message string) {
	t.Helper()
	var up *shim.UpstreamError
	if !errors.As(err, &up) || up.Message != message || up.Error() != up.Kind+": "+message || up.RetryAfterMs != 0 {
		t.Errorf("the caller got %v, want %q", err, message)
	}
}

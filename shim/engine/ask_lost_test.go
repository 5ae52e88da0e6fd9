package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// lost makes a call on a replica that is asked something, and then is gone.
func (w *world) lost(u shim.Upstream, p shim.Policy, c shim.Call, live time.Duration) shim.Answered {
	w.t.Helper()
	return w.lostAfter(u, p, c, func(shim.Answered) { pass(live) })
}

// lostAfter is lost once something has happened.
func (w *world) lostAfter(u shim.Upstream, p shim.Policy, c shim.Call, do func(shim.Answered)) shim.Answered {
	w.t.Helper()
	s := w.still("a", serves(u, p), nil)
	stop := run(s)
	a, err := s.Call(w.t.Context(), c)
	if err != nil || a.Task == nil && a.Parked == nil {
		w.t.Fatalf("%+v, %v", a, err)
	}
	do(a)
	stop()
	w.mute(s)
	return a
}

// taskCall is a call whose client takes a task and can be asked in it.
func taskCall() shim.Call {
	c := call()
	c.Asking = shim.AskPark
	return c
}

// The upstream client asks again from its checkpoint, with the same keys: it is the same
// question, with the time that it had.
func TestQuestionOutlivesItsReplica(t *testing.T) {
	for name, c := range map[string]struct {
		answered bool // before the call is adopted
		result   string
		after    time.Duration // counted from the question
	}{
		"answered meanwhile": {true, `{"answers":[{"to":"a"}]}`, 10 * time.Second},
		"not answered":       {false, `{"answers":[{"action":"cancel"}]}`, time.Minute},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			p := policy(shim.Auto)
			p.InputTimeout = time.Minute
			first, heir := elicits(0, "a"), elicits(0, "a")
			b := w.gateway("b", heir, p)
			pass(6 * time.Second)
			began := time.Now()
			id := w.lost(first, p, taskCall(), time.Second).Task.ID
			if c.answered {
				updateTask(t, b, id, results("a"))
			}
			pass(c.after - time.Since(began) - 2*time.Second)
			if !c.answered {
				wantStatus(t, read(t, b, id), shim.InputRequired)
			}
			pass(3 * time.Second)
			got := read(t, b, id)
			wantStatus(t, got, shim.Completed)
			if string(got.Outcome.Result) != c.result || heir.calls.Load() != 0 || len(got.Questions) != 1 {
				t.Errorf("%s after %d calls, %+v", got.Outcome.Result, heir.calls.Load(), got.Questions)
			}
		})
	}
}

// What the lost replica has taken may have reached the server, and is not delivered
// again.
func TestAnswerIsDeliveredOnceAcrossReplicas(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first, heir := elicits(time.Hour, "a"), elicits(0, "a")
		b := w.gateway("b", heir, policy(shim.Auto))
		pass(6 * time.Second)
		id := w.lostAfter(first, policy(shim.Auto), taskCall(), func(a shim.Answered) {
			pass(time.Second)
			updateTask(t, b, a.Task.ID, results("a"))
			pass(time.Second)
			if first.delivered() != 1 {
				t.Fatal("not delivered")
			}
		}).Task.ID
		pass(10 * time.Second)
		wantResult(t, b, id, `{"answers":[{"action":"cancel"}]}`)
	})
}

// A parked call of a lost replica is resumed, or it is lost: never run again.
func TestParkedCallOfALostReplica(t *testing.T) {
	for name, resumable := range map[string]bool{"resumed": true, "lost": false} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			retry := policy(shim.Never)
			retry.Retry = true
			heir := elicits(time.Second, "a")
			if !resumable {
				heir.resume = nil
			}
			b := w.gateway("b", heir, retry)
			pass(6 * time.Second)
			c := askable(shim.AskPark)
			id := w.lost(elicits(0, "a"), retry, c, time.Second).Parked.ID
			pass(10 * time.Second)
			got, err := b.Reattach(t.Context(), c, id, results("a"))
			if resumable {
				wantReply(t, got, err, `{"answers":[{"to":"a"}]}`)
			} else if err != nil || got.Reply.Error == nil || !strings.Contains(got.Reply.Error.Message, "was lost") {
				t.Errorf("%+v, %v", got, err)
			}
			if heir.calls.Load() != 0 {
				t.Error("it was run again")
			}
			if _, err := b.Get(t.Context(), anyone, "up", id); !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("it has become a task: %v", err)
			}
			pass(62 * time.Second)
			w.wantGone(id)
		})
	}
}

// Between two rounds nothing is on its way, so whoever adopts the task goes on.
func TestRoundsOutliveTheirReplica(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		heir := asksInRounds(time.Second) // answers at once
		b := w.gateway("b", heir, policy(shim.Always))
		pass(6 * time.Second)
		id := w.lost(asksInRounds(time.Second, "x y"), policy(shim.Always), taskCall(), 2*time.Second).Task.ID
		updateTask(t, b, id, results("q2"))
		pass(10 * time.Second)
		wantStatus(t, read(t, b, id), shim.InputRequired)
		updateTask(t, b, id, results("q1"))
		pass(2 * time.Second)
		wantStatus(t, read(t, b, id), shim.Completed)
		if want := `{"x":{"to":"q1"},"y":{"to":"q2"}} "state 1" ` + params; heir.requests() != want {
			t.Errorf("the server got\n%s", heir.requests())
		}
	})
}

// Once the retry may have been sent it is not sent again, by nobody: also where the store was away while the round was to
// be recorded, for longer than there is time to answer, and has the round all the same.
func TestRoundOnItsWayIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(w *world, b *engine.Shim, id shim.ID)
		sent string
	}{
		"answered": {func(w *world, b *engine.Shim, id shim.ID) {
			pass(2 * time.Second)
			updateTask(w.t, b, id, results("q1"))
			pass(time.Second)
		}, `{"x":{"to":"q1"}}`},
		"noted unheard": {func(w *world, _ *engine.Shim, _ shim.ID) {
			pass(500 * time.Millisecond)
			w.store.deaf.Store(true)
			pass(6 * time.Second)
			w.store.deaf.Store(false)
			pass(10 * time.Second)
		}, `{"x":{"action":"cancel"}}`},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			p := policy(shim.Always)
			p.InputTimeout = 5 * time.Second
			first, heir := asksInRounds(time.Second, "x"), asksInRounds(time.Second)
			b := w.gateway("b", heir, p)
			pass(6 * time.Second)
			ask, sent := first.call, make(chan string, 2)
			retry := sending(func(ctx context.Context, r shim.Request, _ shim.Sink) (shim.Reply, error) {
				sent <- came(r)
				return after(ctx, time.Hour)
			})
			first.call = func(ctx context.Context, r shim.Request, sink shim.Sink) (shim.Reply, error) {
				if r.Retry == nil {
					return ask(ctx, r, sink)
				}
				return retry(ctx, r, sink)
			}
			id := w.lostAfter(first, p, taskCall(), func(a shim.Answered) {
				c.do(w, b, a.Task.ID)
				if got, want := <-sent, c.sent+` "state 1" `+params; got != want {
					t.Errorf("the server got %s, want %s", got, want)
				}
			}).Task.ID
			pass(10 * time.Second)
			wantStatus(t, read(t, b, id), shim.Failed)
			if heir.calls.Load() != 0 {
				t.Errorf("it was sent again: %s", heir.requests())
			}
		})
	}
}

// A parked call that is taken over, and becomes a task when it is answered, shows its
// partial results as it would have done at the replica that was lost.
func TestPartialsOfAParkedCallOfALostReplica(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := policy(shim.Auto)
		p.EarlyInput, p.FoldProgress = shim.EarlyMRTR, true
		heir := elicits(0, "a")
		heir.resume = func(ctx context.Context, _ shim.Request, _ json.RawMessage, s shim.Sink) (shim.Reply, error) {
			reply, err := heir.ask(ctx, s, time.Second, "a")
			s.Progress(shim.Progress{Progress: 1, Message: "said"})
			if _, err := after(ctx, time.Hour); err != nil {
				return shim.Reply{}, err
			}
			return reply, err
		}
		b := w.gateway("b", heir, p)
		pass(6 * time.Second)
		c := taskCall()
		c.Partials = true
		id := w.lost(elicits(0, "a"), p, c, time.Second).Parked.ID
		pass(10 * time.Second)
		a, err := b.Reattach(t.Context(), c, id, results("a"))
		if err != nil || a.Task == nil {
			t.Fatalf("%+v, %v", a, err)
		}
		pass(10 * time.Second)
		if got := read(t, b, id); got.Position != 1 {
			t.Errorf("the task has %d partial results", got.Position)
		}
	})
}

// What a server has said before a round is stored with the round at the latest: whoever
// goes on after the round does not hear it again.
func TestPartialsBeforeARoundOfALostReplica(t *testing.T) {
	for name, questions := range map[string]string{"questions": "x", "none": ""} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			p := streaming(false)
			p.Partials.Interval = time.Minute
			heir := asksInRounds(time.Second)
			b := w.gateway("b", heir, p)
			pass(6 * time.Second)
			first := asksInRounds(time.Second, questions)
			ask := first.call
			first.call = func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
				reply, err := ask(ctx, r, s)
				for _, text := range []string{"a", "b", "c"} {
					s.Progress(shim.Progress{Message: text})
				}
				return reply, err
			}
			c := taskCall()
			c.Partials = true
			id := w.lost(first, p, c, 1500*time.Millisecond).Task.ID
			if questions != "" {
				updateTask(t, b, id, results("q1"))
			}
			pass(10 * time.Second)
			wantStatus(t, read(t, b, id), shim.Completed)
			wantStored(t, w.store, id, "a+b+c")
		})
	}
}

// A record that is made for a question of a round has the round only together with the
// question: whoever adopts the call in between does not ask without words.
func TestRoundNotedWithItsQuestions(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		heir := asksInRounds(time.Second)
		b := w.gateway("b", heir, policy(shim.Auto))
		pass(6 * time.Second)
		made := make(chan shim.ID, 1)
		var lost atomic.Bool // once it has made a record
		store := &hooked{
			Store: w.store,
			create: func(ctx context.Context, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				out, err := next(ctx)
				if err == nil && lost.CompareAndSwap(false, true) {
					made <- out.ID
				}
				return out, err
			},
			apply: func(ctx context.Context, _ shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if lost.Load() {
					return shim.Task{}, errDown
				}
				return next(ctx)
			},
		}
		s := w.still("a", serves(asksInRounds(time.Second, "x"), policy(shim.Auto)), func(o *engine.Options) { o.Store = store })
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = s.Run(ctx) })
		running.Go(func() { _, _ = s.Call(ctx, taskCall()) })
		id := <-made
		stop()
		running.Wait()
		w.mute(s)
		pass(20 * time.Second)
		got := read(t, b, id)
		wantStatus(t, got, shim.Failed)
		if len(got.Questions) != 0 || heir.calls.Load() != 0 {
			t.Errorf("%+v, and sent %s", got.Questions, heir.requests())
		}
	})
}

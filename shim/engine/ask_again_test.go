package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/redistest"
	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// asksTwice asks a, and once it has heard, after d, b.
func asksTwice(d time.Duration) *asks {
	u := &asks{}
	u.call = sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		if r, err := u.ask(ctx, s, d, "a"); err != nil {
			return r, err
		}
		return u.ask(ctx, s, time.Hour, "b")
	})
	return u
}

// A caller who comes back after its first questions have run out, and is asked again, at once or minutes later, has all
// of the time to answer that, and its server is not left to wait for ever.
func TestAskedAgainAfterTheDeadline(t *testing.T) {
	for _, works := range []time.Duration{40 * time.Second, 2 * time.Minute} {
		hoursOf(t, works.String(), func(t *testing.T, w *world) {
			u := asksTwice(works)
			s := w.gateway("r1", u, policy(shim.Never))
			c := askable(shim.AskPark)
			p := parked(t, s, c, "a")
			pass(10*time.Minute + 10*time.Second) // a has run out, and nobody is there
			parkedAgain(t, s, c, p.ID, nil, "b")
			pass(9 * time.Minute)
			if cause := u.ended(); cause != nil {
				t.Fatalf("the call ended while there was time to answer: %v", cause)
			}
			pass(2*time.Minute + time.Second) // b has run out a minute ago, and again nobody is there
			if n := u.delivered(); n != 2 || u.ended() != nil {
				t.Errorf("the server heard of %d questions, and the call ended with %v", n, u.ended())
			}
		})
	}
}

// A caller who has answered and comes back waits for what becomes of the call: after a restart of
// the replica, after another one has taken the call over, and beside one who waits already.
func TestComesBackAfterItsAnswers(t *testing.T) {
	for name, then := range map[string]func(*testing.T, *world){
		"stopped": func(_ *testing.T, w *world) { w.stops[1]() },
		"taken over": func(t *testing.T, w *world) {
			must(t, w.store.Beat(t.Context(), "a", 0))
		},
		"beside": func(*testing.T, *world) {},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := elicits(time.Minute, "a")
			u.resume = func(ctx context.Context, _ shim.Request, _ json.RawMessage, _ shim.Sink) (shim.Reply, error) {
				_, err := after(ctx, time.Minute)
				return shim.Reply{Result: json.RawMessage(`{"answers":[{"to":"a"}]}`)}, err
			}
			b := w.gateway("b", u, policy(shim.Never))
			a := w.gateway("a", u, policy(shim.Never))
			pass(6 * time.Second)
			c := askable(shim.AskPark)
			p := parked(t, a, c, "a")
			first := goes(func() (shim.Answered, error) { return a.Reattach(t.Context(), c, p.ID, results("a")) })
			pass(5 * time.Second)
			then(t, w)
			pass(5 * time.Second)
			back, err := b.Reattach(t.Context(), c, p.ID, results("a"))
			wantReply(t, back, err, `{"answers":[{"to":"a"}]}`)
			if <-first.done; name != "stopped" {
				wantReply(t, first.a, first.err, `{"answers":[{"to":"a"}]}`)
			} else if !errors.Is(first.err, shim.ErrDraining) {
				t.Errorf("%+v, %v", first.a, first.err)
			}
			if n := u.delivered(); n != 1 {
				t.Errorf("%d deliveries", n)
			}
		})
	}
}

// A caller who comes back at another replica hears of the progress from then on: by the
// record, in which the replica that runs the call has the newest several times a second, whatever the poll interval.
func TestProgressForACallerWhoComesBackElsewhere(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(time.Minute, "a")
		ask := u.call
		u.call = func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
			s.Progress(shim.Progress{Progress: 1, Raw: json.RawMessage(`{"progress":1}`)})
			reply, err := ask(ctx, r, afterAnswers{s})
			return reply, err
		}
		s, other := w.gateway("r1", u, policy(shim.Never)), w.gateway("r2", u, policy(shim.Never))
		c := askable(shim.AskPark)
		c.Request.Progress, c.ProgressToken = true, json.RawMessage(`"token"`)
		p := parked(t, s, c, "a")
		said := &progressed{}
		c.Stream = said
		a, err := other.Reattach(t.Context(), c, p.ID, results("a"))
		wantReply(t, a, err, `{"answers":[{"to":"a"}]}`)
		if got := strings.Join(said.progress, " "); got != `{"progress":2} {"progress":3}` {
			t.Errorf("the caller heard of %s", got)
		}
	})
}

// afterAnswers makes progress once the questions have answers.
type afterAnswers struct{ shim.Sink }

func (s afterAnswers) Ask(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
	answers, err := s.Sink.Ask(ctx, q...)
	for n := 2; n < 4; n++ {
		s.Progress(shim.Progress{Progress: float64(n), Raw: fmt.Appendf(nil, `{"progress":%d}`, n)})
		pass(time.Second / 2)
	}
	return answers, err
}

// progressed keeps the progress that a caller hears of.
type progressed struct{ progress []string }

func (h *progressed) Progress(p shim.Progress) { h.progress = append(h.progress, string(p.Raw)) }
func (h *progressed) Log(shim.Log)             {}

// An answer that the runner has read counts, also where Redis goes back to before it while another
// question is open. It is not asked for again where Redis has forgotten the question.
func TestAnswerOutlivesAnOlderStore(t *testing.T) {
	for name, knows := range map[string]bool{"before the answer": true, "before the question": false} {
		t.Run(name, func(t *testing.T) {
			overMemory(t, func(t *testing.T, w *world, memory *redistest.Memory) {
				s := w.gateway("r1", elicits(0, "a", "b"), policy(shim.Always))
				before := memory.Snapshot()
				task := begin(t, s, taskCall())
				pass(time.Second)
				if knows {
					before = memory.Snapshot()
				}
				updateTask(t, s, task.ID, results("a"))
				pass(time.Second)
				must(t, memory.Restore(before))
				pass(time.Minute)
				open, err := s.Outstanding(t.Context(), anyone, "up", task.ID)
				must(t, err)
				if !knows {
					wantKeys(t, open, "b")
				}
				updateTask(t, s, task.ID, results("b"))
				pass(time.Minute)
				wantResult(t, s, task.ID, `{"answers":[{"to":"a"},{"to":"b"}]}`)
			})
		})
	}
}

// An answer that its client knows to be stored reaches the server also where Redis goes back to before it, and the runner
// has not read it by then: a client that has answered need not answer again.
func TestAnswerThatRedisForgetsUnread(t *testing.T) {
	for name, parks := range map[string]bool{"of a task": false, "of a call that becomes a task": true} {
		t.Run(name, func(t *testing.T) {
			overMemory(t, func(t *testing.T, w *world, memory *redistest.Memory) {
				w.heartbeat = time.Hour // no audit reads the answers
				var hears atomic.Bool
				drop := func(e shim.Event) bool { return hint(e) && !hears.Load() }
				p, c := policy(shim.Auto), taskCall()
				if parks {
					p.EarlyInput, p.Grace = shim.EarlyMRTR, time.Second
				}
				a, b := w.over("a", &hooked{drop: drop}, elicits(0, "a", "b"), p), w.gatewayFor("b", serves(elicits(0), p))
				got, err := a.Call(t.Context(), c)
				if err != nil || parks != (got.Parked != nil) {
					t.Fatalf("%+v, %v", got, err)
				}
				pass(5 * time.Second)
				before := memory.Snapshot()
				var id shim.ID
				if parks {
					id = got.Parked.ID
					answerTask(t, b, anyone, id, "a", `{"to":"a"}`)
					if got, err = b.Reattach(t.Context(), c, id, results("b")); err != nil || got.Task == nil {
						t.Fatalf("%+v, %v", got, err)
					}
				} else {
					id = got.Task.ID
					updateTask(t, b, id, results("a"))
					updateTask(t, b, id, results("b"))
				}
				synctest.Wait()
				hears.Store(true)
				if err := memory.Restore(before); err != nil {
					t.Fatal(err)
				}
				pass(time.Minute)
				wantResult(t, b, id, `{"answers":[{"to":"a"},{"to":"b"}]}`)
			})
		})
	}
}

// A store that goes back to before a question has forgotten its answer as well. The replica that took the answer
// writes it again once the runner has asked the question again, however long that takes.
func TestAnswerWhoseQuestionRedisForgets(t *testing.T) {
	for name, asked := range map[string]bool{"and the record": false, "but not the record": true} {
		t.Run(name, func(t *testing.T) {
			overMemory(t, func(t *testing.T, w *world, memory *redistest.Memory) {
				w.heartbeat = time.Hour // no audit reads the answers
				var hears atomic.Bool
				runner := &hooked{drop: func(e shim.Event) bool { return hint(e) && !hears.Load() }}
				runner.apply = func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
					if len(c.Ask) > 0 {
						pass(2 * time.Second)
					}
					return next(ctx)
				}
				p := policy(shim.Always)
				p.InputTimeout = 20 * time.Second
				a, b := w.over("a", runner, elicits(0, "a"), p), w.gatewayFor("b", serves(elicits(0), p))
				before := memory.Snapshot()
				task := begin(t, a, taskCall())
				if pass(time.Second); asked {
					before = memory.Snapshot()
				}
				pass(5 * time.Second)
				updateTask(t, b, task.ID, results("a"))
				synctest.Wait()
				hears.Store(true)
				must(t, memory.Restore(before))
				pass(time.Minute)
				wantResult(t, b, task.ID, `{"answers":[{"to":"a"}]}`)
			})
		})
	}
}

// Of two answers that come at once, the one that was stored is written again.
func TestAnswerThatCameTooLateIsNotWrittenAgain(t *testing.T) {
	overMemory(t, func(t *testing.T, w *world, memory *redistest.Memory) {
		w.heartbeat = time.Hour
		var hears atomic.Bool
		drop := func(e shim.Event) bool { return hint(e) && !hears.Load() }
		late := &hooked{}
		a, b := w.over("a", &hooked{drop: drop}, elicits(0, "a"), policy(shim.Auto)), w.over("b", late, elicits(0), policy(shim.Auto))
		got, err := a.Call(t.Context(), taskCall())
		must(t, err)
		pass(5 * time.Second)
		before, id := memory.Snapshot(), got.Task.ID
		late.apply = func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if _, first := c.Answer["a"]; first {
				late.apply = nil
				updateTask(t, b, id, map[string]json.RawMessage{"a": json.RawMessage(`{"to":"first"}`)})
			}
			return next(ctx)
		}
		updateTask(t, b, id, map[string]json.RawMessage{"a": json.RawMessage(`{"to":"late"}`)})
		synctest.Wait()
		hears.Store(true)
		must(t, memory.Restore(before))
		pass(time.Minute)
		wantResult(t, b, id, `{"answers":[{"to":"first"}]}`)
	})
}

// An answer that comes when Redis is back without its question, and before the runner has asked that again, waits for
// it.
func TestAnswerWaitsForItsQuestion(t *testing.T) {
	overMemory(t, func(t *testing.T, w *world, memory *redistest.Memory) {
		a, b := w.gateway("a", elicits(0, "a"), policy(shim.Always)), w.gateway("b", elicits(0), policy(shim.Always))
		before := memory.Snapshot()
		task := begin(t, a, taskCall())
		pass(time.Second)
		must(t, memory.Restore(before))
		must(t, b.Answer(t.Context(), anyone, "up", task.ID, "a", shim.Answer{Result: results("a")["a"]}))
		pass(time.Minute)
		wantResult(t, b, task.ID, `{"answers":[{"to":"a"}]}`)
	})
}

// overMemory is a bubble over a Redis in memory, which can go back.
func overMemory(t *testing.T, f func(*testing.T, *world, *redistest.Memory)) {
	t.Helper()
	bubble(t, func(t *testing.T, w *world) {
		memory := redistest.NewMemory()
		store, err := redisstore.Open(t.Context(), "redis://memory:6379", redisstore.Options{Dialer: memory.Dial, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		defer func() {
			w.close()
			_ = store.Close()
			memory.Close()
			pass(2 * time.Second) // go-redis looks once a second whether it still has to dial
		}()
		w.store.Store = store
		f(t, w, memory)
	})
}

// A caller who waits for its answered call gets the result although the store forgets the record meanwhile,
// wherever it waits: the replica that runs the call writes it again.
func TestAnsweredCallThatTheStoreForgot(t *testing.T) {
	for _, at := range []string{"a", "b"} {
		bubbleOf(t, at, func(t *testing.T, w *world) {
			u := &asks{}
			u.call = sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
				if r, err := u.ask(ctx, s, 0, "a"); err != nil {
					return r, err
				}
				return after(ctx, 40*time.Second)
			})
			gates := map[string]*engine.Shim{}
			for _, name := range []string{"a", "b"} {
				gates[name] = w.gateway(name, u, policy(shim.Never))
			}
			c := askable(shim.AskPark)
			p := parked(t, gates["a"], c, "a")
			other := openEmbedded(t)
			time.AfterFunc(29*time.Second, func() { w.store.failover.Store(&other) }) // it reads by itself at 30 s
			time.AfterFunc(34*time.Second, func() { w.store.failover.Store(nil) })
			got, err := gates[at].Reattach(t.Context(), c, p.ID, results("a"))
			if err != nil || string(got.Reply.Result) != result {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// asked begins a task that waits for answers.
func asked(t *testing.T, s *engine.Shim, keys ...string) shim.Task {
	t.Helper()
	task := begin(t, s, taskCall())
	synctest.Wait()
	got := read(t, s, task.ID)
	wantStatus(t, got, shim.InputRequired)
	wantKeys(t, got.Questions, keys...)
	return got
}

func TestQuestionsOfATaskRunOut(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(time.Second, "a", "b", "s")
		s := w.gateway("r1", u, policy(shim.Auto))
		task := asked(t, s, "a", "b", "s")
		pass(9 * time.Minute)
		updateTask(t, s, task.ID, results("b"))
		pass(time.Minute - time.Second)
		wantStatus(t, read(t, s, task.ID), shim.InputRequired)
		pass(time.Second)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.Working)
		if err := s.Update(t.Context(), anyone, "up", task.ID, results("a")); err != nil {
			t.Errorf("too late: %v", err)
		}
		pass(time.Second)
		got = read(t, s, task.ID)
		if want := `{"answers":[{"action":"cancel"},{"to":"b"},"the client did not answer in time"]}`; string(got.Outcome.Result) != want {
			t.Errorf("%s", got.Outcome.Result)
		}
	})
}

// Without an input_timeout a question of a task is open for the task's ttl. When it is given up, the
// status message names it by its text.
func TestQuestionOfATaskIsOpenForItsTTL(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := policy(shim.Auto)
		p.InputTimeout, p.TTL = 0, time.Hour
		u := &asks{}
		u.call = func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			_, err := s.Ask(ctx, shim.Question{Key: "a", Method: "elicitation/create", Params: json.RawMessage(`{"message":"Which branch?"}`)})
			if err != nil {
				return shim.Reply{}, err
			}
			return after(ctx, time.Minute)
		}
		s := w.gateway("r", u, p)
		task := asked(t, s, "a")
		pass(59 * time.Minute)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.InputRequired)
		if len(got.Questions) != 1 || !got.Questions[0].Outstanding() {
			t.Errorf("after 59 minutes: %+v", got.Questions)
		}
		pass(time.Minute)
		got = read(t, s, task.ID)
		wantStatus(t, got, shim.Working)
		if !strings.Contains(got.StatusMessage, "Which branch?") {
			t.Errorf("after 60 minutes: %q", got.StatusMessage)
		}
		if left := time.Until(got.ExpiresAt()); left < 0 {
			t.Errorf("promised until %v ago", -left)
		}
	})
}

func TestParkedCallOutlivesItsDeadline(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(30*time.Second, "a")
		s := w.gateway("r1", u, policy(shim.Never))
		p := parked(t, s, askable(shim.AskPark), "a")
		pass(10 * time.Minute)
		if got := spell(u.got); got != `{"answers":[{"action":"cancel"}]}` {
			t.Errorf("the server got %s", got)
		}
		pass(time.Minute)
		if cause := u.ended(); cause != nil {
			t.Errorf("the call ended with %v", cause)
		}
		if _, err := w.store.Get(t.Context(), p.ID, shim.Summary); err != nil {
			t.Errorf("gone before its time: %v", err)
		}
		pass(62 * time.Second)
		w.wantGone(p.ID)
	})
}

// A server that goes on without an answer withdraws its question.
func TestWithdrawnQuestion(t *testing.T) {
	withdraws := func() *scripted {
		return &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			asking, stop := context.WithTimeout(ctx, time.Minute)
			defer stop()
			if _, err := s.Ask(asking, questions("a")...); !errors.Is(err, context.DeadlineExceeded) {
				return shim.Reply{}, errors.New("not withdrawn")
			}
			answers, err := s.Ask(ctx, questions("b")...)
			if err != nil {
				return shim.Reply{}, err
			}
			return shim.Reply{Result: json.RawMessage(spell(answers))}, nil
		}}
	}
	bubbleOf(t, "of a task", func(t *testing.T, w *world) {
		s := w.gateway("r1", withdraws(), policy(shim.Auto))
		task := asked(t, s, "a")
		pass(time.Minute)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.InputRequired)
		if got.Questions[0].Outstanding() || !got.Questions[1].Outstanding() {
			t.Errorf("%+v", got.Questions)
		}
		updateTask(t, s, task.ID, results("a", "b"))
		pass(time.Second)
		wantResult(t, s, task.ID, `{"answers":[{"to":"b"}]}`)
	})
	bubbleOf(t, "of a parked call", func(t *testing.T, w *world) {
		s := w.gateway("r1", withdraws(), policy(shim.Never))
		c := askable(shim.AskPark)
		p := parked(t, s, c, "a")
		pass(2 * time.Minute)
		parkedAgain(t, s, c, p.ID, results("a"), "b")
		a, err := s.Reattach(t.Context(), c, p.ID, results("b"))
		wantReply(t, a, err, `{"answers":[{"to":"b"}]}`)
	})
}

func TestStoreAwayWhileAsked(t *testing.T) {
	bubbleOf(t, "before", func(t *testing.T, w *world) {
		u := elicits(time.Second, "a")
		s := w.gateway("r1", u, policy(shim.Auto))
		pass(time.Second)
		w.store.down.Store(true)
		time.AfterFunc(time.Second, func() { w.store.down.Store(false) })
		task := begin(t, s, taskCall())
		pass(10 * time.Second) // it is tried again now and then
		wantStatus(t, read(t, s, task.ID), shim.InputRequired)
	})
	bubbleOf(t, "whose replies are lost", func(t *testing.T, w *world) {
		u := elicits(time.Second, "a")
		s := w.gateway("r1", u, policy(shim.Never))
		pass(time.Second)
		w.store.deaf.Store(true)
		time.AfterFunc(time.Second, func() { w.store.deaf.Store(false) })
		c := askable(shim.AskPark)
		p := parked(t, s, c, "a")
		w.store.deaf.Store(true)
		time.AfterFunc(500*time.Millisecond, func() { w.store.deaf.Store(false) }) // shorter than the longest pauses leave of StoreTimeout
		a, err := s.Reattach(t.Context(), c, p.ID, results("a"))
		wantReply(t, a, err, `{"answers":[{"to":"a"}]}`)
		if u.delivered() != 1 {
			t.Errorf("%d deliveries", u.delivered())
		}
	})
	bubbleOf(t, "all the time", func(t *testing.T, w *world) {
		u := elicits(time.Second, "a")
		s := w.gateway("r1", u, policy(shim.Never))
		pass(time.Second)
		w.store.down.Store(true)
		begin := time.Now()
		a, err := s.Call(t.Context(), askable(shim.AskPark))
		took := time.Since(begin)
		w.store.down.Store(false)
		wantReply(t, a, err, `{"answers":[{"action":"cancel"}]}`)
		if took > time.Second+2*3*time.Second { // what the server takes, and two times the store timeout
			t.Errorf("the caller waited for %v", took)
		}
	})
}

func TestCallerLeavesWhileAsked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(time.Hour, "a")
		s, other := w.gateway("r1", u, policy(shim.Never)), w.gateway("r2", u, policy(shim.Never))
		c := askable(shim.AskPark)
		p := parked(t, s, c, "a")
		ctx, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		if _, err := other.Reattach(ctx, c, p.ID, results("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		pass(time.Second)
		if u.ended() == nil {
			t.Error("the call goes on")
		}
		if _, err := s.Reattach(t.Context(), c, p.ID, nil); !errors.Is(err, shim.ErrCancelled) {
			t.Errorf("after that: %v", err)
		}
	})
}

func TestWhoMayAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(time.Second, "a")
		s := w.gateway("r1", u, policy(shim.Auto))
		alice, mallory := shim.Principal{Subject: "alice"}, shim.Principal{Subject: "mallory"}
		session := shim.Principal{Session: "1"}
		task := taskCall()
		task.Principal = alice
		made := begin(t, s, task)
		hidden := askable(shim.AskPark)
		hidden.Principal = session
		p := parked(t, s, hidden, "a")
		for name, err := range map[string]error{
			"update":             s.Update(t.Context(), mallory, "up", made.ID, results("a")),
			"answer":             s.Answer(t.Context(), mallory, "up", made.ID, "a", shim.Answer{Result: json.RawMessage("{}")}),
			"answer, nobody":     s.Answer(t.Context(), anyone, "up", made.ID, "a", shim.Answer{Result: json.RawMessage("{}")}),
			"elsewhere":          s.Update(t.Context(), alice, "other", made.ID, results("a")),
			"outstanding":        errorOf(s.Outstanding(t.Context(), mallory, "up", made.ID)),
			"another's session":  s.Answer(t.Context(), shim.Principal{Session: "2"}, "up", p.ID, "a", shim.Answer{}),
			"update what is not": s.Update(t.Context(), session, "up", p.ID, results("a")),
			"reattach": func() error {
				c := hidden
				c.Principal = mallory
				_, err := s.Reattach(t.Context(), c, p.ID, results("a"))
				return err
			}(),
		} {
			if !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
		pass(time.Minute)
		if u.delivered() != 0 {
			t.Error("a stranger's answer was taken")
		}
	})
}

// A server that withdraws one of several questions gets the answer to the other one, and nobody is asked the first any more.
func TestOneOfTheQuestionsIsWithdrawn(t *testing.T) {
	withdraws := func(d time.Duration) *scripted {
		return &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if d == 0 {
				s.Withdraw("b")
			}
			defer time.AfterFunc(d, func() { s.Withdraw("b") }).Stop()
			answers, err := s.Ask(ctx, questions("a", "b")...)
			if err != nil {
				return shim.Reply{}, err
			}
			return shim.Reply{Result: json.RawMessage(spell(answers))}, nil
		}}
	}
	const want = `{"answers":[{"to":"a"},{"action":"cancel"}]}`
	bubbleOf(t, "of a task", func(t *testing.T, w *world) {
		s := w.gateway("r1", withdraws(time.Minute), policy(shim.Auto))
		task := asked(t, s, "a", "b")
		pass(time.Minute)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.InputRequired)
		if !got.Questions[0].Outstanding() || got.Questions[1].Outstanding() {
			t.Errorf("%+v", got.Questions)
		}
		updateTask(t, s, task.ID, results("a"))
		pass(time.Second)
		wantResult(t, s, task.ID, want)
	})
	bubbleOf(t, "that is answered already", func(t *testing.T, w *world) {
		s := w.gateway("r1", withdraws(time.Minute), policy(shim.Auto))
		task := asked(t, s, "a", "b")
		updateTask(t, s, task.ID, results("a"))
		pass(time.Minute + time.Second)
		wantResult(t, s, task.ID, want)
	})
	t.Run("on a stream", func(t *testing.T) {
		for d, keys := range map[time.Duration]string{time.Minute: "[b]", 0: "[]"} {
			bubble(t, func(t *testing.T, w *world) {
				s := w.gateway("r1", withdraws(d), policy(shim.Never))
				stream := &relayed{}
				c := legacy(stream)
				k := calls(t, s, c)
				pass(d)
				if fmt.Sprint(stream.withdrawn) != keys || len(stream.asked) != len(stream.withdrawn)+1 {
					t.Errorf("%v is asked, and %v withdrawn", stream.asked, stream.withdrawn)
				}
				answerTask(t, s, c.Principal, stream.id, "a", `{"to":"a"}`)
				pass(time.Second)
				select {
				case <-k.done:
					wantReply(t, k.a, k.err, want)
				default:
					t.Error("the call waits for an answer that nobody waits for")
				}
			})
		}
	})
	bubbleOf(t, "while it is stored", func(t *testing.T, w *world) {
		withdraw := func() {}
		h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			t, err := next(ctx)
			if len(c.Ask) > 0 {
				withdraw()
			}
			return t, err
		}}
		u := withdraws(time.Hour)
		s := w.over("r1", h, &scripted{call: func(ctx context.Context, r shim.Request, sink shim.Sink) (shim.Reply, error) {
			withdraw = func() { sink.Withdraw("b") }
			return u.call(ctx, r, sink)
		}}, policy(shim.Never))
		stream := &relayed{}
		calls(t, s, legacy(stream))
		pass(time.Second)
		if len(stream.asked) != 1 || len(stream.withdrawn) != 0 {
			t.Errorf("%v is asked, and %v withdrawn", stream.asked, stream.withdrawn)
		}
	})
}

package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// asks is an upstream that asks questions, sends the answers it gets as its result,
// and says how often it got any.
type asks struct {
	scripted
	mu   sync.Mutex
	got  []shim.Answer
	sets int
}

// elicits asks all of these at once, as the upstream client does for a legacy server, and then
// takes d more.
func elicits(d time.Duration, keys ...string) *asks {
	u := &asks{}
	u.call = sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		return u.ask(ctx, s, d, keys...)
	})
	u.resume = func(ctx context.Context, _ shim.Request, _ json.RawMessage, s shim.Sink) (shim.Reply, error) {
		return u.ask(ctx, s, d, keys...)
	}
	return u
}

func (u *asks) ask(ctx context.Context, s shim.Sink, d time.Duration, keys ...string) (shim.Reply, error) {
	answers, err := s.Ask(ctx, questions(keys...)...)
	if ctx.Err() != nil {
		return shim.Reply{}, context.Cause(ctx)
	}
	if err != nil {
		return shim.Reply{Error: &shim.RPCError{Code: -32000, Message: err.Error()}}, nil
	}
	u.mu.Lock()
	u.got = append(u.got, answers...)
	u.sets++
	u.mu.Unlock()
	if _, err := after(ctx, d); err != nil {
		return shim.Reply{}, err
	}
	return shim.Reply{Result: json.RawMessage(spell(answers))}, nil
}

// spell writes answers as a result.
func spell(answers []shim.Answer) string {
	out := `{"answers":[`
	for i, a := range answers {
		if i > 0 {
			out += ","
		}
		if a.Error != nil {
			out += fmt.Sprintf("%q", a.Error.Message)
		} else {
			out += string(a.Result)
		}
	}
	return out + "]}"
}

// sets is how often the server got answers.
func (u *asks) delivered() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sets
}

func questions(keys ...string) []shim.Question {
	var q []shim.Question
	for _, k := range keys {
		method := "elicitation/create"
		if k[0] == 's' {
			method = "sampling/createMessage"
		}
		q = append(q, shim.Question{Key: k, Method: method, Params: json.RawMessage(`{"for":"` + k + `"}`)})
	}
	return q
}

func results(keys ...string) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	for _, k := range keys {
		m[k] = json.RawMessage(`{"to":"` + k + `"}`)
	}
	return m
}

// askable is a call whose client takes no task and can be asked.
func askable(how shim.Asking) shim.Call {
	c := call()
	c.Handle, c.Asking = false, how
	return c
}

// parked makes a call that is handed back with questions.
func parked(t *testing.T, s *engine.Shim, c shim.Call, keys ...string) shim.Parked {
	t.Helper()
	a, err := s.Call(t.Context(), c)
	if err != nil || a.Parked == nil {
		t.Fatalf("call: %+v, %v", a, err)
	}
	wantKeys(t, a.Parked.Questions, keys...)
	return *a.Parked
}

// parkedAgain comes back to a parked call, which asks for more.
func parkedAgain(t *testing.T, s *engine.Shim, c shim.Call, id shim.ID, answers map[string]json.RawMessage, keys ...string) {
	t.Helper()
	a, err := s.Reattach(t.Context(), c, id, answers)
	if err != nil || a.Parked == nil {
		t.Fatalf("came back: %+v, %v", a, err)
	}
	wantKeys(t, a.Parked.Questions, keys...)
}

// wantGone wants the record of a call to be gone.
func (w *world) wantGone(id shim.ID) {
	w.t.Helper()
	if _, err := w.store.Get(w.t.Context(), id, shim.Summary); !errors.Is(err, shim.ErrNotFound) {
		w.t.Errorf("the record is still there: %v", err)
	}
}

func wantKeys(t *testing.T, q []shim.Question, keys ...string) {
	t.Helper()
	var got []string
	for i := range q {
		got = append(got, q[i].Key)
	}
	if fmt.Sprint(got) != fmt.Sprint(keys) {
		t.Fatalf("asked %v, want %v", got, keys)
	}
}

func wantReply(t *testing.T, a shim.Answered, err error, want string) {
	t.Helper()
	if err != nil || a.Task != nil || a.Parked != nil || string(a.Reply.Result) != want {
		t.Fatalf("got %+v %s, %v; want %s", a, a.Reply.Result, err, want)
	}
}

func TestParkedCall(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(time.Second, "a", "b")
		s, other := w.gateway("r1", u, policy(shim.Auto)), w.gateway("r2", u, policy(shim.Auto))
		c := askable(shim.AskPark)
		p := parked(t, s, c, "a", "b")
		if _, err := s.Get(t.Context(), anyone, "up", p.ID); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("a parked call is seen as a task: %v", err)
		}
		pass(9 * time.Minute)
		parkedAgain(t, other, c, p.ID, results("b", "x"), "a")
		a, err := other.Reattach(t.Context(), c, p.ID, results("a"))
		wantReply(t, a, err, `{"answers":[{"to":"a"},{"to":"b"}]}`)
		a, err = s.Reattach(t.Context(), c, p.ID, results("a"))
		wantReply(t, a, err, `{"answers":[{"to":"a"},{"to":"b"}]}`)
		pass(2 * time.Minute)
		if _, err := s.Reattach(t.Context(), c, p.ID, results("a")); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("after its time: %v", err)
		}
		if u.delivered() != 1 || u.calls.Load() != 1 {
			t.Errorf("%d deliveries in %d calls", u.delivered(), u.calls.Load())
		}
	})
}

func TestQuestionMakesATask(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(time.Second, "a", "b")
		s, other := w.gateway("r1", u, policy(shim.Auto)), w.gateway("r2", u, policy(shim.Auto))
		c := taskCall()
		began := time.Now()
		task := begin(t, s, c)
		if time.Since(began) != 0 {
			t.Errorf("the grace was waited for: %v", time.Since(began))
		}
		if got := read(t, other, task.ID); task.CreatedAt.IsZero() || !task.CreatedAt.Equal(got.CreatedAt) {
			t.Errorf("the handle says %v, the task was created at %v", task.CreatedAt, got.CreatedAt)
		}
		pass(time.Minute)
		got := read(t, other, task.ID)
		wantStatus(t, got, shim.InputRequired)
		wantKeys(t, got.Questions, "a", "b")
		updateTask(t, other, task.ID, results("b", "zz"))
		pass(time.Second)
		wantStatus(t, read(t, s, task.ID), shim.InputRequired)
		updateTask(t, other, task.ID, results("a", "b"))
		pass(500 * time.Millisecond)
		wantStatus(t, read(t, s, task.ID), shim.Working)
		pass(time.Second)
		wantResult(t, other, task.ID, `{"answers":[{"to":"a"},{"to":"b"}]}`)
		if err := s.Update(t.Context(), anyone, "up", task.ID, results("a")); err != nil {
			t.Errorf("an answer after the end: %v", err)
		}
	})
}

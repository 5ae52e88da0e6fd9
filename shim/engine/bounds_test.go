package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// asksOneByOne asks n questions of a legacy server, each once the one before has its
// answer, and says so after each as the upstream client does.
func asksOneByOne(n int) *asks {
	u := &asks{}
	u.call = func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		var all []shim.Answer
		for i := range n {
			answers, err := s.Ask(ctx, shim.Question{Key: fmt.Sprint("k", i), Method: "sampling/createMessage", Params: marked(i)})
			if err == nil {
				err = s.Checkpoint(json.RawMessage(`{"sent":true}`))(ctx)
			}
			if err != nil {
				return shim.Reply{}, err
			}
			all = append(all, answers...)
		}
		return shim.Reply{Result: json.RawMessage(spell(all))}, nil
	}
	return u
}

// marked are params and answers that are found again in a record.
func marked(i int) json.RawMessage { return fmt.Appendf(nil, `{"mark":"m%d"}`, i) }

// stored is the record of a call with everything in it.
func (w *world) stored(id shim.ID) (record string, t shim.Task) {
	w.t.Helper()
	t, err := w.store.Get(w.t.Context(), id, shim.WithRun)
	must(w.t, err)
	return fmt.Sprintf("%s %s %s", t.Call, t.Checkpoint, spellQuestions(t.Questions)), t
}

func spellQuestions(questions []shim.Question) string {
	var b strings.Builder
	for _, q := range questions {
		fmt.Fprintf(&b, "%s %s %s %s\n", q.Key, q.Method, q.Params, q.Answer)
	}
	return b.String()
}

// However many questions a call asks, its record has the content of those alone that are
// open, and answers that are not delivered. That the others have been, it keeps (T39).
func TestRecordKeepsOpenQuestionsOnly(t *testing.T) {
	const n = 10
	for name, u := range map[string]shim.Upstream{
		"legacy": asksOneByOne(n),
		"modern": asksInRounds(0, slices.Repeat([]string{"s"}, n)...),
	} {
		hoursOf(t, name, func(t *testing.T, w *world) {
			s := w.gateway("r1", u, policy(shim.Auto))
			id := begin(t, s, taskCall()).ID
			var asked []string
			for i := range n {
				pass(time.Second)
				record, task := w.stored(id)
				wantStatus(t, task, shim.InputRequired)
				if len(task.Questions) != i+1 || len(record) > 600+40*i {
					t.Fatalf("after %d questions the record has %d: %s", i+1, len(task.Questions), record)
				}
				if strings.Contains(record, fmt.Sprintf("answer%d\"", i-1)) || name == "legacy" && strings.Contains(record, fmt.Sprintf("m%d\"", i-1)) {
					t.Errorf("what is over is still there: %s", record)
				}
				key := task.Questions[i].Key
				if asked = append(asked, key); !task.Questions[i].Outstanding() {
					t.Fatalf("%s is not open", key)
				}
				answers := map[string]json.RawMessage{"nobody": marked(99)}
				for _, k := range asked { // those before are answered a second time
					answers[k] = fmt.Appendf(nil, `{"a":"answer%d"}`, i)
				}
				updateTask(t, s, id, answers)
			}
			pass(time.Second)
			record, task := w.stored(id)
			wantStatus(t, task, shim.Completed)
			if strings.Contains(record, "answer") || strings.Contains(record, "sampling") {
				t.Errorf("the record of the end has %s", record)
			}
			if name == "legacy" {
				for i := range n {
					if want := fmt.Sprintf(`{"a":"answer%d"}`, i); !strings.Contains(string(read(t, s, id).Outcome.Result), want) {
						t.Errorf("the server did not get %s", want)
					}
				}
			}
		})
	}
}

// A parked call whose answers are forgotten still knows that it had them: who brings them again is
// asked what is open now.
func TestForgottenAnswersAreIgnored(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := asksTwice(0)
		s, other := w.gateway("r1", u, policy(shim.Never)), w.gateway("r2", u, policy(shim.Never))
		p := parked(t, s, askable(shim.AskPark), "a")
		c := askable(shim.AskPark)
		a, err := other.Reattach(t.Context(), c, p.ID, results("a"))
		if err != nil || a.Parked == nil {
			t.Fatalf("%+v, %v", a, err)
		}
		if record, _ := w.stored(p.ID); strings.Contains(record, `"to":"a"`) {
			t.Errorf("the answer is still there: %s", record)
		}
		for _, r := range []*engine.Shim{s, other} {
			again, err := r.Reattach(t.Context(), c, p.ID, results("a"))
			if err != nil || again.Parked == nil {
				t.Fatalf("the same answer again: %+v, %v", again, err)
			}
			wantKeys(t, again.Parked.Questions, "b")
		}
		a, err = s.Reattach(t.Context(), c, p.ID, results("b", "nobody"))
		if err != nil || a.Parked != nil {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// asksLittle is a policy whose calls may ask three questions, two at once.
func asksLittle() shim.Policy {
	p := policy(shim.Auto)
	p.Questions = shim.QuestionLimits{Most: 3, Open: 2, Bytes: 40, AnswerBytes: 60}
	return p
}

// A modern server that asks for too much ends its call: there is nothing else to tell it.
func TestRoundsThatAskTooMuch(t *testing.T) {
	for name, c := range map[string]struct {
		script []string
		rounds int // those that are asked
		says   string
	}{
		"at once":  {[]string{"s1 s2 s3"}, 0, "too many questions at once: 2 of one call"},
		"in all":   {[]string{"s1 s2", "s3 s4"}, 1, "too many questions: one call may ask 3"},
		"too much": {[]string{"s1", "sssssssssssssssssssssssssssssssssssssssss"}, 1, "40 bytes together"},
		"enough":   {[]string{"s1 s2", "s3"}, 2, ""},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := asksInRounds(0, c.script...)
			s := w.gateway("r1", u, asksLittle())
			first := taskCall()
			first.Demand = true
			id := begin(t, s, first).ID
			for range c.rounds {
				pass(time.Second)
				task := read(t, s, id)
				wantStatus(t, task, shim.InputRequired)
				answers := map[string]json.RawMessage{}
				for _, q := range task.Questions {
					answers[q.Key] = json.RawMessage(`{}`)
				}
				updateTask(t, s, id, answers)
			}
			pass(time.Second)
			task := read(t, s, id)
			if c.says == "" {
				wantStatus(t, task, shim.Completed)
				return
			}
			wantStatus(t, task, shim.Failed)
			if text := string(task.Outcome.Error); !strings.Contains(text, c.says) || !strings.Contains(text, "-32603") {
				t.Errorf("it failed with %s", text)
			}
			if n := int(u.calls.Load()); n != c.rounds+1 {
				t.Errorf("the server was called %d times", n)
			}
		})
	}
}

// What is no answer, or too large a one, is refused and changes nothing; what nobody
// asked for is ignored, whatever it is (T36).
func TestAnswersThatAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(0, "a", "b")
		s := w.checking("r1", u, asksLittle())
		c := taskCall()
		c.Handle = false
		p := parked(t, s, c, "a", "b")
		refused := func(err error, key, reason string) {
			t.Helper()
			var bad *shim.AnswerError
			if !errors.As(err, &bad) || bad.Key != key || !strings.Contains(bad.Reason, reason) || strings.Contains(err.Error(), "secret") {
				t.Errorf("refused with %v", err)
			}
			if _, task := w.stored(p.ID); task.Questions[0].Answer != nil || task.Questions[1].Answer != nil {
				t.Errorf("stored %+v", task.Questions)
			}
		}
		bad := map[string]json.RawMessage{"a": json.RawMessage(`{}`), "b": json.RawMessage(`{"bad":"secret"}`)}
		large := map[string]json.RawMessage{"a": fmt.Appendf(nil, `{"a":"secret%0100d"}`, 0), "nobody": bad["b"]}
		for answers, want := range map[*map[string]json.RawMessage][2]string{&bad: {"b", "is not valid: it is bad"}, &large: {"a", "too large"}} {
			_, err := s.Reattach(t.Context(), c, p.ID, *answers)
			refused(err, want[0], want[1])
		}
		// Together they are too large, one by one they are not.
		half := fmt.Appendf(nil, `{"a":"%020d"}`, 0)
		_, err := s.Reattach(t.Context(), c, p.ID, map[string]json.RawMessage{"a": half, "b": half})
		refused(err, "b", "too large")
		if a, err := s.Reattach(t.Context(), c, p.ID, map[string]json.RawMessage{"b": half}); err != nil || a.Parked == nil {
			t.Errorf("%+v, %v", a, err)
		}
		if _, err := s.Reattach(t.Context(), c, p.ID, map[string]json.RawMessage{"a": half}); err == nil {
			t.Error("two together were taken, one after the other")
		}
		a, err := s.Reattach(t.Context(), c, p.ID, map[string]json.RawMessage{"a": json.RawMessage(`{}`), "b": bad["b"]})
		wantReply(t, a, err, `{"answers":[{},`+string(half)+`]}`)
	})
}

// Of an answer that comes by itself, from a client that will not give another, the server
// hears what was wrong with it.
func TestAnswersThatAreReplaced(t *testing.T) {
	large := strings.Repeat("secret", 10)
	for name, c := range map[string]struct {
		answer shim.Answer
		want   string
	}{
		"bad":         {shim.Answer{Result: json.RawMessage(`{"bad":"secret"}`)}, "the client's answer is not valid: it is bad"},
		"large":       {shim.Answer{Result: fmt.Appendf(nil, `{"a":%q}`, large)}, "the client's answer is too large"},
		"large error": {shim.Answer{Error: &shim.RPCError{Code: -1, Message: large}}, "the client's answer is too large"},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			s := w.checking("r1", elicits(0, "a"), asksLittle())
			id := begin(t, s, taskCall()).ID
			must(t, s.Answer(t.Context(), anyone, "up", id, "a", c.answer))
			pass(time.Second)
			got := read(t, s, id)
			wantStatus(t, got, shim.Completed)
			if want := fmt.Sprintf(`{"answers":[%q]}`, c.want); string(got.Outcome.Result) != want {
				t.Errorf("the server got %s, want %s", got.Outcome.Result, want)
			}
		})
	}
}

// checking is gateway with a check of answers: those that say they are bad are.
func (w *world) checking(name string, u shim.Upstream, p shim.Policy) *engine.Shim {
	return w.gatewayOf(name, serves(u, p), func(o *engine.Options) {
		o.CheckAnswer = func(_ string, result json.RawMessage) string {
			if strings.Contains(string(result), `"bad"`) {
				return "it is bad"
			}
			return ""
		}
	})
}

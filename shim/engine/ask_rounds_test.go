package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// rounds is a server that asks with its results: script has the questions of each
// round by the server's own names, "" for none, and the last answer follows.
type rounds struct {
	scripted
	mu   sync.Mutex
	sent []string // what each request came with
}

func asksInRounds(d time.Duration, script ...string) *rounds {
	u := &rounds{}
	u.call = sending(func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
		u.mu.Lock()
		n := len(u.sent)
		u.sent = append(u.sent, came(r))
		u.mu.Unlock()
		if _, err := after(ctx, d); err != nil {
			return shim.Reply{}, err
		}
		if n >= len(script) {
			return shim.Reply{Result: json.RawMessage(result)}, nil
		}
		round := &shim.Round{State: json.RawMessage(fmt.Sprintf(`"state %d"`, n+1))}
		for _, name := range strings.Fields(script[n]) {
			q := questions(name)[0]
			round.Questions = append(round.Questions, q)
		}
		reply := shim.Reply{Result: json.RawMessage(`{"resultType":"input_required"}`), InputRequired: true}
		if r.Rounds || len(round.Questions) == 0 {
			reply.Round = round
		}
		return reply, nil
	})
	return u
}

// came spells what a request was made with.
func came(r shim.Request) string {
	if r.Retry == nil {
		return string(r.Params)
	}
	answers, _ := json.Marshal(r.Retry.Answers)
	return string(answers) + " " + string(r.Retry.State) + " " + string(r.Params)
}

func (u *rounds) requests() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Join(u.sent, "\n")
}

const params = `{"name":"slow","arguments":{"n":9007199254740993}}`

func TestRoundsInATask(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := asksInRounds(time.Second, "a b", "", "a")
		s, other := w.gateway("r1", u, policy(shim.Always)), w.gateway("r2", u, policy(shim.Always))
		c := taskCall()
		c.Request.Relay = true
		task := begin(t, s, c)
		pass(2 * time.Second)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.InputRequired)
		wantKeys(t, got.Questions, "q1", "q2")
		update := func(answers map[string]json.RawMessage) {
			t.Helper()
			updateTask(t, other, task.ID, answers)
		}
		update(results("q2", "a"))
		update(results("q1"))
		pass(10 * time.Second)
		got = read(t, s, task.ID)
		wantStatus(t, got, shim.InputRequired)
		if q := got.Questions[2]; q.Key != "q3" || !q.Outstanding() { // the same name is another question (T39)
			t.Errorf("%+v", got.Questions)
		}
		update(results("q3", "q1"))
		pass(2 * time.Second)
		got = read(t, s, task.ID)
		wantStatus(t, got, shim.Completed)
		if string(got.Outcome.Result) != result {
			t.Errorf("%s", got.Outcome.Result)
		}
		want := params + "\n" + `{"a":{"to":"q1"},"b":{"to":"q2"}} "state 1" ` + params + "\n" +
			`null "state 2" ` + params + "\n" + `{"a":{"to":"q3"}} "state 3" ` + params
		if u.requests() != want {
			t.Errorf("the server got\n%s", u.requests())
		}
	})
}

// Before there is a task, a client that can answers such questions itself.
func TestRoundsAreRelayed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := asksInRounds(time.Second, "a")
		s := w.gateway("r1", u, policy(shim.Auto))
		c := taskCall()
		c.Request.Relay = true
		got, err := s.Call(t.Context(), c)
		if err != nil || !got.Reply.InputRequired || w.store.creates.Load() != 0 {
			t.Fatalf("%+v, %v, %d records", got, err, w.store.creates.Load())
		}
	})
}

func TestRoundsOnTheCallsStream(t *testing.T) {
	decline := shim.Answer{Error: &shim.RPCError{Code: -1, Message: "private"}}
	for name, c := range map[string]struct {
		asks   string
		answer shim.Answer
		reply  string
		sent   string
	}{
		"answered":             {"a", shim.Answer{Result: json.RawMessage(`{"action":"accept"}`)}, result, `{"a":{"action":"accept"}}`},
		"refused elicitation":  {"a", decline, result, `{"a":{"action":"cancel"}}`},
		"refused sampling":     {"s", decline, "the client did not answer what the server needs to know", ""},
		"unanswered, sampling": {"s", shim.Answer{}, "the client did not answer what the server needs to know", ""},
	} {
		hoursOf(t, name, func(t *testing.T, w *world) {
			u := asksInRounds(time.Second, c.asks)
			s := w.gateway("r1", u, policy(shim.Auto))
			stream := &relayed{}
			req := legacy(stream)
			k := calls(t, s, req)
			pass(2 * time.Second)
			wantKeys(t, stream.asked, "q1")
			if c.answer.Result != nil || c.answer.Error != nil {
				must(t, s.Answer(t.Context(), req.Principal, "up", stream.id, "q1", c.answer))
			}
			<-k.done
			got := string(k.a.Reply.Result)
			if k.a.Reply.Error != nil {
				got = k.a.Reply.Error.Message
			}
			if k.err != nil || got != c.reply {
				t.Errorf("%s, %v", got, k.err)
			}
			if c.sent != "" && !strings.Contains(u.requests(), c.sent) || c.sent == "" && u.calls.Load() != 1 {
				t.Errorf("the server got\n%s", u.requests())
			}
		})
	}
}

func TestRoundsAreBounded(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := asksInRounds(0, strings.Split(strings.Repeat(",", 1000), ",")...)
		s := w.gateway("r1", u, policy(shim.Auto))
		k := calls(t, s, legacy(nil))
		<-k.done
		if k.a.Reply.Error == nil || u.calls.Load() != 101 {
			t.Errorf("%+v, %v after %d calls", k.a, k.err, u.calls.Load())
		}
	})
}

// A client that cannot be asked is not: the task fails.
func TestRoundsForWhoCannotBeAsked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := asksInRounds(time.Second, "a")
		s := w.gateway("r1", u, policy(shim.Always))
		task := begin(t, s, call())
		pass(2 * time.Second)
		wantStatus(t, read(t, s, task.ID), shim.Failed)
	})
}

// A server that asks for nothing but to be called again is called again, also where the
// client cannot be asked (protocol.md 2.7).
func TestRoundsWithoutQuestions(t *testing.T) {
	for _, mode := range []shim.Mode{shim.Always, shim.Never} {
		bubbleOf(t, string(mode), func(t *testing.T, w *world) {
			u := asksInRounds(time.Second, "", "")
			s := w.gateway("r1", u, policy(mode))
			k := calls(t, s, call())
			<-k.done
			pass(10 * time.Second)
			got := string(k.a.Reply.Result)
			if k.a.Task != nil {
				got = string(read(t, s, k.a.Task.ID).Outcome.Result)
			}
			if k.err != nil || got != result {
				t.Errorf("%s, %v", got, k.err)
			}
			if want := params + "\n" + `null "state 1" ` + params + "\n" + `null "state 2" ` + params; u.requests() != want {
				t.Errorf("the server got\n%s", u.requests())
			}
		})
	}
}

// MRTR rounds come first, then a task, then questions in the task (T21).
func TestEarlyInputByRounds(t *testing.T) {
	for name, where := range map[string]int{"same replica": 0, "another replica": 1} {
		hoursOf(t, name, func(t *testing.T, w *world) {
			u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
				first, err := s.Ask(ctx, questions("a")...)
				if err != nil {
					return shim.Reply{}, err
				}
				if _, err := after(ctx, 8*time.Second); err != nil {
					return shim.Reply{}, err
				}
				more, err := s.Ask(ctx, questions("b")...)
				return shim.Reply{Result: json.RawMessage(spell(append(first, more...)))}, err
			}}
			p := policy(shim.Auto)
			p.EarlyInput = shim.EarlyMRTR
			gateways := []*engine.Shim{w.gateway("r1", u, p), w.gateway("r2", u, p)}
			c := taskCall()
			stored := parked(t, gateways[0], c, "a")
			began := time.Now()
			got, err := gateways[where].Reattach(t.Context(), c, stored.ID, results("a"))
			if err != nil || got.Task == nil || got.Task.ID != stored.ID || time.Since(began) != p.Grace {
				t.Fatalf("after %v: %+v, %v", time.Since(began), got, err)
			}
			synctest.Wait()
			wantStatus(t, read(t, gateways[1], stored.ID), shim.Working)
			pass(4 * time.Second)
			task := read(t, gateways[1], stored.ID)
			wantStatus(t, task, shim.InputRequired)
			if task.Retain != time.Hour || task.TTL < time.Hour {
				t.Errorf("kept for %v, promised %v", task.Retain, task.TTL)
			}
			pass(5 * time.Minute)
			updateTask(t, gateways[1], stored.ID, results("b"))
			pass(time.Second)
			wantResult(t, gateways[0], stored.ID, `{"answers":[{"to":"a"},{"to":"b"}]}`)
			pass(55 * time.Minute)
			wantStatus(t, read(t, gateways[0], stored.ID), shim.Completed)
		})
	}
}

func TestOtherMethodsCanBeAsked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(time.Second, "a")
		s := w.gatewayFor("r1", shim.Server{
			Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return policy(shim.Required) }, Concurrency: 1,
			Other: shim.Policy{Tasks: shim.Always, InputTimeout: time.Minute},
		})
		c := askable(shim.AskPark)
		c.Handle = true
		c.Request = shim.Request{Method: "prompts/get", Name: "p", Params: json.RawMessage(`{"name":"p"}`)}
		first, second := parked(t, s, c, "a"), parked(t, s, c, "a")
		got, err := s.Reattach(t.Context(), c, second.ID, results("a"))
		wantReply(t, got, err, `{"answers":[{"to":"a"}]}`)
		pass(time.Minute)
		got, err = s.Reattach(t.Context(), c, first.ID, results("a"))
		wantReply(t, got, err, `{"answers":[{"action":"cancel"}]}`)
	})
}

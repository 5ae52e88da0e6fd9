package engine_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
)

// refuses is a server that does not begin a call before something is agreed to, so many
// times.
func refuses(times int) *rounds {
	u := &rounds{}
	u.call = sending(func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.sent = append(u.sent, came(r))
		if len(u.sent) > times {
			return shim.Reply{Result: json.RawMessage(result)}, nil
		}
		reply := shim.Reply{Error: &shim.RPCError{Code: -32042, Message: "open a page"}}
		if r.Rounds {
			reply.Round = &shim.Round{Questions: questions("page"), Again: true}
		}
		return reply, nil
	})
	return u
}

// What has to be agreed to before a call is begun is asked in its task. Then the call is
// made again as it was, and not faster and faster for a client that agrees by itself.
// A replica that is lost meanwhile changes nothing.
func TestAgreedFirst(t *testing.T) {
	for name, lost := range map[string]bool{"same replica": false, "adopted": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			u := refuses(2)
			s := w.gateway("r1", u, policy(shim.Always))
			c := taskCall()
			var id shim.ID
			if lost {
				pass(6 * time.Second)
				id = w.lost(u, policy(shim.Always), c, time.Second).Task.ID
				pass(time.Minute)
			} else {
				id = begin(t, s, c).ID
			}
			for i, key := range []string{"q1", "q2"} {
				pass(time.Duration(i) * time.Second)
				task := read(t, s, id)
				wantStatus(t, task, shim.InputRequired)
				wantKeys(t, task.Questions[i:], key)
				updateTask(t, s, id, map[string]json.RawMessage{key: json.RawMessage(`{"action":"accept"}`)})
				pass(0)
			}
			end := read(t, s, id)
			wantStatus(t, end, shim.Completed)
			if want := params + strings.Repeat("\nnull  "+params, 2); u.requests() != want {
				t.Errorf("the server got\n%s", u.requests())
			}
		})
	}
}

// Whoever does not agree, or does not answer, gets an error, and the call is not made
// again; a caller with a stream of its own gets the server's, which it knows.
func TestNotAgreedFirst(t *testing.T) {
	for name, answer := range map[string]string{"declined": `{"action":"decline"}`, "nonsense": `{"action":7}`, "silence": ""} {
		hoursOf(t, name, func(t *testing.T, w *world) {
			u := refuses(1)
			s := w.gateway("r1", u, policy(shim.Always))
			id := begin(t, s, taskCall()).ID
			pass(time.Second)
			if answer != "" {
				updateTask(t, s, id, map[string]json.RawMessage{"q1": json.RawMessage(answer)})
			}
			pass(11 * time.Minute)
			end := read(t, s, id)
			wantStatus(t, end, shim.Failed)
			if !strings.Contains(string(end.Outcome.Error), "did not agree") || u.calls.Load() != 1 {
				t.Errorf("%s after %d calls", end.Outcome.Error, u.calls.Load())
			}
		})
	}
	hours(t, func(t *testing.T, w *world) {
		u := refuses(1)
		s := w.gateway("r1", u, policy(shim.Auto))
		k := calls(t, s, legacy(&relayed{}))
		<-k.done
		if k.err != nil || k.a.Reply.Error == nil || k.a.Reply.Error.Code != -32042 || u.calls.Load() != 1 {
			t.Errorf("%+v, %v after %d calls", k.a, k.err, u.calls.Load())
		}
	})
}

// A server may ask beside the stream of the call, on which it talks on meanwhile.
func TestAskedBesideTheStream(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			var answers []shim.Answer
			var beside sync.WaitGroup
			beside.Go(func() {
				answers, _ = s.Ask(ctx, questions("a")...)
				_ = s.Checkpoint(json.RawMessage(`{"asked":1}`))(ctx)
			})
			for range 20 {
				_, _ = after(ctx, time.Second)
				s.Progress(shim.Progress{Message: "on", Raw: json.RawMessage(`{}`)})
				s.Log(shim.Log{Level: "info", Raw: json.RawMessage(`{}`)})
			}
			beside.Wait()
			return shim.Reply{Result: json.RawMessage(spell(answers))}, nil
		}}
		s := w.gateway("r1", u, policy(shim.Auto))
		stream := &relayed{}
		req := legacy(stream)
		k := calls(t, s, req)
		pass(10 * time.Second)
		wantKeys(t, stream.asked, "a")
		answerTask(t, s, req.Principal, stream.id, "a", `{"x":1}`)
		<-k.done
		wantReply(t, k.a, k.err, `{"answers":[{"x":1}]}`)
		if stream.progress != 20 {
			t.Errorf("%d progress notifications", stream.progress)
		}
	})
}

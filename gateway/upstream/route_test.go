package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// asksIn is a call in a session whose sink can be asked.
func asksIn(key, caps string) shim.Request {
	r := in(key, caps)
	r.Rounds = true
	return r
}

// aloft is a call under way.
type aloft struct {
	cancel context.CancelCauseFunc
	done   chan error
}

// aloftIn makes a call and waits until the server has begun it.
func aloftIn(t *testing.T, h *ServerClient, r shim.Request, s shim.Sink) *aloft {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	f := &aloft{cancel: cancel, done: make(chan error, 1)}
	go func() {
		_, err := h.Call(ctx, r, s)
		f.done <- err
	}()
	synctest.Wait()
	return f
}

// held is a tool that answers when it may. It sends the head of its answer before, or
// not, as servers do that answer in JSON.
func held(may <-chan struct{}, head bool) fake.Behaviour {
	return func(x *fake.Exchange) {
		x.Run()
		if head {
			x.Head("text/event-stream")
			x.Comment()
		}
		<-may
		if head {
			x.Event(x.Fill(result))
			return
		}
		fake.Text("ok")(x)
	}
}

// ended waits for the end of a call.
func (a *aloft) ended(t *testing.T) {
	t.Helper()
	check(t, <-a.done)
}

// leave ends a call for a reason, and wants it to end so.
func (a *aloft) leave(t *testing.T, cause error) {
	t.Helper()
	a.cancel(cause)
	if err := <-a.done; !errors.Is(err, cause) {
		t.Errorf("the call ended with %v", err)
	}
}

// What a server asks on the GET stream goes to the newest call of the session whose
// client declared the kind, whether the call's own stream has begun or not, and the
// answer goes back under the id that the server gave. There is one stream for all.
func TestAskedOnGET(t *testing.T) {
	for _, head := range []bool{true, false} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			may := make(chan struct{})
			s.Tool("t", held(may, head))
			older, newer := &shimtest.Sink{OnAsk: answering}, &shimtest.Sink{OnAsk: answering}
			one := aloftIn(t, h, asksIn("a", all), older)
			two := aloftIn(t, h, asksIn("a", all), newer)
			if n := len(s.Seen("GET")); n != 1 || s.Listeners() != 1 {
				t.Errorf("%d GET streams for two calls", n)
			}
			got := s.Request(`"x1"`, "elicitation/create", elicit)
			if want := `{"jsonrpc":"2.0","id":"x1","result":{"to":"elicitation/create"}}`; string(got) != want {
				t.Errorf("server got %s, want %s", got, want)
			}
			if len(older.Asked()) != 0 || len(newer.Asked()) != 1 {
				t.Errorf("asked %v and %v", older.Asked(), newer.Asked())
			}
			if got := s.Request(`6`, "tasks/list", `{}`); !strings.Contains(string(got), "-32601") {
				t.Errorf("what nobody can answer: %s", got)
			}
			close(may)
			one.ended(t)
			two.ended(t)
			mustCall(t, h, asksIn("a", all)) // nil sink: cannot be asked
			asked(t, s, "GET", 1)
			pauseFor(t, keepUnused+linger)
			if s.Listeners() != 0 {
				t.Error("the stream is held though no call was made for long")
			}
		})
	}
}

// Questions that come together are asked together, and with those on the call's own
// stream one Ask at a time, and no key is used twice. The server may be silent while it waits for an answer.
func TestAskedOnGETInTurns(t *testing.T) {
	bubble(t, fake.Stateful, Config{IdleTimeout: time.Minute}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		own, may := make(chan json.RawMessage, 1), make(chan struct{})
		s.Tool("t", func(x *fake.Exchange) {
			own <- x.Ask(`1`, "roots/list", `{}`)
			<-may
			x.Event(x.Fill(result))
		})
		var asking, most, asks int
		sink := &shimtest.Sink{OnAsk: func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
			asks++
			asking++
			most = max(most, asking)
			_ = work.Pause(ctx, time.Hour)
			asking--
			return answering(ctx, q...)
		}}
		f := aloftIn(t, h, asksIn("a", all), sink)
		pauseFor(t, time.Second) // the one on the call's stream is under way
		got := make(chan json.RawMessage, 2)
		for _, id := range []string{`2`, `3`} {
			go func() { got <- s.Request(id, "elicitation/create", elicit) }()
		}
		for range 2 {
			if b := <-got; !strings.Contains(string(b), `"to":"elicitation/create"`) {
				t.Errorf("server got %s", b)
			}
		}
		if b := <-own; !strings.Contains(string(b), `"to":"roots/list"`) {
			t.Errorf("on its own stream the server got %s", b)
		}
		close(may)
		f.ended(t)
		keys := map[string]bool{}
		for _, q := range sink.Asked() {
			keys[q.Key] = true
		}
		if most != 1 || asks != 2 || len(keys) != 3 {
			t.Errorf("%d at a time, %d times, %v", most, asks, sink.Asked())
		}
	})
}

// Questions that come together are asked together, wherever the server asks them. Each
// gets its own answer, also if another one was withdrawn meanwhile.
func TestAskedTogether(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		own, may := make(chan json.RawMessage, 1), make(chan struct{})
		s.Tool("t", func(x *fake.Exchange) {
			own <- x.Ask(`1`, "roots/list", `{}`)
			<-may
			x.Event(x.Fill(result))
		})
		sizes := make(chan int, 9)
		sink := &shimtest.Sink{OnAsk: func(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
			sizes <- len(q)
			_ = work.Pause(ctx, time.Minute)
			return answering(ctx, q...)
		}}
		f := aloftIn(t, h, asksIn("a", all), sink)
		got := make(chan json.RawMessage, 2)
		go s.Request(`2`, "elicitation/create", elicit)
		synctest.Wait()
		go func() { got <- s.Request(`3`, "sampling/createMessage", `{}`) }()
		pauseFor(t, time.Second)
		s.Notify("notifications/cancelled", `{"requestId":2}`)
		if b := <-got; !strings.Contains(string(b), `"to":"sampling/createMessage"`) {
			t.Errorf("server got %s", b)
		}
		if b := <-own; !strings.Contains(string(b), `"to":"roots/list"`) {
			t.Errorf("on its own stream the server got %s", b)
		}
		close(may)
		f.ended(t)
		if len(sizes) != 1 || <-sizes != 3 || len(s.Seen("POST")) != 2 {
			t.Errorf("asked %v, and %d answers", sink.Asked(), len(s.Seen("POST")))
		}
	})
}

// A question that the server withdraws while others are gathered is not asked.
func TestWithdrawnWhileGathering(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			x.Event(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":` + elicit + `}`)
			_ = work.Pause(x.R.Context(), gather/2)
			x.Event(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
			x.Ask(`8`, "roots/list", `{}`)
			_ = work.Pause(x.R.Context(), time.Minute)
			x.Event(x.Fill(result))
		})
		sink := &shimtest.Sink{OnAsk: answering}
		must(t, errorOf(callIn(t, h, all, sink)))
		if q := sink.Asked(); len(q) != 1 || q[0].Method != "roots/list" || len(s.Seen("")) != 1 {
			t.Errorf("asked %v, and %d answers", q, len(s.Seen("")))
		}
	})
}

// What is still asked when the call ends is withdrawn from the client, and the server
// is told; so is what the server withdraws itself, without an answer.
func TestAskedOnGETAndOver(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *fake.Server, may chan struct{}, f *aloft)
		told string
	}{
		{"answered", func(_ *fake.Server, may chan struct{}, _ *aloft) { close(may) }, "-32603"},
		{"cancelled", func(_ *fake.Server, _ chan struct{}, f *aloft) { f.cancel(shim.ErrCancelled) }, "-32603"},
		{"withdrawn", func(s *fake.Server, may chan struct{}, _ *aloft) {
			s.Notify("notifications/cancelled", `{"requestId":9}`)
			synctest.Wait()
			close(may)
		}, ""},
		{"detached", func(_ *fake.Server, _ chan struct{}, f *aloft) { f.cancel(shim.ErrDetached) }, ""},
	} {
		bubbleOf(t, c.name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			may := make(chan struct{})
			s.Tool("t", held(may, true))
			var why error
			sink := &shimtest.Sink{OnAsk: func(ctx context.Context, _ ...shim.Question) ([]shim.Answer, error) {
				<-ctx.Done()
				why = context.Cause(ctx)
				return nil, why
			}}
			f := aloftIn(t, h, asksIn("a", all), sink)
			var got json.RawMessage
			go func() { got = s.Request(`9`, "elicitation/create", elicit) }()
			pauseFor(t, time.Second)
			if len(sink.Asked()) != 1 {
				t.Fatalf("asked %v", sink.Asked())
			}
			c.end(s, may, f)
			<-f.done
			synctest.Wait()
			if why == nil || !strings.Contains(string(got), c.told) || c.told == "" && got != nil {
				t.Errorf("the client was told %v, the server %s", why, got)
			}
			left := strings.Contains(string(sink.Latest()), `"pending"`)
			if c.name == "detached" && !left || c.name == "withdrawn" && left { // after an end it does not matter
				t.Errorf("checkpoint %s", sink.Latest())
			}
			if c.name == "cancelled" || c.name == "detached" {
				close(may)
			}
		})
	}
}

// A call that ends when it is about to be asked is not, and the server is told.
func TestAskedOnGETTooLate(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		sink := silent()
		f := aloftIn(t, h, asksIn("a", all), sink)
		got := make(chan json.RawMessage, 1)
		go func() { got <- s.Request(`1`, "elicitation/create", elicit) }()
		synctest.Wait()
		close(may)
		f.ended(t)
		if told := <-got; !strings.Contains(string(told), "-32603") || len(sink.Asked()) != 0 {
			t.Errorf("the server was told %s, and the client asked %v", told, sink.Asked())
		}
	})
}

// A call that is let go of takes its questions along: whoever resumes it asks them
// under the same keys, and the server gets one answer to each.
func TestAskedOnGETAndAdopted(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		may := make(chan struct{})
		s.Tool("t", func(x *fake.Exchange) {
			x.Run()
			x.Resumable(0, 0, func(send func(string)) {
				send(`{"jsonrpc":"2.0","method":"notifications/x"}`)
				<-may
				send(x.Fill(result))
			})
		})
		sink := silent()
		f := aloftIn(t, h, asksIn("a", all), sink)
		answers := make(chan json.RawMessage, 1)
		go func() { answers <- s.Request(`9`, "elicitation/create", elicit) }()
		pauseFor(t, 2*time.Second)
		f.leave(t, shim.ErrDetached)
		next := &shimtest.Sink{OnAsk: answering}
		done := make(chan error, 1)
		go func() {
			_, err := h.Resume(t.Context(), asksIn("a", all), sink.Latest(), next)
			done <- err
		}()
		if got := <-answers; !strings.Contains(string(got), `"to":"elicitation/create"`) {
			t.Errorf("server got %s", got)
		}
		synctest.Wait()
		close(may)
		check(t, <-done)
		was, is := sink.Asked(), next.Asked()
		if len(was) != 1 || len(is) != 1 || was[0].Key != is[0].Key {
			t.Errorf("asked %v, then %v", was, is)
		}
		if strings.Contains(string(next.Latest()), `"pending"`) || s.Runs("k") != 1 {
			t.Errorf("checkpoint %s after %d runs", next.Latest(), s.Runs("k"))
		}
	})
}

// Who cannot be asked needs no stream, and neither does a server that has none: it is
// not asked for one again with each call. One whose head comes late, or that refuses a
// second stream, costs a moment once.
func TestAskedOnGETCosts(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", all))
		mustCall(t, h, asksIn("a", `{}`))
		asked(t, s, "GET", 0)
		s.On("GET", fake.Status(http.StatusMethodNotAllowed, "", ""))
		for range 3 {
			mustCall(t, h, asksIn("a", all))
			mustCall(t, h, asksIn("b", all))
		}
		if n := len(s.Seen("GET")); n > 1 {
			t.Errorf("%d requests for a stream that the server does not have", n)
		}
		pauseFor(t, noStreamFor)
		s.On("GET", func(x *fake.Exchange) { x.Hang() }) // no head
		begin := time.Now()
		for range 3 {
			mustCall(t, h, asksIn("a", all))
			pauseFor(t, 2*linger)
		}
		if took := time.Since(begin) - 6*linger; took != headWait {
			t.Errorf("three calls waited %v for a head that does not come, want %v", took, headWait)
		}
		s.On("GET", fake.Status(http.StatusConflict, "", ""))
		h.sessions.support.late.Store(false)
		begin = time.Now()
		mustCall(t, h, asksIn("a", all))
		if took := time.Since(begin); took != 0 {
			t.Errorf("waited %v for a stream that another has", took)
		}
	})
}

// A server that asks without end is refused at some point, and asks nobody twice.
func TestAskedOnGETTooMuch(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		sink := silent()
		f := aloftIn(t, h, asksIn("a", all), sink)
		refused := make(chan json.RawMessage, 2*maxSessionQuestions)
		for i := range maxSessionQuestions + 5 {
			go func() { refused <- s.Request(fmt.Sprint(i), "roots/list", `{}`) }()
		}
		synctest.Wait()
		if n := len(refused); n != 5 {
			t.Errorf("%d refused, want 5", n)
		}
		close(may)
		f.ended(t)
		synctest.Wait()
		if n := len(refused); n != maxSessionQuestions+5 {
			t.Errorf("the server was answered %d times, want %d", n, maxSessionQuestions+5)
		}
	})
}

// That an elicitation by URL is complete goes to whoever listens in the session, and
// else to the call that is left, once.
func TestElicitationComplete(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		sink := &completing{}
		f := aloftIn(t, h, asksIn("a", all), sink)
		s.Notify("notifications/elicitation/complete", `{"elicitationId":"1"}`)
		synctest.Wait()
		ctx, stop := context.WithCancel(t.Context())
		heard, done := make(chan shim.Notification, 9), make(chan error, 1)
		go func() {
			done <- h.Listen(ctx, asksIn("a", all).Session, shim.Filter{Elicitations: true}, func(shim.Filter) {},
				func(n shim.Notification) { heard <- n })
		}()
		synctest.Wait()
		s.Notify("notifications/elicitation/complete", `{"elicitationId":"2"}`)
		synctest.Wait()
		if len(heard) != 1 || strings.Join(sink.completed, " ") != `{"elicitationId":"1"}` {
			t.Errorf("listener heard %d, call %v", len(heard), sink.completed)
		}
		stop()
		<-done
		close(may)
		f.ended(t)
	})
}

// completing is a Sink that wants to hear of completions.
type completing struct {
	shimtest.Sink
	completed []string
}

func (c *completing) Completed(p json.RawMessage) { c.completed = append(c.completed, string(p)) }

// A server that refuses to begin before pages are opened asks for them, if this client
// can be asked for all of them; otherwise that is an error like any other.
func TestOpenFirst(t *testing.T) {
	page := `{"mode":"url","elicitationId":"e","url":"https://x.example/","message":"m"}`
	for _, c := range []struct {
		caps, data string
		rounds     bool
		want       int
	}{
		{all, `{"elicitations":[` + page + `,` + page + `]}`, true, 2},
		{all, `{"elicitations":[` + page + `]}`, false, 0},
		{`{"elicitation":{}}`, `{"elicitations":[` + page + `]}`, true, 0},
		{all, `{"elicitations":[` + page + `,{"mode":"form","message":"m"}]}`, true, 0},
		{all, `{"elicitations":[{"mode":"url"}]}`, true, 0},
		{all, `{"elicitations":[7]}`, true, 0},
		{all, `{"elicitations":{}}`, true, 0},
		{all, ``, true, 0},
	} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.RPCError(200, -32042, "open a page", c.data))
			r := in("a", c.caps)
			r.Rounds = c.rounds
			reply, err := h.Call(t.Context(), r, &shimtest.Sink{})
			if err != nil || reply.Error == nil || reply.Error.Code != -32042 {
				t.Fatalf("%+v, %v", reply, err)
			}
			if reply.Round == nil != (c.want == 0) || c.want > 0 && (len(reply.Round.Questions) != c.want || !reply.Round.Again) {
				t.Errorf("%s %s: round %+v", c.caps, c.data, reply.Round)
			}
		})
	}
}

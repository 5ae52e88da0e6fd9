package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// askedWithin has the server ask on the GET streams, and returns what it is told within a
// minute.
func askedWithin(s *fake.Server, id string) string {
	got := make(chan json.RawMessage, 1)
	go func() { got <- s.Request(id, "elicitation/create", elicit) }()
	select {
	case b := <-got:
		return string(b)
	case <-time.After(time.Minute):
		return ""
	}
}

// A server that was started anew refuses the GET stream of a session that it has
// forgotten. That does not say that it has no such streams.
func TestAskedAfterRestart(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", all))
		mustCall(t, h, in("b", all))
		s.LoseSessions()
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		for i, key := range []string{"a", "b"} {
			begin := time.Now()
			f := aloftIn(t, h, asksIn(key, all), &shimtest.Sink{OnAsk: answering})
			if told := askedWithin(s, fmt.Sprint(i)); !strings.Contains(told, `"to":`) {
				t.Errorf("session %s: the server was told %q", key, told)
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("session %s: after %v", key, took)
			}
			defer f.ended(t)
		}
		close(may)
		synctest.Wait()
		wantSessions(t, s, 4, 0, 2)
	})
}

// Who begins to listen when the server has been started anew listens in the next session.
func TestListenAfterRestart(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		s.LoseSessions()
		e := hear(t, h, "a", everything)
		if len(e.agreed) != 1 || !e.agreed[0].ToolsListChanged || len(e.agreed[0].Resources) != 2 {
			t.Fatalf("agreed to %+v", e.agreed)
		}
		s.Notify("notifications/tools/list_changed", `{}`)
		synctest.Wait()
		if !strings.Contains(e.methods(), "tools/list_changed") {
			t.Errorf("heard %q", e.methods())
		}
		e.end(t)
	})
}

// A session that a call finds to be lost moves with all that is in it: the GET stream, which
// the server has not closed, and what is subscribed to.
func TestSessionMovesTogether(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		e := hear(t, h, "a", everything)
		s.LoseSessions()
		mustCall(t, h, in("a", ``))
		wantSessions(t, s, 2, 0, 1)
		if s.Listeners() != 1 || len(s.Seen("resources/subscribe")) != 4 {
			t.Errorf("%d GET streams, %d subscriptions", s.Listeners(), len(s.Seen("resources/subscribe")))
		}
		e.heard = nil
		s.Notify("notifications/tools/list_changed", `{}`)
		synctest.Wait()
		if e.methods() != "tools/list_changed" {
			t.Errorf("heard %q", e.methods())
		}
		e.end(t)
	})
}

// All replicas that meet the loss of a session go on in the same one.
func TestReplicasMoveTogether(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		r.s.Tool("t", fake.RPCError(400, -32602, "no such argument", ""))
		for _, client := range r.clients {
			_, _ = client.Call(t.Context(), together(), nil)
		}
		r.s.Tool("t", fake.Text("ok"))
		for _, client := range r.clients {
			mustCall(t, client, together())
		}
		wantSessions(t, r.s, 1, 0, 1)
		r.s.On("GET", nil)
		r.s.LoseSessions()
		for _, client := range r.clients {
			mustCall(t, client, together())
		}
		wantSessions(t, r.s, 2, 0, 1)
		if r.s.Listeners() != 1 {
			t.Errorf("%d GET streams in it", r.s.Listeners())
		}
	})
}

// A GET stream that was open is asked for again, whatever it is refused with. Who begins to
// listen meanwhile is told that nothing will come.
func TestListenRefusedForAWhile(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 405, 408, 421, 423, 429, 500} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			one := hear(t, h, "a", everything)
			s.On("GET", fake.Status(status, "", ""))
			s.CutListeners()
			pauseFor(t, 5*time.Second)
			two := hear(t, h, "a", everything)
			gone := status/100 == 4 && status <= 405
			if len(two.agreed) != 1 || asksNothing(two.agreed[0]) != gone {
				t.Errorf("%d: agreed to %+v", status, two.agreed)
			}
			pauseFor(t, 10*time.Minute)
			s.On("GET", nil)
			pauseFor(t, maxRetry)
			synctest.Wait()
			one.heard = nil
			s.Notify("notifications/tools/list_changed", `{}`)
			three := hear(t, h, "a", everything)
			if one.methods() != "tools/list_changed" || len(three.agreed) != 1 || asksNothing(three.agreed[0]) {
				t.Errorf("%d: heard %q afterwards, agreed to %+v", status, one.methods(), three.agreed)
			}
			wantSessions(t, s, 1, 0, 1)
			for _, e := range []*ear{one, two, three} {
				e.end(t)
			}
		})
	}
}

// A server that has forgotten the events of the stream is asked for it from now on, and
// everybody looks again at what may have changed.
func TestListenForgottenEvents(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		e := hear(t, h, "a", everything)
		list(t, h, shim.Session{Key: "a"}, "tools/list")
		s.Tool("new", fake.Text("ok"))
		s.Notify("notifications/prompts/list_changed", `{}`)
		synctest.Wait()
		s.On("GET", func(x *fake.Exchange) {
			if x.R.Header.Get("Last-Event-ID") != "" {
				fake.Status(http.StatusBadRequest, "text/plain", "Invalid event ID")(x)
				return
			}
			x.Head("text/event-stream")
			x.Hang()
		})
		e.heard = nil
		s.CutListeners()
		pauseFor(t, 10*time.Second)
		synctest.Wait()
		if e.methods() != "resources/updated resources/updated tools/list_changed" {
			t.Errorf("heard %q", e.methods())
		}
		e.end(t)
	})
}

// streams counts the GET streams that a server has open, and how many there were when
// its tool began.
type streams struct {
	open  atomic.Int32
	busy  atomic.Bool // the server thinks that a stream is open, and refuses another
	began []int32
}

// serve has the server open GET streams after a while that it can say itself.
func (g *streams) serve(s *fake.Server, head func() time.Duration) {
	s.On("GET", func(x *fake.Exchange) {
		if !g.busy.CompareAndSwap(false, true) {
			fake.Status(http.StatusConflict, "", "")(x)
			return
		}
		defer g.busy.Store(false)
		if d := head(); work.Pause(x.R.Context(), d) != nil {
			return
		}
		g.open.Add(1)
		x.Head("text/event-stream")
		x.Hang()
		g.open.Add(-1)
		_ = work.Pause(context.Background(), time.Second) // it notices the end late
	})
	s.Tool("t", func(x *fake.Exchange) {
		g.began = append(g.began, g.open.Load())
		fake.Text("ok")(x)
	})
}

// A call that can be asked has the stream opened that waits for its next attempt.
func TestAskedInBackoff(t *testing.T) {
	for name, b := range map[string]fake.Behaviour{"refused": fake.Status(503, "", ""), "broken": fake.Stream(), "taken": fake.Status(409, "", "")} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			var g streams
			e := hearIn(t, h, asksIn("a", all).Session, everything)
			s.On("GET", b)
			s.CutListeners()
			pauseFor(t, 10*time.Minute) // it is asked for about once a minute
			for n := len(s.Seen("GET")); len(s.Seen("GET")) == n; {
				pauseFor(t, time.Second)
			}
			pauseFor(t, linger)
			g.serve(s, func() time.Duration { return 0 })
			mustCall(t, h, asksIn("a", all))
			if len(g.began) != 1 || g.began[0] != 1 {
				t.Errorf("%s: %v streams when the tool began, want one", name, g.began)
			}
			e.end(t)
			pauseFor(t, 2*linger) // for the fake's own work
		})
	}
}

// A call that follows a listener finds the stream that the listener had: a server may not
// have noticed its end, and refuses another one.
func TestAskedAfterListener(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		var g streams
		g.serve(s, func() time.Duration { return 0 })
		e := hearIn(t, h, asksIn("a", all).Session, everything)
		e.end(t)
		pauseFor(t, linger/4)
		mustCall(t, h, asksIn("a", all))
		if len(g.began) != 1 || g.began[0] != 1 || len(s.Seen("GET")) != 1 {
			t.Errorf("%v streams when the tool began, %d asked for", g.began, len(s.Seen("GET")))
		}
		pauseFor(t, 2*linger)
		if g.open.Load() != 0 {
			t.Error("the stream is held though nobody wants it")
		}
	})
}

// A head that comes late once does not have all later calls sent before there is a stream.
func TestAskedAfterLateHead(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		var g streams
		head := time.Second
		g.serve(s, func() time.Duration { return head })
		for range 4 {
			mustCall(t, h, asksIn("a", all))
			pauseFor(t, 2*linger)
			head = headWait / 5
		}
		if got := fmt.Sprint(g.began); got != "[0 0 1 1]" {
			t.Errorf("streams when the tool began: %s", got)
		}
	})
}

// A server that always refuses the stream with an error costs no call more than the
// refusal takes.
func TestAskedWithoutStreamCosts(t *testing.T) {
	for _, status := range []int{401, 403, 500} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			s.On("GET", fake.Status(status, "", ""))
			e := hearIn(t, h, asksIn("a", all).Session, shim.Filter{})
			for range 10 {
				begin := time.Now()
				mustCall(t, h, asksIn("a", all))
				if took := time.Since(begin); took != 0 {
					t.Errorf("%d: a call waited %v", status, took)
				}
				pauseFor(t, time.Second)
			}
			e.end(t)
		})
	}
}

// Progress of a call may come on the GET stream of its session: it goes to the call that has
// the token, whoever has the stream opened and however the server spells the number that it is. Once that has ended,
// it is nobody's.
func TestProgressOnTheGETStream(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		e := hear(t, h, "a", everything)
		one, two := &shimtest.Sink{}, &shimtest.Sink{}
		first := aloftIn(t, h, in("a", ``), one)
		second := aloftIn(t, h, in("a", ``), two)
		calls := s.Seen("tools/call")
		say := func(of, n int, spell string) {
			token, _ := jsonrpc.Get(calls[of].Params, "_meta", "progressToken")
			s.Notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":%d,"message":"step %d"}`, fmt.Sprintf(spell, token), n, n))
			synctest.Wait()
		}
		say(0, 1, `%s`)
		say(0, 2, `"%s"`)
		say(1, 3, `%s.0`)
		close(may)
		first.ended(t)
		second.ended(t)
		say(0, 4, `%s`)
		heard := func(s *shimtest.Sink) (all string) {
			progress, _ := s.Heard()
			for _, p := range progress {
				all += fmt.Sprintf("%v %s;", p.Progress, p.Message)
			}
			return all
		}
		if heard(one) != "1 step 1;2 step 2;" || heard(two) != "3 step 3;" || e.methods() != "" {
			t.Errorf("the calls heard %q and %q, and the listener %q", heard(one), heard(two), e.methods())
		}
		e.end(t)
	})
}

// The answer to a request may come on the GET stream of its session, before the request is taken with 202 and after
// that: servers of the Ruby SDK before 0.11 do so (ruby-sdk #294). If that stream ends first, the answer is lost.
func TestAnswerOnTheGETStream(t *testing.T) {
	for _, c := range []struct {
		name   string
		listen bool
		aside  func(s *fake.Server, answer string)
		kind   string
	}{
		{"before", true, func(s *fake.Server, answer string) { s.OnGET(answer) }, ""},
		{"after", true, func(s *fake.Server, answer string) { time.AfterFunc(time.Second, func() { s.OnGET(answer) }) }, ""},
		{"to another", true, func(s *fake.Server, answer string) {
			s.OnGET(`{"jsonrpc":"2.0","id":12345,"result":{}}`)
			time.AfterFunc(time.Second, func() { s.OnGET(answer) })
		}, ""},
		{"cut", true, func(s *fake.Server, _ string) { time.AfterFunc(time.Second, s.CutListeners) }, shim.KindClosed},
		{"no stream", false, func(*fake.Server, string) {}, shim.KindProtocol},
	} {
		bubbleOf(t, c.name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", func(x *fake.Exchange) {
				x.Run()
				c.aside(s, x.Fill(result))
				fake.Status(http.StatusAccepted, "", "")(x)
			})
			if c.listen {
				e := hear(t, h, "a", everything)
				defer e.end(t)
			}
			r, err := h.Call(t.Context(), in("a", ``), nil)
			checkKind(t, r, err, c.kind, 0)
			if n := s.Runs("k"); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// Progress of a call that was sent before may come on the GET stream just when the call goes on here.
func TestProgressAsACallGoesOn(t *testing.T) {
	s := sharedSession(t, newSharedMap())
	s.t.wire.cfg.IdleTimeout = time.Minute
	heard, stop := make(chan struct{}), make(chan struct{})
	sink := &shimtest.Sink{OnProgress: func(shim.Progress) {
		select {
		case heard <- struct{}{}:
		default:
		}
	}}
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.calls.passProgress([]byte(`{"progressToken":"r-1","progress":1}`))
			}
		}
	})
	for range 20 {
		x := s.newExchange(target{}, shim.Request{Method: "tools/call"}, sink)
		x.checkpoints.state.ID = "r-1"
		end := x.beginExchange(t.Context())
		<-heard
		end()
	}
	close(stop)
	reader.Wait()
}

// A server that does not take the refusal of its question keeps its GET stream.
func TestRefusalIsRefused(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.OnAnswer(func(x *fake.Exchange) bool {
			fake.Status(400, "", "")(x)
			return false
		})
		e := hear(t, h, "a", everything)
		defer e.end(t)
		gets := len(s.Seen("GET"))
		s.OnGET(`{"jsonrpc":"2.0","id":5,"method":"sampling/createMessage","params":{}}`)
		pauseFor(t, 10*time.Second)
		if n := len(s.Seen("GET")); n != gets || e.methods() != "" {
			t.Errorf("the stream was opened %d times more, and the listener was told %q", n-gets, e.methods())
		}
	})
}

// An answer on the GET stream is awaited only while that stream is open.
func TestAnswerAsideOfNoStream(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		gets, refuse := make(chan struct{}, 10000), make(chan struct{})
		s.On("GET", func(x *fake.Exchange) {
			gets <- struct{}{}
			select {
			case <-refuse:
			case <-x.R.Context().Done():
			}
			fake.Status(http.StatusConflict, "", "")(x)
		})
		s.Tool("t", func(x *fake.Exchange) { x.Run(); fake.Status(http.StatusAccepted, "", "")(x) })
		e := make(chan error, 1)
		ctx, stop := context.WithCancelCause(t.Context())
		go func() {
			e <- h.Listen(ctx, shim.Session{Key: "a"}, everything, func(shim.Filter) {}, func(shim.Notification) {})
		}()
		<-gets
		refuse <- struct{}{} // the first attempt
		<-gets               // the second one is under way
		got := make(chan error, 1)
		within, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := h.Call(within, in("a", ``), nil)
			got <- err
		}()
		synctest.Wait()
		close(refuse)
		pauseFor(t, 10*time.Hour)
		select {
		case err := <-got:
			var ue *shim.UpstreamError
			if !errors.As(err, &ue) {
				t.Errorf("%v", err)
			}
		default:
			t.Error("the call waits for ever")
		}
		cancel()
		stop(errors.New("over"))
		<-e
	})
}

// A server may send an answer on the GET stream under the id of a call whose task is awaited by now.
func TestAnswerAsideOfTask(t *testing.T) {
	s := sharedSession(t, newSharedMap())
	m, err := jsonrpc.ParseLenient([]byte(`{"jsonrpc":"2.0","id":"r-1","result":{}}`))
	must(t, err)
	x := s.newExchange(target{}, shim.Request{Method: "tools/call"}, &shimtest.Sink{})
	x.checkpoints.state.ID = "r-1"
	x.id = "r-1"
	end := x.beginExchange(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		for range 1000 {
			s.calls.passAnswer(m)
		}
	})
	for i := range 1000 { // what openResult does
		x.setID(fmt.Sprint("r-", i))
	}
	reader.Wait()
	end()
}

// What the server answers to tasks/result on the GET stream reaches it.
func TestTaskResultAside(t *testing.T) {
	s := sharedSession(t, newSharedMap())
	x := s.newExchange(target{}, shim.Request{Method: "tools/call"}, &shimtest.Sink{})
	x.id, x.checkpoints.state.ID = "1", "1"
	end := x.beginExchange(t.Context())
	defer end()
	x.setID("2") // that of tasks/result
	m, _ := jsonrpc.ParseLenient([]byte(`{"jsonrpc":"2.0","id":2,"result":{}}`))
	s.calls.passAnswer(m)
	if len(x.beside) == 0 {
		t.Error("the answer is dropped")
	}
}

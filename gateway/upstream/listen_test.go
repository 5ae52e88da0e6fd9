package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// ear is one Listen in a test.
type ear struct {
	agreed []shim.Filter
	heard  []shim.Notification
	stop   context.CancelCauseFunc
	done   chan error
}

// hear starts to listen and waits until everything has settled.
func hear(t *testing.T, h *ServerClient, key string, f shim.Filter) *ear {
	return hearIn(t, h, shim.Session{Key: key}, f)
}

func hearIn(t *testing.T, h *ServerClient, in shim.Session, f shim.Filter) *ear {
	ctx, cancel := context.WithCancelCause(t.Context())
	e := &ear{stop: cancel, done: make(chan error, 1)}
	go func() {
		e.done <- h.Listen(ctx, in, f,
			func(f shim.Filter) { e.agreed = append(e.agreed, f) },
			func(n shim.Notification) { e.heard = append(e.heard, n) })
	}()
	synctest.Wait()
	return e
}

func (e *ear) end(t *testing.T) {
	t.Helper()
	e.endAs(t, context.Canceled)
}

func (e *ear) endAs(t *testing.T, cause error) {
	t.Helper()
	e.stop(cause)
	if err := <-e.done; !errors.Is(err, cause) {
		t.Errorf("Listen ended with %v", err)
	}
	synctest.Wait()
}

func (e *ear) methods() string {
	var out []string
	for _, n := range e.heard {
		out = append(out, strings.TrimPrefix(n.Method, "notifications/"))
	}
	return strings.Join(out, " ")
}

var everything = shim.Filter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true, Resources: []string{"file:///a", "file:///b"}, Log: true}

func TestListenLegacy(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		one := hear(t, h, "a", everything)
		two := hear(t, h, "a", shim.Filter{Resources: []string{"file:///a"}})
		if len(one.agreed) != 1 || !one.agreed[0].ToolsListChanged || !one.agreed[0].Log || len(one.agreed[0].Resources) != 2 {
			t.Errorf("agreed to %+v", one.agreed)
		}
		asked(t, s, "GET", 1)
		asked(t, s, "resources/subscribe", 2)
		s.Notify("notifications/tools/list_changed", `{}`)
		s.Notify("notifications/resources/updated", `{"uri":"file:///a/sub"}`)
		s.Notify("notifications/resources/updated", `{"uri":"file:///ab"}`)
		s.Notify("notifications/message", `{"level":"info","data":1}`)
		s.Notify("notifications/unheard", `{}`)
		synctest.Wait()
		if got := one.methods(); got != "tools/list_changed resources/updated message" {
			t.Errorf("one heard %q", got)
		}
		if got := two.methods(); got != "resources/updated" {
			t.Errorf("two heard %q", got)
		}
		if got := s.Request(`5`, "ping", `{}`); string(got) != `{"jsonrpc":"2.0","id":5,"result":{}}` {
			t.Errorf("ping: %s", got)
		}
		if got := s.Request(`6`, "roots/list", `{}`); !strings.Contains(string(got), "-32601") {
			t.Errorf("request outside a call: %s", got)
		}
		one.end(t)
		if n := len(s.Seen("resources/unsubscribe")); n != 1 || s.Listeners() != 1 {
			t.Errorf("%d unsubscribed, %d streams", n, s.Listeners())
		}
		two.end(t)
		pauseFor(t, keepUnused+linger)
		if n := len(s.Seen("resources/unsubscribe")); n != 2 || s.Listeners() != 0 {
			t.Errorf("%d unsubscribed, %d streams", n, s.Listeners())
		}
	})
}

// A slow listener keeps nobody waiting: not the other listeners, and not a call that is
// asked on the same stream. What is too much for it to keep, it is told to look at again.
func TestListenSlowly(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		ctx, stop := context.WithCancel(t.Context())
		slow, done := make(chan struct{}), make(chan error, 1)
		var got []string
		go func() {
			done <- h.Listen(ctx, asksIn("a", all).Session, everything, func(shim.Filter) {}, func(n shim.Notification) {
				<-slow
				got = append(got, n.Method)
			})
		}()
		f := aloftIn(t, h, asksIn("a", all), &shimtest.Sink{OnAsk: answering})
		for range maxUnheard + 2 { // one is being told, and there is no room for the last
			s.Notify("notifications/message", `{"level":"info","data":1}`)
			synctest.Wait()
		}
		if answer := s.Request(`1`, "elicitation/create", elicit); !strings.Contains(string(answer), `"to":`) {
			t.Errorf("the server got %s", answer)
		}
		close(slow)
		synctest.Wait()
		want := "message,tools/list_changed,prompts/list_changed,resources/list_changed,resources/updated,resources/updated,message"
		if told := strings.ReplaceAll(strings.Join(got, ","), "notifications/", ""); told != want {
			t.Errorf("told %s, want %s", told, want)
		}
		close(may)
		f.ended(t)
		stop()
		<-done
	})
}

// What a server says of its lists on the stream of a call reaches those who
// listen, and empties the cache.
func TestListenOnCallStream(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Stream(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, result))
		e := hear(t, h, "a", everything)
		_, _, _ = h.Tool(t.Context(), shim.Session{Key: "a"}, "t")
		mustCall(t, h, in("a", ``))
		_, _, _ = h.Tool(t.Context(), shim.Session{Key: "a"}, "t")
		synctest.Wait()
		if e.methods() != "tools/list_changed" || len(s.Seen("tools/list")) != 2 {
			t.Errorf("heard %q, %d lists", e.methods(), len(s.Seen("tools/list")))
		}
		e.end(t)
	})
}

// What a server says as soon as its client is ready reaches that client, though it listens a moment later: a list that
// changed, or a log message. A third of it was lost.
func TestSaidBeforeTheClientListens(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("notifications/initialized", func(x *fake.Exchange) {
			s.Notify("notifications/tools/list_changed", `{}`)
			s.Notify("notifications/message", `{"level":"warning","data":1}`)
			fake.Status(http.StatusAccepted, "", "")(x)
		})
		client := shim.Session{Key: "a", Legacy: true, Shared: true}
		_, err := h.Describe(t.Context(), client)
		must(t, err)
		must(t, h.Notify(t.Context(), client, shim.Notification{Method: mcp.NotifyInitialized}))
		pauseFor(t, time.Second)
		e := hearIn(t, h, client, everything)
		if e.methods() != "tools/list_changed message" {
			t.Errorf("heard %q", e.methods())
		}
		late := hearIn(t, h, client, everything)
		if late.methods() != "" {
			t.Errorf("another one heard %q", late.methods())
		}
		late.end(t)
		e.end(t)
	})
}

// So it is where the client listens at another replica.
func TestSaidBeforeTheClientListensElsewhere(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		allowOneStream(s, func() {}, func(x *fake.Exchange) {
			x.Event(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			x.Hang()
		})
		client := together().Session
		for _, h := range []*ServerClient{a, b} {
			_, err := h.Describe(t.Context(), client)
			must(t, err)
		}
		synctest.Wait() // they hear each other
		must(t, a.Notify(t.Context(), client, shim.Notification{Method: mcp.NotifyInitialized}))
		e := hearIn(t, b, client, everything)
		pauseFor(t, time.Second)
		if !strings.HasPrefix(e.methods(), "tools/list_changed") {
			t.Errorf("heard %q", e.methods())
		}
		e.end(t)
	})
}

// A client that listens at another replica hears what its server says once, though that replica asks for the stream
// only after it was said.
func TestSaidToOneWhoListensElsewhere(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		say, refuse := make(chan struct{}), make(chan struct{})
		allowOneStream(s, func() { <-refuse }, func(x *fake.Exchange) {
			<-say
			x.Event(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			x.Event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":2}}`)
			x.Hang()
		})
		client := together().Session
		for _, h := range []*ServerClient{a, b} {
			_, err := h.Describe(t.Context(), client)
			must(t, err)
		}
		synctest.Wait() // they hear each other
		must(t, a.Notify(t.Context(), client, shim.Notification{Method: mcp.NotifyInitialized}))
		e := hearIn(t, b, client, everything)
		close(say)
		pauseFor(t, time.Second/4)
		close(refuse)
		pauseFor(t, time.Second/4)
		synctest.Wait()
		if e.methods() != "tools/list_changed message" {
			t.Errorf("heard %q", e.methods())
		}
		e.end(t)
	})
}

// A server without a GET stream agrees to nothing, and is left alone, however it says so: some answer a GET with a
// page, or with any JSON.
func TestListenWithoutStream(t *testing.T) {
	for _, c := range []struct {
		mode fake.Mode
		get  fake.Behaviour
	}{
		{fake.Stateless, nil}, {fake.Stateful, fake.Status(405, "", "")}, {fake.Stateful, fake.Status(404, "", "")}, {fake.Stateful, fake.Status(200, "", "")},
		{fake.Stateful, fake.Status(200, "text/html", "<p>an MCP server</p>")}, {fake.Stateful, fake.Status(200, "application/json", `{"status":"ok"}`)},
	} {
		bubble(t, c.mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			if c.get != nil {
				s.On("GET", c.get)
			}
			s.Tool("t", fake.Text("ok"))
			e := hearIn(t, h, asksIn("a", all).Session, everything)
			if len(e.agreed) != 1 || !asksNothing(e.agreed[0]) {
				t.Errorf("agreed to %+v", e.agreed)
			}
			mustCall(t, h, asksIn("a", all))
			pauseFor(t, time.Hour)
			if n := len(s.Seen("GET")); n != 1 || len(s.Seen("initialize")) != 1 {
				t.Errorf("%d GETs, %d handshakes", n, len(s.Seen("initialize")))
			}
			e.end(t)
		})
	}
}

// A server that holds back the head of its stream is believed to have one.
func TestListenSilentHead(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("GET", func(x *fake.Exchange) { x.Hang() })
		e := hear(t, h, "a", everything)
		pauseFor(t, headMost)
		synctest.Wait()
		if len(e.agreed) != 1 || !e.agreed[0].ToolsListChanged {
			t.Errorf("agreed to %+v", e.agreed)
		}
		e.end(t)
	})
}

// Only what the server declares is agreed to. It may say more, as FastMCP does (fastmcp #4161): the one client of a
// session hears it.
func TestListenUndeclared(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Capabilities(`{"tools":{"listChanged":false},"resources":{},"prompts":{"listChanged":true}}`)
		e := hear(t, h, "a", everything)
		if len(e.agreed) != 1 || e.agreed[0].ToolsListChanged || e.agreed[0].Resources != nil || !e.agreed[0].PromptsListChanged || e.agreed[0].Log {
			t.Errorf("agreed to %+v", e.agreed)
		}
		own := hearIn(t, h, shim.Session{Key: "b", Shared: true}, everything)
		s.Notify("notifications/tools/list_changed", `{}`)
		s.Notify("notifications/resources/updated", `{"uri":"file:///else"}`)
		s.Notify("notifications/message", `{"level":"info","data":1}`)
		synctest.Wait()
		if got, all := e.methods(), own.methods(); got != "" || all != "tools/list_changed resources/updated message" {
			t.Errorf("heard %q, and in a session of its own %q", got, all)
		}
		e.end(t)
		own.end(t)
	})
}

// The client of a session has subscribed by itself, so a server that refuses to be told twice
// sends its updates all the same.
func TestSubscribedTwice(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("resources/subscribe", fake.RPCError(200, -32602, "already subscribed", ""))
		e := hearIn(t, h, shim.Session{Key: "a", Shared: true}, shim.Filter{Resources: []string{"file:///a"}})
		s.Notify("notifications/resources/updated", `{"uri":"file:///a"}`)
		synctest.Wait()
		if got := e.methods(); got != "resources/updated" {
			t.Errorf("heard %q", got)
		}
		e.end(t)
	})
}

// What the client of a session has told its server is told it once, however often its stream begins anew: a server may
// send each update as often as it was told. In a new generation it is told again.
func TestSubscribedOnce(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		in := shim.Session{Key: "a", Shared: true}
		ask := func(method string) {
			reply, err := h.Call(t.Context(), shim.Request{Method: method, Params: json.RawMessage(`{"uri":"file:///a"}`), Session: in}, nil)
			if err != nil || reply.Error != nil {
				t.Fatal(err, reply.Error)
			}
		}
		want := func(when string, n int) {
			t.Helper()
			if got := len(s.Seen("resources/subscribe")); got != n {
				t.Errorf("%s: the server was told %d times, want %d", when, got, n)
			}
		}
		listen := func() *ear { return hearIn(t, h, in, shim.Filter{Resources: []string{"file:///a"}}) }
		ask("resources/subscribe")
		listen().end(t)
		listen().end(t)
		want("two streams", 1)
		ask("resources/unsubscribe")
		ask("resources/subscribe")
		e := listen()
		want("subscribed again", 2)
		s.CutListeners()
		s.LoseSessions()
		pauseFor(t, 10*time.Second)
		synctest.Wait()
		want("a new session", 3)
		wantSessions(t, s, 2, 0, 1)
		if n := s.Listeners(); n != 1 {
			t.Errorf("%d streams in it", n)
		}
		e.end(t)
	})
}

// Who subscribes while another unsubscribes is told that it is subscribed once the server
// has seen both, in this order.
func TestSubscribedAfterUnsubscribe(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		var subscribed atomic.Bool
		slow := make(chan struct{})
		s.On("resources/subscribe", func(x *fake.Exchange) {
			subscribed.Store(true)
			fake.Result(`{}`)(x)
		})
		s.On("resources/unsubscribe", func(x *fake.Exchange) {
			<-slow
			subscribed.Store(false)
			fake.Result(`{}`)(x)
		})
		f := shim.Filter{Resources: []string{"file:///a"}}
		one := hear(t, h, "a", f)
		one.stop(nil)
		synctest.Wait() // the server thinks about it
		two := hear(t, h, "a", f)
		close(slow)
		<-one.done
		synctest.Wait()
		if len(two.agreed) != 1 || len(two.agreed[0].Resources) != 1 || !subscribed.Load() {
			t.Errorf("agreed to %+v, subscribed: %v", two.agreed, subscribed.Load())
		}
		two.end(t)
		if subscribed.Load() {
			t.Error("subscribed for nobody")
		}
	})
}

func TestNotify(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		n := shim.Notification{Method: "notifications/roots/list_changed", Params: json.RawMessage(`{"_meta":{}}`)}
		if err := h.Notify(t.Context(), shim.Session{Key: "a"}, n); err != nil || len(s.Seen("initialize")) != 0 {
			t.Errorf("without a session: %v, %d handshakes", err, len(s.Seen("initialize")))
		}
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		check(t, h.Notify(t.Context(), shim.Session{Key: "a"}, n))
		if got := s.Seen(n.Method); len(got) != 1 || got[0].Header.Get("Mcp-Session-Id") != "session-1" || string(got[0].Params) != string(n.Params) {
			t.Errorf("server got %+v", got)
		}
		s.LoseSessions()
		var ue *shim.UpstreamError
		if err := h.Notify(t.Context(), shim.Session{Key: "a"}, n); !errors.As(err, &ue) || ue.Kind != shim.KindSession {
			t.Errorf("lost session: %v", err)
		}
	})
}

// subscriptions is a modern server's listen stream that says what it is told.
func subscriptions(say <-chan string, ack string) fake.Behaviour {
	return func(x *fake.Exchange) {
		x.Event(x.Fill(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":{id}},"notifications":` + ack + `}}`))
		for {
			select {
			case s, ok := <-say:
				if !ok || s == "cut" {
					return
				}
				x.Event(x.Fill(s))
			case <-x.R.Context().Done():
				return
			}
		}
	}
}

func TestListenModern(t *testing.T) {
	bubble(t, fake.Modern, Config{IdleTimeout: time.Minute}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		say := make(chan string)
		s.On("subscriptions/listen", subscriptions(say, `{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`))
		e := hear(t, h, "a", everything)
		if len(e.agreed) != 1 || !e.agreed[0].ToolsListChanged || e.agreed[0].PromptsListChanged || len(e.agreed[0].Resources) != 1 {
			t.Fatalf("agreed to %+v", e.agreed)
		}
		if p := string(s.Seen("subscriptions/listen")[0].Params); !strings.Contains(p, `"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["file:///a","file:///b"]}`) {
			t.Errorf("asked for %s", p)
		}
		pauseFor(t, time.Hour) // silence is no reason to end it
		say <- `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":{id}},"uri":"file:///a"}}`
		say <- `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{}}`
		synctest.Wait()
		if e.methods() != "resources/updated" || string(e.heard[0].Params) != `{"uri":"file:///a"}` {
			t.Errorf("heard %+v", e.heard)
		}
		say <- "cut"
		pauseFor(t, 5*time.Second)
		synctest.Wait()
		if e.methods() != "resources/updated tools/list_changed resources/updated" || len(e.agreed) != 1 {
			t.Errorf("after the gap: heard %q, agreed %d times", e.methods(), len(e.agreed))
		}
		e.end(t)
	})
}

func TestListenModernRefused(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		e := hear(t, h, "a", everything) // the fake does not know the method
		if len(e.agreed) != 1 || !asksNothing(e.agreed[0]) {
			t.Errorf("agreed to %+v", e.agreed)
		}
		e.end(t)
	})
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("subscriptions/listen", fake.Status(503, "", ""))
		err := h.Listen(t.Context(), shim.Session{}, everything, func(shim.Filter) { t.Error("ready") }, nil)
		var ue *shim.UpstreamError
		if !errors.As(err, &ue) || ue.Kind != shim.KindOverloaded {
			t.Errorf("error %v", err)
		}
	})
}

// A server that ends each stream as soon as it is open is asked at longer and longer intervals. One that says something
// is asked soon.
func TestListenShortStreams(t *testing.T) {
	const ack = `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true}}}`
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	for _, c := range []struct {
		mode        fake.Mode
		method      string
		says        []string
		least, most int
	}{
		{fake.Stateful, "GET", nil, 6, 15},
		{fake.Stateful, "GET", []string{changed}, 200, 480},
		{fake.Modern, "subscriptions/listen", []string{ack}, 6, 15},
		{fake.Modern, "subscriptions/listen", []string{ack, changed}, 200, 480},
	} {
		bubble(t, c.mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.On(c.method, fake.Stream(c.says...))
			e := hear(t, h, "a", shim.Filter{ToolsListChanged: true})
			pauseFor(t, 2*time.Minute)
			e.end(t)
			if n := len(s.Seen(c.method)); n < c.least || n > c.most || len(e.agreed) != 1 || len(c.says) > 1 && len(e.heard) < n-1 {
				t.Errorf("%s saying %q: %d streams in two minutes, agreed to %v, heard %d notifications", c.method, c.says, n, e.agreed, len(e.heard))
			}
		})
	}
}

// What a listener has heard, and not passed on yet, as its client moves to another replica reaches the client: nobody
// says it again.
func TestHeardBeforeTheClientMoves(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		ctx, move := context.WithCancelCause(t.Context())
		var heard []string
		slow, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- a.Listen(ctx, together().Session, everything, func(shim.Filter) {}, func(n shim.Notification) {
				heard = append(heard, n.Method)
				<-slow
			})
		}()
		synctest.Wait()
		for _, list := range []string{"tools", "prompts", "resources"} {
			s.Notify("notifications/"+list+"/list_changed", "{}")
			synctest.Wait()
		}
		move(ErrMoved)
		close(slow)
		if err := <-done; err != ErrMoved {
			t.Error(err)
		}
		if len(heard) != 3 {
			t.Errorf("heard %v", heard)
		}
	})
}

// Who begins to listen as the gateway stops hears that it does.
func TestListenAsTheGatewayStops(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		hear(t, h, "a", everything).end(t)
		check(t, h.Close(t.Context()))
		err := h.Listen(t.Context(), shim.Session{Key: "b"}, everything, func(shim.Filter) {}, func(shim.Notification) {})
		if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != shim.KindUnreachable {
			t.Errorf("Listen: %v", err)
		}
	})
}

// A server without session ids may have been started anew where its stream breaks, and is told again.
func TestSubscribedAgainWithoutSessionIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cut := fake.NewHandler(t, fake.Stateless), make(chan struct{})
		l := newPipes()
		web := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				s.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", mcp.TypeSSE)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-cut:
			case <-r.Context().Done():
			}
		})}
		go web.Serve(l)
		h, err := New(Config{URL: "http://fake/mcp"})
		must(t, err)
		baseOf(h).DialContext = l.dial
		e := hearIn(t, h, shim.Session{Key: "a", Shared: true}, shim.Filter{Resources: []string{"file:///a"}})
		cut <- struct{}{}
		pauseFor(t, 10*time.Second)
		asked(t, s, "resources/subscribe", 2)
		e.end(t)
		check(t, h.Close(context.Background()))
		s.Close()
		web.Close()
		synctest.Wait()
	})
}

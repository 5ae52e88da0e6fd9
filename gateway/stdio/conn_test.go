package stdio

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/wire"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// client is a client of a Conn, whose gateway is a handler of the test.
type client struct {
	t      *testing.T
	conn   *Conn
	in     *io.PipeWriter
	out    chan string // lines, read one ahead
	served chan error  // the result of Serve
	stop   context.CancelFunc
	over   bool // it is closed, or the test ends it in another way
}

const maxMessage = 1 << 10

// newClient begins a conversation. It is closed with the test, if not before.
func newClient(t *testing.T, h http.HandlerFunc) *client {
	t.Helper()
	fromClient, in := io.Pipe()
	out, toClient := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	c := &client{t: t, in: in, out: make(chan string), served: make(chan error, 1), stop: stop}
	c.conn = New(toClient, Options{
		Handler: h, Path: "/mcp", MaxMessage: maxMessage, MaxRequests: 3, Logger: slog.New(slog.DiscardHandler),
	})
	go func() { c.served <- c.conn.Serve(ctx, fromClient) }()
	go func() {
		defer close(c.out)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			c.out <- line
		}
	}()
	t.Cleanup(c.close)
	return c
}

// close ends the conversation as a client does that goes on reading until the end.
func (c *client) close() {
	c.t.Helper()
	if c.over {
		return
	}
	c.over = true
	_ = c.in.Close()
	if err := <-c.served; err != nil {
		c.t.Errorf("Serve: %v", err)
	}
	c.stop()
	go func() {
		for range c.out {
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.conn.Close(ctx); err != nil {
		c.t.Errorf("Close: %v", err)
	}
	_ = c.conn.out.w.(io.Closer).Close() // ends who drains it
}

func (c *client) say(lines ...string) {
	c.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(c.in, l+"\n"); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *client) hear(want ...string) {
	c.t.Helper()
	for _, w := range want {
		if got := <-c.out; got != w+"\n" {
			c.t.Fatalf("heard %q, want %q", got, w)
		}
	}
}

// silent reports an error if there is something to hear once nothing moves any more.
func (c *client) silent() {
	c.t.Helper()
	synctest.Wait()
	select {
	case line := <-c.out:
		c.t.Errorf("heard %q", line)
	default:
	}
}

// messageOf reads the message of a request.
func messageOf(r *http.Request) jsonrpc.Message {
	b, _ := io.ReadAll(r.Body)
	m, _ := jsonrpc.Parse(b)
	return m
}

// answer answers in JSON.
func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", mcp.TypeJSON)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// streamTo answers with an event stream, as the gateway does.
func streamTo(w http.ResponseWriter) *eventstream.Writer {
	return eventstream.NewWriter(w, 0)
}

// answerEmpty answers a request with an empty result.
func answerEmpty(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
	answer(w, http.StatusOK, result(m, `{}`))
}

func result(m jsonrpc.Message, result string) string {
	return string(jsonrpc.AppendResult(nil, m.ID, []byte(result)))
}

func ask(id int, method string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q}`, id, method)
}

// modern is a request of 2026.
func modern(id, method string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{"_meta":{%q:"2026-07-28"}}}`, id, method, mcp.MetaProtocolVersion)
}

func cancels(id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id)
}

// What the handler answers becomes lines: JSON as it is, but for line breaks, and the data of
// events. What is no message is left out.
func TestAnswersBecomeLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/mcp" || r.Method != http.MethodPost || !wire.AcceptsStream(r.Header) {
				t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
			}
			m := messageOf(r)
			if m.Method == "json" {
				answer(w, http.StatusOK, "{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\"result\":{}}\n")
				return
			}
			out := streamTo(w)
			_ = out.Comment("open")
			_ = out.Prime("7")
			_ = out.Send("8", []byte(`{"jsonrpc":"2.0","met`), []byte(`hod":"n"}`))
			_ = out.Comment("k")
			_ = out.Send("", []byte("{\"jsonrpc\":\"2.0\",\n\"id\":2,\"result\":{}}"))
		})
		c.say(ask(1, "json"))
		c.hear(`{"jsonrpc":"2.0",  "id":1,"result":{}} `)
		c.say("", "  \r", ask(2, "events")+"\r")
		c.hear(`{"jsonrpc":"2.0","method":"n"}`, `{"jsonrpc":"2.0", "id":2,"result":{}}`)
	})
}

// Events are as large as they like.
func TestLargeEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := `{"text":"` + strings.Repeat("x", 4<<20) + `"}`
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			_ = streamTo(w).Send("", []byte(result(messageOf(r), large)))
		})
		c.say(ask(1, "tools/call"))
		c.hear(`{"jsonrpc":"2.0","id":1,"result":` + large + `}`)
	})
}

// Over HTTP an error need not say what it is about. Over stdio it has the id of its request, or
// null; and each request is answered.
func TestErrorsNameTheirRequest(t *testing.T) {
	const refused = `{"jsonrpc":"2.0","error":{"code":-32603,"message":"busy"}}`
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			switch m := messageOf(r); m.Method {
			case "":
				answer(w, http.StatusBadRequest, `{"jsonrpc":"2.0","error":{"code":-32700,"message":"unreadable"}}`)
			case "busy":
				answer(w, http.StatusServiceUnavailable, refused)
			case "named":
				answer(w, http.StatusNotFound, `{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"unknown"}}`)
			case "text":
				http.Error(w, "no", http.StatusMethodNotAllowed)
			case "nothing":
			case "panic":
				panic("oh")
			case "late panic":
				_ = streamTo(w).Comment("open")
				panic("oh")
			}
		})
		const internal = `"error":{"code":-32603,"message":"internal error"}}`
		for _, tt := range []struct{ say, hear string }{
			{ask(1, "busy"), `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"busy"}}`},
			{modern("2", "named"), `{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"unknown"}}`},
			{ask(3, "text"), `{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"the gateway has refused the message (405)"}}`},
			{ask(4, "nothing"), `{"jsonrpc":"2.0","id":4,` + internal},
			{ask(5, "panic"), `{"jsonrpc":"2.0","id":5,` + internal},
			{ask(6, "late panic"), `{"jsonrpc":"2.0","id":6,` + internal},
			{`{"id":`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"unreadable"}}`},
			{`[{]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"unreadable"}}`},
			{strings.Repeat("x", maxMessage+1), `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the message is too large"}}`},
			{`{"jsonrpc":"2.0","id":"a\"7","method":"tools/call","params":{"x":"` + strings.Repeat("x", 3*readSize) + `"}}`, `{"jsonrpc":"2.0","id":"a\"7","error":{"code":-32600,"message":"the message is too large"}}`},
			{`{"method":"tools/call","params":{"id":8,"x":"` + strings.Repeat("x", maxMessage) + `"},"jsonrpc":"2.0","id":7}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"the message is too large"}}`},
			{`{"jsonrpc":"2.0","id":7,"result":{"x":"` + strings.Repeat("x", maxMessage) + `"}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the message is too large"}}`},
			{strings.Repeat("x", readSize+1), `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the message is too large"}}`},
		} {
			c.say(tt.say)
			c.hear(tt.hear)
		}
		c.say(`{"jsonrpc":"2.0","method":"busy"}`) // nobody is told of that
		c.silent()
	})
}

// sessions is a handler that knows sessions: it notes what it gets.
type sessions struct {
	mu    sync.Mutex
	notes []string
	known map[string]bool
	made  int

	serve func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message)
}

func (s *sessions) note(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, fmt.Sprintf(format, a...))
}

func (s *sessions) noted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.notes, ", ")
}

func (s *sessions) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}

func (s *sessions) handle(w http.ResponseWriter, r *http.Request) {
	m := messageOf(r)
	id := r.Header.Get(mcp.HeaderSession)
	s.note("%s %s %s%s", id, r.Method, m.Method, m.Result)
	s.mu.Lock()
	known := s.known[id]
	s.mu.Unlock()
	switch {
	case m.Method == mcp.MethodInitialize:
		s.mu.Lock()
		s.made++
		id = fmt.Sprintf("s%d", s.made)
		s.known[id] = true
		s.mu.Unlock()
		w.Header().Set(mcp.HeaderSession, id)
		answer(w, http.StatusOK, result(m, `{}`))
	case !known:
		answer(w, http.StatusNotFound, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}`)
	case r.Method == http.MethodGet:
		_ = streamTo(w).Send("", []byte(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`))
		<-r.Context().Done()
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusOK)
	case m.Kind != jsonrpc.Request:
		w.WriteHeader(http.StatusAccepted)
	default:
		s.serve(w, r, m)
	}
}

const (
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	question    = `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`
)

// The id of the session is kept, its GET stream is opened once the client is ready, and what it
// answers is posted. When it leaves, the session ends. Messages come in their order.
func TestSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sessions{known: map[string]bool{}, serve: answerEmpty}
		c := newClient(t, s.handle)
		c.say(ask(1, "initialize") + "\n" + initialized + "\n" + ask(2, "tools/list")) // it does not wait
		c.hear(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		first, second := <-c.out, <-c.out
		if got := map[string]bool{first: true, second: true}; !got[question+"\n"] || !got[`{"jsonrpc":"2.0","id":2,"result":{}}`+"\n"] {
			t.Errorf("heard %q and %q", first, second)
		}
		c.say(`{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`)
		synctest.Wait()
		c.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		synctest.Wait()
		c.close()
		got := s.noted()
		got = strings.Replace(got, "s1 POST tools/list, s1 GET ,", "s1 GET , s1 POST tools/list,", 1) // they cross
		want := " POST initialize, s1 POST notifications/initialized, s1 GET , s1 POST tools/list, " +
			`s1 POST {"roots":[]}, s1 POST notifications/roots/list_changed, s1 DELETE `
		if got != want {
			t.Errorf("the gateway got\n%s, want\n%s", got, want)
		}
	})
}

// An answer to a question that the gateway takes late, since its store is away, holds up nothing else.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan struct{})
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			m := messageOf(r)
			if m.Kind == jsonrpc.Request {
				answer(w, http.StatusOK, result(m, `{}`))
				return
			}
			<-taken
			w.WriteHeader(http.StatusAccepted)
		})
		c.say(`{"jsonrpc":"2.0","id":"q","result":{}}`, ask(1, "ping"))
		synctest.Wait()
		select {
		case <-c.out:
		default:
			t.Error("a request waits for an answer to be taken")
		}
		close(taken)
	})
}

// A client over stdio cannot open another session when the gateway has lost it.
func TestLostSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sessions{known: map[string]bool{}, serve: answerEmpty}
		c := newClient(t, s.handle)
		c.say(ask(1, "initialize"))
		c.hear(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		c.say(initialized)
		c.hear(question)
		s.forget()
		c.say(ask(2, "tools/list"), ask(3, "tools/list"))
		heard := map[string]bool{}
		for range 3 {
			heard[<-c.out] = true
		}
		for _, want := range []string{question, `{"jsonrpc":"2.0","id":2,"result":{}}`, `{"jsonrpc":"2.0","id":3,"result":{}}`} {
			if !heard[want+"\n"] {
				t.Errorf("heard %v, not %s", heard, want)
			}
		}
		c.close()
		if got := s.noted(); strings.Count(got, "initialize,") != 2 || strings.Count(got, "s2 POST notifications/initialized") != 1 ||
			strings.Count(got, "s2 GET") != 1 || !strings.HasSuffix(got, "s2 DELETE ") {
			t.Errorf("the gateway got %s", got)
		}
	})
}

// A request of a session is cancelled by the gateway, which has to know the request by then.
func TestCancelInSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancelled := make(chan struct{})
		s := &sessions{known: map[string]bool{}, serve: func(_ http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			<-time.After(time.Minute) // until it is in flight
			wire.Begun(r.Context())
			<-cancelled
		}}
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			s.handle(w, r)
			if n := s.noted(); strings.HasSuffix(n, "cancelled") {
				close(cancelled)
			}
		})
		c.say(ask(1, "initialize"))
		c.hear(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		c.say(ask(2, "tools/call"), cancels("2"))
		<-time.After(30 * time.Second)
		if got := s.noted(); strings.Contains(got, "cancelled") {
			t.Errorf("the gateway got %s", got)
		}
		<-time.After(time.Hour)
		c.silent()
	})
}

// A request of 2026 is cancelled by the end of its HTTP request, and nothing more is said of it.
func TestCancelModern(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			m := messageOf(r)
			if m.Kind != jsonrpc.Request {
				t.Errorf("the gateway got %s", m.Raw)
			}
			out := streamTo(w)
			_ = out.Send("", []byte(`{"jsonrpc":"2.0","method":"n"}`))
			<-r.Context().Done()
			_ = out.Send("", []byte(result(m, `{}`)))
		})
		for range 2 { // the id is free again
			c.say(modern(`"a"`, "tools/call"))
			c.hear(`{"jsonrpc":"2.0","method":"n"}`)
			c.say(cancels(`"\u0061"`))
			c.silent()
		}
		c.say(cancels("1"), cancels("{}")) // are about nothing
		c.silent()
	})
}

// When the gateway ends a stream of 2026 that the client listens to, that is told by both, the
// result last (protocol.md 1.3).
func TestEndOfListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := make(chan struct{})
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			m := messageOf(r)
			out := streamTo(w)
			_ = out.Send("", []byte(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}`))
			<-ends
			_ = out.Send("", []byte(result(m, `{}`)))
		})
		c.say(modern("7", mcp.MethodListen))
		c.hear(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}`)
		close(ends)
		c.hear(cancels("7"), `{"jsonrpc":"2.0","id":7,"result":{}}`)
	})
}

// One id is one request, and there are only so many at a time.
func TestRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			m := messageOf(r)
			<-goOn
			answer(w, http.StatusOK, result(m, `{}`))
		})
		c.say(modern("1", "tools/call"), modern("1", "tools/call"))
		c.hear(`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"another request in flight has this id"}}`)
		c.say(modern("2", "tools/call"), modern("3", "tools/call"), modern("4", "tools/call"))
		c.hear(`{"jsonrpc":"2.0","id":4,"error":{"code":-32603,"message":"there are already 3 requests in flight (max_calls)"}}`)
		c.say(`{"id":`) // an unreadable text has no id to answer with
		c.hear(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"there are already 3 requests in flight (max_calls)"}}`)
		close(goOn)
		for range 3 {
			if l := <-c.out; !strings.Contains(l, `"result":{}`) {
				t.Errorf("heard %q", l)
			}
		}
		c.say(modern("1", "tools/call"))
		c.hear(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
}

// A client that closes its output gets the answers that come soon. Everything else ends. A script of the 2025 versions
// to which nothing was answered yet gets the first answer later, too: its server may have to start.
func TestClientLeaves(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script bool
		long   time.Duration // the call
		want   time.Duration // until Serve returns
	}{
		{"soon", false, 300 * time.Millisecond, 300 * time.Millisecond},
		{"later", false, time.Hour, lastAnswers},
		{"script", true, 20 * time.Second, 20 * time.Second},
		{"script, never", true, time.Hour, firstAnswer + lastAnswers},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
					m := messageOf(r)
					long := tt.long
					if m.Method == mcp.MethodListen { // is not waited for
						long = 100 * time.Hour
					}
					select {
					case <-time.After(long):
						answer(w, http.StatusOK, result(m, `{}`))
					case <-r.Context().Done():
					}
				})
				if tt.script {
					c.say(ask(1, "tools/call"))
				} else {
					c.say(modern("0", mcp.MethodListen), modern("1", "tools/call"))
				}
				begin := time.Now()
				if tt.long == tt.want {
					_ = c.in.Close()
					c.hear(`{"jsonrpc":"2.0","id":1,"result":{}}`)
				}
				c.close()
				if took := time.Since(begin); took != tt.want {
					t.Errorf("it took %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// A client that does not read is not written to, and what it writes is not read.
func TestClientDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) { answerEmpty(w, r, messageOf(r)) })
		c.over = true
		var said int
		go func() {
			for said = 0; said < 1000; said++ {
				if _, err := io.WriteString(c.in, modern(fmt.Sprint(said), "tools/call")+"\n"); err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		if said > 20 {
			t.Errorf("%d messages were taken", said)
		}
		c.stop() // SIGTERM
		if err := <-c.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := c.conn.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		_ = c.in.CloseWithError(io.ErrClosedPipe)
		go func() {
			for range c.out {
			}
		}()
		synctest.Wait()
		_ = c.conn.out.w.(io.Closer).Close()
	})
}

// Where nothing can be written any more, nothing is read any more.
func TestOutputBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, w := io.Pipe()
		broken := errors.New("broken pipe")
		c := New(brokenWriter{broken}, Options{Path: "/mcp", MaxMessage: maxMessage, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answerEmpty(w, r, messageOf(r)) })})
		go func() { _, _ = io.WriteString(w, ask(1, "a")+"\n") }()
		if err := c.Serve(t.Context(), in); !errors.Is(err, broken) {
			t.Errorf("Serve: %v", err)
		}
		_ = in.Close()
		if err := c.Close(t.Context()); !errors.Is(err, broken) {
			t.Errorf("Close: %v", err)
		}
	})
}

type brokenWriter struct{ err error }

func (b brokenWriter) Write([]byte) (int, error) { return 0, b.err }

// TestOrder: notifications reach the server in the order in which the client wrote them, and before the request
// behind them.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var came []string
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			m := messageOf(r)
			<-time.After(10 * time.Millisecond)
			mu.Lock()
			came = append(came, m.Method)
			mu.Unlock()
			if m.Kind == jsonrpc.Notification {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			answer(w, http.StatusOK, result(m, "{}"))
		})
		var want []string
		for i := range 9 {
			want = append(want, fmt.Sprint("notifications/", i))
			c.say(`{"jsonrpc":"2.0","method":"` + want[i] + `"}`)
		}
		want = append(want, "tools/call")
		c.say(modern("1", "tools/call"))
		c.hear(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		if !slices.Equal(came, want) {
			t.Errorf("they came as %q", came)
		}
	})
}

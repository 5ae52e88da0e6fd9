package sse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/upstream/transporttest"
	"taskgate/shim"
)

// What the server answers to a POST is the outcome, whatever becomes of it; the connection
// stays.
func TestRefusedPosts(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{})
	session := cl.begin()
	for _, code := range []int{400, 401, 404, 413, 429, 500, 503, 307} {
		s.does(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Location", "http://elsewhere.invalid/")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32099,"message":"why"}}`)
		})
		for _, body := range []string{ask, tell} {
			_, err := cl.post(session, body)
			if se := wantStatus(t, err, code); se.RetryAfter != 7*time.Second || se.RPC == nil || se.RPC.Message != "why" {
				t.Errorf("status %d: %+v", code, se)
			}
		}
	}
	s.does(nil)
	if _, err := cl.text(session, ask); err != nil {
		t.Error(err)
	}
}

// Servers of the Java SDK answer a POST when its request is done: what they say before that is
// heard at once, and a question is answered meanwhile.
func TestHeldPosts(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{})
	session := cl.begin()
	answered := make(chan string, 1)
	s.does(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(b), `"method"`) {
			answered <- string(b)
			return
		}
		s.say("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"question\"}\n\n")
		s.say("data: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":" + <-answered + "}\n\n")
	})
	in, err := cl.post(session, ask)
	transporttest.Must(t, err)
	if m, err := transporttest.Read(in); err != nil || m.Method != "question" {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := cl.post(session, `{"jsonrpc":"2.0","id":7,"result":{}}`); err != nil {
		t.Error(err)
	}
	if m, err := transporttest.Read(in); err != nil || !strings.Contains(string(m.Result), `"id":7`) {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := transporttest.Read(in); err != io.EOF {
		t.Error(err)
	}
}

// A POST that is answered after its request, which is over by then, is not cut off: net/http could
// close a connection that another request has by then.
func TestPostsAreNotCutOff(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{})
	session := cl.begin()
	cut := make(chan bool, 1)
	s.does(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is seen then
		s.say("data: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":{}}\n\n")
		select {
		case <-r.Context().Done():
			cut <- true
		case <-time.After(postGrace / 4):
			w.WriteHeader(http.StatusAccepted)
			cut <- false
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	in, err := cl.Request(ctx, transporttest.Message(session, ask))
	transporttest.Must(t, err)
	if _, err := transporttest.ReadAll(in); err != nil {
		t.Error(err)
	}
	cancel()
	if <-cut {
		t.Error("the POST was cut off")
	}
}

// A notification that the server does not take is given up; a request may take its time.
func TestSlowPosts(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{Patience: 50 * time.Millisecond})
	session := cl.begin()
	s.does(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is seen then
		<-r.Context().Done()
	})
	_, err := cl.post(session, tell)
	if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != "timeout" || !strings.Contains(ue.Message, "did not take a message within 50ms") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := cl.Request(ctx, transporttest.Message(session, ask)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// A POST is over with its head: a server that does not end the response holds nobody up.
func TestPostWithoutEnd(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{Patience: time.Minute})
	session := cl.begin()
	s.does(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is seen then
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	begun := time.Now()
	if _, err := cl.post(session, tell); err != nil || time.Since(begun) > time.Minute/2 {
		t.Errorf("error %v after %v", err, time.Since(begun))
	}
}

// When the event stream ends, what is in flight fails and says so; the session is not known any
// more, and the next one opens another stream.
func TestEndOfStream(t *testing.T) {
	for name, c := range map[string]struct {
		end        func(*server)
		kind, says string
	}{
		"ended":    {(*server).hangUp, "closed", "the event stream of the server ended"},
		"too much": {func(s *server) { s.say("data: " + strings.Repeat("x", 2<<10)) }, "too_large", "had an event of more than 1024 bytes, and was closed"},
		"broken":   {func(s *server) { s.CloseClientConnections() }, "closed", "the event stream of the server"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			cl := s.client(Config{MaxEvent: 1 << 10})
			session := cl.begin()
			s.does(status(202, ""))
			in, err := cl.post(session, ask)
			transporttest.Must(t, err)
			c.end(s)
			_, err = transporttest.ReadAll(in)
			ue, ok := errors.AsType[*shim.UpstreamError](err)
			if !ok || ue.Kind != c.kind || ue.Unsent || !strings.Contains(ue.Message, c.says) {
				t.Errorf("error %v", err)
			}
			s.does(nil)
			_ = cl.HTTP.Close(t.Context()) // the connections that the server has closed, and the client may not know of
			_, err = cl.post(session, ask)
			for range 10 { // a connection may become idle only now
				if transporttest.StatusOf(err) != 0 {
					break
				}
				_ = cl.HTTP.Close(t.Context())
				_, err = cl.post(session, ask)
			}
			wantStatus(t, err, http.StatusNotFound)
			if _, err := cl.text(cl.begin(), ask); err != nil {
				t.Error(err)
			}
		})
	}
}

// The headers of a request go with the GET and with its POST, but for those of the session.
func TestHeaders(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{Always: true})
	session := cl.begin("Authorization", "Bearer a")
	if _, err := cl.post(session, tell, "Authorization", "Bearer b"); err != nil {
		t.Fatal(err)
	}
	s.say("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n") // which the gateway answers
	answered := make(chan string, 1)
	s.does(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		answered <- fmt.Sprint(r.Header.Get("Authorization"), " ", string(b))
	})
	s.say("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}\n\n")
	for got := <-answered; got != `Bearer a {"jsonrpc":"2.0","id":2,"result":{}}`; got = <-answered {
		if got != `Bearer a {"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("answered %s", got)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, want := range []string{"Bearer a", "Bearer a", "Bearer b"} {
		h := s.seen[i].Header
		if h.Get("Authorization") != want || h.Get("Mcp-Session-Id") != "" {
			t.Errorf("request %d: %v", i, h)
		}
		if got := h.Get("Cookie"); (got == "node=b") != (i > 0) {
			t.Errorf("request %d has the cookie %q", i, got)
		}
		if got := h.Get("Accept"); i == 0 && (got != "text/event-stream" || h.Get("Content-Type") != "") {
			t.Errorf("GET with %v", h)
		}
	}
}

// Events of other types and comments are left out, and data may have several lines.
func TestEvents(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{})
	session := cl.begin()
	s.does(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		s.say(": comment\n\nevent: ping\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":\"wrong\"}\n\nevent: endpoint\ndata: /elsewhere\n\n")
		s.say("event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\r\ndata: \"result\":{}}\r\n\r\n")
	})
	got, err := cl.text(session, ask)
	if want := "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\n\"result\":{}}\n"; err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
}

// One connection more than there may be takes the place of an unused one.
func TestMax(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{Max: 2})
	a, b := cl.begin(), cl.begin()
	s.does(status(202, ""))
	if _, err := cl.post(a, ask); err != nil { // which is in flight from now on
		t.Fatal(err)
	}
	s.does(nil)
	c := cl.begin()
	_, err := cl.post(b, tell)
	wantStatus(t, err, http.StatusNotFound)
	s.does(status(202, ""))
	if _, err := cl.post(c, ask); err != nil {
		t.Fatal(err)
	}
	_, err = cl.post("", hello)
	if busy, ok := errors.AsType[*shim.BusyError](err); !ok || busy.Key != "max_sse_connections" {
		t.Errorf("error %v", err)
	}
}

// The answer counts that a server ends the event stream after, also where the POST of its request is not answered
// by then.
func TestAnswerAndEnd(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{Always: true})
	for range 20 {
		s.does(nil)
		session := cl.begin()
		ended := make(chan struct{})
		s.does(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is seen then
			s.say("data: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":{}}\n\n")
			s.hangUp()
			close(ended)
			<-r.Context().Done()
		})
		if text, err := cl.text(session, ask); err != nil || !strings.Contains(text, "result") {
			t.Errorf("the answer is %q, %v", text, err)
		}
		<-ended
	}
}

// A connection whose session the server has refused is ended: its event stream was asked for with what one caller
// signs in with, and the next session may be another one's.
func TestRefusedSession(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{Always: true})
	s.does(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		s.say(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32600,\"message\":\"not you\"}}\n\n", idOf(string(b))))
	})
	in, err := cl.post("", hello, "Authorization", "Bearer alice")
	transporttest.Must(t, err)
	if text, err := transporttest.ReadAll(in); err != nil || !strings.Contains(text, "not you") {
		t.Errorf("%s, %v", text, err)
	}
	s.does(nil)
	cl.begin("Authorization", "Bearer bob")
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked []string
	for _, r := range s.seen {
		if r.Method == http.MethodGet {
			asked = append(asked, r.Header.Get("Authorization"))
		}
	}
	if !slices.Equal(asked, []string{"Bearer alice", "Bearer bob"}) {
		t.Errorf("event streams were asked for with %q", asked)
	}
}

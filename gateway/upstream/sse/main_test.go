package sse

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"taskgate/gateway/upstream/streamable"
	"taskgate/gateway/upstream/transport"
	"taskgate/gateway/upstream/transporttest"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an HTTP+SSE server that a test drives: it answers each POST as the test says, and
// says on its event stream what the test gives it.
type server struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	post    http.HandlerFunc // to the endpoint; nil accepts
	first   string           // the first event
	foreign http.HandlerFunc // in place of all of that; nil for none
	seen    []*http.Request
	streams []chan string
	closing chan struct{}
}

const endpoint = "event: endpoint\ndata: /messages?s=1\n\n"

func newServer(t *testing.T) *server {
	s := &server{t: t, first: endpoint, closing: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.closing)
		s.Close()
	})
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r)
	post, first, foreign := s.post, s.first, s.foreign
	c := make(chan string, 16)
	if r.Method == http.MethodGet && foreign == nil {
		s.streams = append(s.streams, c)
	}
	s.mu.Unlock()
	switch {
	case foreign != nil:
		foreign(w, r)
	case r.Method == http.MethodGet:
		s.stream(w, r, first, c)
	case r.URL.Path != "/messages":
		w.WriteHeader(http.StatusMethodNotAllowed)
	case post != nil:
		post(w, r)
	default:
		s.accept(w, r)
	}
}

// accept answers a request with its own text.
func (s *server) accept(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.WriteHeader(http.StatusAccepted)
	if id := idOf(string(b)); id != "" {
		s.say(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", id))
	}
}

// idOf is the id of a request, as these tests write it.
func idOf(message string) string {
	_, rest, ok := strings.Cut(message, `"id":`)
	if !ok {
		return ""
	}
	id, _, _ := strings.Cut(rest, ",")
	return id
}

func (s *server) stream(w http.ResponseWriter, r *http.Request, first string, c <-chan string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Set-Cookie", "node=b; Path=/")
	text, open := first, true
	for open {
		_, _ = io.WriteString(w, text)
		w.(http.Flusher).Flush()
		select {
		case text, open = <-c:
		case <-r.Context().Done():
			return
		case <-s.closing:
			return
		}
	}
}

// say says something on the newest stream.
func (s *server) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[len(s.streams)-1] <- text
}

// hang up ends the newest stream.
func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.streams[len(s.streams)-1])
	s.streams = s.streams[:len(s.streams)-1]
}

// does says how POSTs are answered.
func (s *server) does(post http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.post = post
}

// becomes makes another server of it; nil makes it what it was.
func (s *server) becomes(other http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foreign = other
}

// begins says how streams begin.
func (s *server) begins(first string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = first
}

// requests are the requests so far, as "GET /", with their headers.
func (s *server) requests() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.seen {
		list = append(list, r.Method+" "+r.URL.Path)
	}
	s.seen = nil
	return list
}

// client is a Transport with what the tests need.
type client struct {
	*Transport
	t *testing.T
}

func (s *server) client(c Config) *client {
	return newClient(s.t, s.URL+"/sse", c)
}

func newClient(t *testing.T, at string, c Config) *client {
	t.Helper()
	var err error
	if c.URL, err = url.Parse(at); err != nil {
		t.Fatal(err)
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
	tr := New(streamable.New(streamable.Config{URL: c.URL, MaxResult: 32 << 20}), c)
	t.Cleanup(func() {
		if err := tr.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &client{Transport: tr, t: t}
}

const (
	hello = `{"jsonrpc":"2.0","id":"h","method":"initialize","params":{}}`
	ask   = `{"jsonrpc":"2.0","id":"a","method":"test","params":{}}`
	tell  = `{"jsonrpc":"2.0","method":"test","params":{}}`
)

// post sends a message, in a session if one is given.
func (c *client) post(session, body string, header ...string) (transport.Stream, error) {
	c.t.Helper()
	m := transporttest.Message(session, body)
	m.Header = make(http.Header)
	for i := 0; i+1 < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	in, err := transporttest.Send(c.t.Context(), c.Transport, m)
	if in != nil {
		c.t.Cleanup(in.Close)
	}
	return in, err
}

// begin opens a session.
func (c *client) begin(header ...string) string {
	c.t.Helper()
	in, err := c.post("", hello, header...)
	transporttest.Must(c.t, err)
	session := in.Head().Session
	if _, err := transporttest.ReadAll(in); err != nil || !Local(session) {
		c.t.Fatalf("session %q, %v", session, err)
	}
	return session
}

// text is all that is said to a request.
func (c *client) text(session, body string) (string, error) {
	c.t.Helper()
	in, err := c.post(session, body)
	if err != nil {
		return "", err
	}
	return transporttest.ReadAll(in)
}

// wantStatus wants a message to be refused with a status.
func wantStatus(t *testing.T, err error, status int) *transport.StatusError {
	t.Helper()
	se, ok := err.(*transport.StatusError)
	if !ok || se.Status != status {
		t.Fatalf("%v, want status %d", err, status)
	}
	return se
}

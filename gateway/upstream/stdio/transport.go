package stdio

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// Transport is an http.RoundTripper that answers as a Streamable HTTP server would, out of
// processes that it starts when they are needed:
//
//   - A POST of a request is answered with an event stream of what belongs to the request,
//     which ends with the answer. A POST of anything else is answered with 202.
//   - initialize gives a session id. It stands for a process; once that has ended, requests
//     of the session are answered with 404, and the client opens another session.
//   - A GET is answered with an event stream of what belongs to no request.
//   - A DELETE ends a session, and its process if no other session shares it.
//   - The end of a modern request, before its answer, cancels it.
//
// Events have no ids, so no other replica can resume a call. It is safe for concurrent use.
// Its owner closes it.
type Transport struct {
	cfg     Config
	open    func(*Config, *sync.WaitGroup, <-chan struct{}) (duplex, error)
	running sync.WaitGroup // goroutines of servers
	hurry   chan struct{}  // closed when there is no time left to end in order
	hurried sync.Once

	mu       sync.Mutex
	closed   bool
	servers  map[*server]bool      // that take requests
	shared   map[serverKey]*server // those of them that several sessions use
	sessions map[string]*server
	failures int       // in a row: processes that ended before they said anything
	again    time.Time // no process is started before
	why      ending    // of the latest failure
}

var _ upstream.Transport = (*Transport)(nil)

// serverKey names a server that several sessions or callers share.
type serverKey struct {
	owner  string // "" for all
	legacy bool   // it is spoken to with initialize
}

// New makes a transport. No process is started before it is needed.
func New(c Config) *Transport {
	return &Transport{
		cfg: c.withDefaults(), open: startChild, hurry: make(chan struct{}),
		servers: make(map[*server]bool), shared: make(map[serverKey]*server), sessions: make(map[string]*server),
	}
}

// Reach reports whether the program is there. It starts nothing.
func (t *Transport) Reach(context.Context) error {
	_, err := t.cfg.find()
	return err
}

// Close ends all processes in order, and waits for their end. When ctx ends, they are killed.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	all := t.servers
	t.servers = make(map[*server]bool)
	t.mu.Unlock()
	for s := range all {
		s.quit()
	}
	stop := context.AfterFunc(ctx, func() { t.hurried.Do(func() { close(t.hurry) }) })
	t.running.Wait()
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

// RoundTrip answers one request.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		defer req.Body.Close()
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	session := req.Header.Get(mcp.HeaderSession)
	switch req.Method {
	case http.MethodGet:
		return t.get(req, session)
	case http.MethodDelete:
		return t.delete(req, session)
	}
	m, err := jsonrpc.ParseLenient(body)
	switch {
	case err != nil:
		return respond(req, http.StatusBadRequest, nil), nil
	case m.Kind == jsonrpc.Request && m.Method == mcp.MethodInitialize:
		return t.initialize(req, m, body)
	case session == "" && req.Header.Get(mcp.HeaderMethod) != "":
		return t.modern(req, m, body)
	}
	s := t.find(session)
	if s == nil {
		return respond(req, http.StatusNotFound, nil), nil
	}
	if m.Kind != jsonrpc.Request {
		err = s.tell(req.Context(), m, body)
		return answer(req, nil, err)
	}
	st := newStream(req.Context(), s, m.ID, m.Method, session)
	return answer(req, st, s.ask(req.Context(), st, body))
}

// initialize opens a session, with a process of its own or in one that is shared.
func (t *Transport) initialize(req *http.Request, m jsonrpc.Message, line []byte) (*http.Response, error) {
	owner, own := t.ownerOf(upstream.CallerOf(req.Context()), true)
	for {
		s, err := t.server(serverKey{owner, true}, own, false)
		if err != nil {
			return nil, err
		}
		id := rand.Text()
		st := newStream(req.Context(), s, m.ID, m.Method, id)
		t.mu.Lock()
		t.sessions[id] = s
		t.mu.Unlock()
		err = s.greet(req.Context(), st, line)
		if errors.Is(err, errOver) {
			t.forget(id)
			continue // it has ended just now
		}
		resp, err := answer(req, st, err)
		if err == nil {
			resp.Header.Set(mcp.HeaderSession, id)
		}
		return resp, err
	}
}

// modern sends a request of the modern era, which belongs to no session.
func (t *Transport) modern(req *http.Request, m jsonrpc.Message, line []byte) (*http.Response, error) {
	owner, _ := t.ownerOf(upstream.CallerOf(req.Context()), false)
	for {
		s, err := t.server(serverKey{owner, false}, false, m.Method == mcp.MethodDiscover)
		if err != nil {
			return nil, err
		}
		if m.Kind != jsonrpc.Request {
			err = s.tell(req.Context(), m, line)
			return answer(req, nil, err)
		}
		st := newStream(req.Context(), s, m.ID, m.Method, "")
		err = s.ask(req.Context(), st, line)
		if errors.Is(err, errOver) {
			continue // it has ended just now
		}
		if err == nil && s.probe {
			timer := time.AfterFunc(t.cfg.Silence, func() { s.doubt(st) })
			context.AfterFunc(req.Context(), func() { timer.Stop() })
		}
		return answer(req, st, err)
	}
}

// get opens the stream of a session for what belongs to no request.
func (t *Transport) get(req *http.Request, session string) (*http.Response, error) {
	s := t.find(session)
	if s == nil {
		return respond(req, http.StatusNotFound, nil), nil
	}
	st := newStream(req.Context(), s, jsonrpc.ID{}, "", session)
	if !s.listen(st) {
		return respond(req, http.StatusNotFound, nil), nil
	}
	reached(req.Context())
	return respond(req, http.StatusOK, st), nil
}

// delete ends a session.
func (t *Transport) delete(req *http.Request, session string) (*http.Response, error) {
	s := t.find(session)
	if s == nil {
		return respond(req, http.StatusNotFound, nil), nil
	}
	t.forget(session)
	s.leave(session)
	return respond(req, http.StatusNoContent, nil), nil
}

// answer is the response to what a server was sent. A session whose process has ended is one
// that nobody knows.
func answer(req *http.Request, st *stream, err error) (*http.Response, error) {
	switch {
	case errors.Is(err, errOver):
		return respond(req, http.StatusNotFound, nil), nil
	case err != nil:
		return nil, err
	case st == nil:
		return respond(req, http.StatusAccepted, nil), nil
	}
	return respond(req, http.StatusOK, st), nil
}

// respond makes a response; one with a stream is an event stream.
func respond(req *http.Request, status int, st *stream) *http.Response {
	resp := &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header, 2), Body: http.NoBody, Request: req,
	}
	if st != nil {
		resp.Header.Set("Content-Type", mcp.TypeSSE)
		resp.Body, resp.ContentLength = st, -1
	}
	return resp
}

// reached says that the request is about to be written, as net/http does.
func reached(ctx context.Context) {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Reused: true})
	}
}

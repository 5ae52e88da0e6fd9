package duplex

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// Transport is an http.RoundTripper that answers as a Streamable HTTP server would, out of
// Links that it opens when they are needed:
//
//   - A POST of a request is answered with an event stream of what belongs to the request,
//     which ends with the answer. A POST of anything else is answered with 202.
//   - initialize gives a session id. It stands for a server; once that has ended, requests
//     of the session are answered with 404, and the client opens another session.
//   - A GET is answered with an event stream of what belongs to no request.
//   - A DELETE ends a session, and its server if no other session shares it.
//   - The end of a modern request, before its answer, cancels it.
//
// Events have no ids, so no other replica can resume a call. It is safe for concurrent use.
// Its owner closes it.
type Transport struct {
	cfg     Config
	running sync.WaitGroup // goroutines of servers
	hurry   chan struct{}  // closed when there is no time left to end in order
	hurried sync.Once

	mu       sync.Mutex
	closed   bool
	opening  int                   // Links that are being opened, each for one session
	servers  map[*server]bool      // that take requests
	shared   map[serverKey]*server // those of them that several sessions use
	sessions map[string]*server
	failures int       // in a row: servers that ended before they said anything
	again    time.Time // none is opened before
	why      *Ending   // of the latest failure
}

// serverKey names a server that several sessions or callers share.
type serverKey struct {
	owner  string // "" for all
	legacy bool   // it is spoken to with initialize
}

// New makes a transport. No server is opened before it is needed.
func New(c Config) *Transport {
	return &Transport{
		cfg: c.withDefaults(), hurry: make(chan struct{}),
		servers: make(map[*server]bool), shared: make(map[serverKey]*server), sessions: make(map[string]*server),
	}
}

// Close ends all servers in order, and waits for their end. When ctx ends, they are ended at
// once.
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
		return answer(req, nil, s.tell(req.Context(), m.Method, message(req, body)))
	}
	st := newStream(req.Context(), s, m.ID, m.Method, session)
	return answer(req, st, s.ask(req.Context(), st, message(req, body)))
}

// message is what a request brings.
func message(req *http.Request, body []byte) Message {
	return Message{Bytes: body, Header: req.Header}
}

// initialize opens a session, with a server of its own or at one that is shared.
func (t *Transport) initialize(req *http.Request, m jsonrpc.Message, body []byte) (*http.Response, error) {
	owner, own := t.cfg.Owner(req.Context(), true)
	for {
		s, err := t.server(req.Context(), req.Header, serverKey{owner, true}, own, false)
		if err != nil {
			return answer(req, nil, err)
		}
		id := t.cfg.Prefix + rand.Text()
		st := newStream(req.Context(), s, m.ID, m.Method, id)
		t.mu.Lock()
		t.sessions[id] = s
		t.mu.Unlock()
		err = s.greet(req.Context(), st, message(req, body))
		if errors.Is(err, ErrOver) {
			t.forget(id)
			continue // it has ended just now
		}
		resp, failed := answer(req, st, err)
		if err == nil {
			resp.Header.Set(mcp.HeaderSession, id)
		}
		return resp, failed
	}
}

// modern sends a request of the modern era, which belongs to no session.
func (t *Transport) modern(req *http.Request, m jsonrpc.Message, body []byte) (*http.Response, error) {
	owner, _ := t.cfg.Owner(req.Context(), false)
	for {
		s, err := t.server(req.Context(), req.Header, serverKey{owner, false}, false, m.Method == mcp.MethodDiscover)
		if err != nil {
			return answer(req, nil, err)
		}
		if m.Kind != jsonrpc.Request {
			return answer(req, nil, s.tell(req.Context(), m.Method, message(req, body)))
		}
		st := newStream(req.Context(), s, m.ID, m.Method, "")
		err = s.ask(req.Context(), st, message(req, body))
		if errors.Is(err, ErrOver) {
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
	Reached(req.Context())
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

// answer is the response to what a server was sent. A session whose server has ended is one
// that nobody knows.
func answer(req *http.Request, st *stream, err error) (*http.Response, error) {
	var refused *Refusal
	switch {
	case errors.As(err, &refused):
		return refused.Response, nil
	case errors.Is(err, ErrOver):
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

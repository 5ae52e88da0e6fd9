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
//   - A DELETE ends a session, and its server.
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
	opening  map[string]int    // Links that are being opened, by owner
	servers  map[*server]Owner // whose start it was, of each that has not ended
	starting map[string]chan struct{}
	shared   map[string]*server // by owner: those that take requests of the modern era, or of no known one
	sessions map[string]*server
	starts   map[string]*starts // by owner
	gone     chan struct{}      // closed when a server has ended, and then another one
}

// New makes a transport. No server is opened before it is needed.
func New(c Config) *Transport {
	return &Transport{
		cfg: c.withDefaults(), hurry: make(chan struct{}), gone: make(chan struct{}),
		opening: make(map[string]int), servers: make(map[*server]Owner), starting: make(map[string]chan struct{}),
		shared: make(map[string]*server), sessions: make(map[string]*server), starts: make(map[string]*starts),
	}
}

// Close ends all servers in order, and waits for their end. When ctx ends, they are ended at
// once.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	all := make([]*server, 0, len(t.servers))
	for s := range t.servers {
		all = append(all, s)
	}
	t.mu.Unlock()
	for _, s := range all {
		s.quitServer()
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
		return t.openGET(req, session)
	case http.MethodDelete:
		return t.deleteSession(req, session)
	}
	m, err := jsonrpc.ParseLenient(body)
	switch {
	case err != nil:
		return newResponse(req, http.StatusBadRequest, nil), nil
	case m.Kind == jsonrpc.Request && m.Method == mcp.MethodInitialize:
		return t.openSession(req, m, body)
	case session == "" && req.Header.Get(mcp.HeaderMethod) != "":
		return t.sendModern(req, m, body)
	}
	s := t.findServer(session)
	if s == nil {
		return newResponse(req, http.StatusNotFound, nil), nil
	}
	if m.Kind != jsonrpc.Request {
		return answerTo(req, nil, s.sendMessage(req.Context(), readMessage(req, body)))
	}
	st := newStream(req.Context(), s, session, m.ID, m.Method)
	return answerTo(req, st, s.sendRequest(req.Context(), st, readMessage(req, body)))
}

// readMessage is what a request brings.
func readMessage(req *http.Request, body []byte) Message {
	return Message{Bytes: body, Header: req.Header}
}

// openSession opens a session: with a server of its owner that was only asked which era it
// speaks, or else with a new one.
func (t *Transport) openSession(req *http.Request, m jsonrpc.Message, body []byte) (*http.Response, error) {
	for {
		id := t.cfg.Prefix + rand.Text()
		s, err := t.claimServer(req, id, m.Params)
		if err != nil {
			return answerTo(req, nil, err)
		}
		st := newStream(req.Context(), s, id, m.ID, m.Method)
		err = s.sendRequest(req.Context(), st, readMessage(req, body))
		if errors.Is(err, ErrOver) {
			t.forgetSession(id)
			continue // it has ended just now
		}
		resp, failed := answerTo(req, st, err)
		if err == nil {
			resp.Header.Set(mcp.HeaderSession, id)
		}
		return resp, failed
	}
}

// sendModern sends a request of the modern era, which belongs to no session.
func (t *Transport) sendModern(req *http.Request, m jsonrpc.Message, body []byte) (*http.Response, error) {
	owner := t.cfg.Owner(req.Context(), false)
	for {
		s, err := t.shareOf(req.Context(), req.Header, owner)
		if err != nil {
			return answerTo(req, nil, err)
		}
		if m.Kind != jsonrpc.Request {
			return answerTo(req, nil, s.sendMessage(req.Context(), readMessage(req, body)))
		}
		st := newStream(req.Context(), s, "", m.ID, m.Method)
		err = s.sendRequest(req.Context(), st, readMessage(req, body))
		if errors.Is(err, ErrOver) {
			continue // it has ended just now, or has become a session
		}
		if err == nil && m.Method == mcp.MethodDiscover && t.cfg.Silence > 0 {
			timer := time.AfterFunc(t.cfg.Silence, func() { s.answerDiscover(st) })
			context.AfterFunc(req.Context(), func() { timer.Stop() })
		}
		return answerTo(req, st, err)
	}
}

// openGET opens the stream of a session for what belongs to no request.
func (t *Transport) openGET(req *http.Request, session string) (*http.Response, error) {
	s := t.findServer(session)
	if s == nil {
		return newResponse(req, http.StatusNotFound, nil), nil
	}
	st := newStream(req.Context(), s, session, jsonrpc.ID{}, "")
	if !s.openListening(st) {
		return newResponse(req, http.StatusNotFound, nil), nil
	}
	Reached(req.Context())
	return newResponse(req, http.StatusOK, st), nil
}

// deleteSession ends a session, and its server.
func (t *Transport) deleteSession(req *http.Request, session string) (*http.Response, error) {
	s := t.findServer(session)
	if s == nil {
		return newResponse(req, http.StatusNotFound, nil), nil
	}
	s.quitServer()
	return newResponse(req, http.StatusNoContent, nil), nil
}

// answerTo is the response to what a server was sent. A session whose server has ended is one
// that nobody knows.
func answerTo(req *http.Request, st *stream, err error) (*http.Response, error) {
	var refused *Refusal
	switch {
	case errors.As(err, &refused):
		return refused.Response, nil
	case errors.Is(err, ErrOver):
		return newResponse(req, http.StatusNotFound, nil), nil
	case err != nil:
		return nil, err
	case st == nil:
		return newResponse(req, http.StatusAccepted, nil), nil
	}
	return newResponse(req, http.StatusOK, st), nil
}

// newResponse makes a response; one with a stream is an event stream.
func newResponse(req *http.Request, status int, st *stream) *http.Response {
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

// findServer is the server of a session; nil if there is none.
func (t *Transport) findServer(session string) *server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[session]
}

// forgetSession drops a session.
func (t *Transport) forgetSession(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, session)
}

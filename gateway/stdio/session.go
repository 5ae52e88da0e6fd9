package stdio

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"sync"
	"time"

	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
)

// listenAgain is the pause before a GET stream that has ended is opened again.
const listenAgain = time.Second

var errNoSession = errors.New("no session could be opened")

// session is the session of a client of the 2025 versions with the gateway.
type session struct {
	turn chan struct{} // held by the one that opens another session

	mu    sync.Mutex
	id    string             // "" without a session
	hello []byte             // the parameters of its initialize
	deaf  context.CancelFunc // ends its GET stream; nil until the client has sent notifications/initialized
}

// currentID is the id of the session; "" without a session.
func (s *session) currentID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// noteOpened notes a session, in place of an earlier one, whose GET stream ends. It returns the id of
// the earlier one.
func (s *session) noteOpened(id string, hello []byte) (before string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.id
	s.id, s.hello = id, hello
	if s.deaf != nil {
		s.deaf()
		s.deaf = nil
	}
	return before
}

// openSession opens a session for the client.
func (x *inFlight) openSession(text, hello []byte) {
	w, err := x.c.serveHTTP(wire.OverStdio(x.ctx, func() {}), http.MethodPost, "", text, x.emitMessage)
	if err == nil && w.header.Get(mcp.HeaderSession) != "" {
		before := x.c.session.noteOpened(w.header.Get(mcp.HeaderSession), bytes.Clone(hello))
		if before != "" { // the client begins anew
			_, _ = x.c.serveHTTP(x.ctx, http.MethodDelete, before, nil, nobody)
		}
	}
	x.finishAnswer(w, err)
}

// openStream opens the stream for messages outside of requests, once the client may be sent
// something (X10).
func (c *Conn) openStream() {
	s := &c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == "" || s.deaf != nil {
		return
	}
	ctx, deaf := context.WithCancel(c.ctx)
	s.deaf = deaf
	id := s.id
	c.running.Go(func() { c.listenUntilEnd(ctx, id) })
}

// listenUntilEnd hands out messages outside of requests, until ctx ends or the session is lost.
func (c *Conn) listenUntilEnd(ctx context.Context, id string) {
	for {
		w, err := c.serveHTTP(ctx, http.MethodGet, id, nil, c.out.sendLine)
		if err == nil && w.status == http.StatusNotFound && ctx.Err() == nil {
			_, _ = c.renewSession(ctx, id) // if it fails, the next request tries again
			return
		}
		if work.Pause(ctx, listenAgain) != nil {
			return
		}
	}
}

// renewSession opens a session in place of one that the gateway has forgotten, as a client over HTTP would
// (X11): a client over stdio knows nothing of sessions. The log level, subscriptions and tasks of
// the lost session are gone.
func (c *Conn) renewSession(ctx context.Context, lost string) (id string, err error) {
	s := &c.session
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	s.mu.Lock()
	id, hello, ready := s.id, s.hello, s.deaf != nil
	s.mu.Unlock()
	if id != lost {
		return id, nil // another goroutine was quicker
	}
	c.o.Logger.Warn("the session of the client was lost, and another one is opened")
	hi := jsonrpc.AppendRequest(nil, jsonrpc.StringID("taskgate-"+rand.Text()), mcp.MethodInitialize, hello)
	w, err := c.serveHTTP(wire.OverStdio(c.ctx, func() {}), http.MethodPost, "", hi, nobody)
	if err != nil {
		return "", err
	}
	if id = w.header.Get(mcp.HeaderSession); id == "" {
		return "", errNoSession
	}
	s.noteOpened(id, hello)
	if ready {
		_, _ = c.serveHTTP(c.ctx, http.MethodPost, id, jsonrpc.AppendNotification(nil, mcp.NotifyInitialized, nil), nobody)
		c.openStream()
	}
	return id, nil
}

package duplex

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/mcp"
)

// Transport makes a transport of Links that it opens when they are needed. An initialize makes a session id,
// which stands for a server. Once that has ended, requests of the session are refused as those of an unknown
// one, and the client opens another session. The end of a session ends its server. A modern request is
// cancelled by leaving its stream before the answer.
//
// Events have no ids, so other replicas cannot resume a call. It is safe for concurrent use. Its owner closes
// it.
type Transport struct {
	cfg     Config
	running sync.WaitGroup // goroutines of servers
	hurry   chan struct{}  // closed when the time to end in order is over
	hurried sync.Once

	mu       sync.Mutex
	closed   bool
	servers  map[*server]Owner  // those that run or are being opened, with the owner that each counts for
	starting map[string]bool    // by owner: one for the modern era is being opened
	shared   map[string]*server // by owner: those for the modern era, or of an unknown one
	sessions map[string]*server
	starts   map[string]*starts // by owner
	changed  chan struct{}      // closed and renewed when a server has ended, or the opening of a shared one
}

// New makes a transport. Servers are opened when they are needed.
func New(c Config) *Transport {
	return &Transport{
		cfg: c.withDefaults(), hurry: make(chan struct{}), changed: make(chan struct{}),
		servers: make(map[*server]Owner), starting: make(map[string]bool),
		shared: make(map[string]*server), sessions: make(map[string]*server), starts: make(map[string]*starts),
	}
}

// Close ends all servers in order, and waits for their end. When ctx ends, they are ended at once, and it
// returns the cause.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	all := make([]*server, 0, len(t.servers))
	for s := range t.servers {
		if s.link != nil {
			all = append(all, s)
		}
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

// Request sends a request to the server of its session or, in the modern era, to that of its owner. An
// initialize goes to a server of its owner that was asked only for its era, or else to a new one.
func (t *Transport) Request(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	for {
		s, session, err := t.serverOf(ctx, m)
		if err != nil {
			return nil, err
		}
		st := newStream(ctx, s, m)
		st.m.Session = session
		err = s.sendRequest(ctx, st, m)
		switch over := errors.Is(err, ErrOver); { // the server has ended just now, or has become a session
		case over && (m.Modern || m.Method == mcp.MethodInitialize):
		case over:
			return nil, transport.UnknownSession(m)
		case err != nil:
			return nil, err
		default:
			return st, nil
		}
	}
}

// serverOf returns the server for a request, and the session that the request belongs to or opens, if any.
func (t *Transport) serverOf(ctx context.Context, m *transport.Outgoing) (s *server, session string, err error) {
	switch {
	case m.Method == mcp.MethodInitialize:
		session = t.cfg.Prefix + rand.Text()
		s, err = t.claimServer(ctx, m, session)
	case m.Modern:
		s, err = t.shareOf(ctx, m, t.cfg.Owner(m.Caller, false))
	default:
		session = m.Session
		if s = t.findServer(session); s == nil {
			err = transport.UnknownSession(m)
		}
	}
	return s, session, err
}

// Notify sends a notification or a response, in a session.
func (t *Transport) Notify(ctx context.Context, m *transport.Outgoing) error {
	s := t.findServer(m.Session)
	if s == nil {
		return transport.UnknownSession(m)
	}
	s.mu.Lock()
	s.noteMessage()
	s.mu.Unlock()
	err := s.link.Send(ctx, m, nil)
	if errors.Is(err, ErrOver) {
		return transport.UnknownSession(m)
	}
	return err
}

// Listen opens the stream of a session for messages outside of any request.
func (t *Transport) Listen(ctx context.Context, m *transport.Outgoing) (transport.Stream, error) {
	s := t.findServer(m.Session)
	if s == nil {
		return nil, transport.UnknownSession(m)
	}
	st := newStream(ctx, s, m)
	if !s.openListening(st) {
		return nil, transport.UnknownSession(m)
	}
	m.NoteReached()
	return st, nil
}

// EndSession ends a session, and its server.
func (t *Transport) EndSession(_ context.Context, m *transport.Outgoing) error {
	s := t.findServer(m.Session)
	if s == nil {
		return transport.UnknownSession(m)
	}
	s.quitServer()
	return nil
}

// findServer returns the server of a session; nil for an unknown session.
func (t *Transport) findServer(session string) *server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[session]
}

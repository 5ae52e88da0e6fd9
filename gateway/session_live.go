package gateway

import (
	"context"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// session is the live part of a client session on this replica.
type session struct {
	id    string
	table *sessionTable

	// ctx ends with the session, with the cause shim.ErrCancelled, or once this
	// replica has nothing going on in it.
	ctx    context.Context
	cancel context.CancelCauseFunc

	// pins counts the requests and streams that hold it, since is when the first
	// of them came. Both are guarded by table.mu.
	pins  int
	since time.Time

	out    *outbox // what waits for the GET stream
	listen *listener
	news   bell // rings when the session has new tasks
	posed  bell // rings when its server has asked something outside of any call
	notes  taskNotes

	mu        sync.Mutex
	rev       int64 // of state; 0 before it was loaded
	state     sessionState
	calls     map[string]context.CancelCauseFunc // in flight, by the key of their id
	streaming bool                               // a GET stream is open

	streamEnd  context.CancelFunc // ends it
	streamGone chan struct{}      // closed when it has ended
	unsent     int64              // number of the message after the last one that the last GET stream here was sent; 0: none was kept
	leg        Leg                // the one that is listened to

	pushes   map[shim.ID]*push        // of segments
	asks     map[string]chan struct{} // what the replica with the GET stream was asked
	answered map[string]bool          // what this one was
}

func newSession(t *sessionTable, id string) *session {
	s := &session{id: id, table: t, out: newOutbox(), news: make(bell, 1), posed: make(bell, 1), calls: make(map[string]context.CancelCauseFunc)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.listen = newListener(s)
	return s
}

// release is the end of a request's use of the session: idle time begins now, and
// not when a long call or stream began.
func (s *session) release() {
	if s.table.unpin(s) {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		_, _, _ = s.table.store.Get(ctx, s.id) // if it fails, the session ends earlier than it might
	}
}

// lingers reports whether the live part is worth keeping without a request.
func (s *session) lingers() bool { return s.ctx.Err() == nil && (s.listen.active() || !s.out.empty()) }

// load reads the state as it is stored now.
func (s *session) load(ctx context.Context) (sessionState, error) {
	b, rev, err := s.table.store.Get(ctx, s.id)
	if err != nil {
		return sessionState{}, err
	}
	if rev == 0 {
		return sessionState{}, errNoSession
	}
	s.mu.Lock()
	known, st := s.rev == rev, s.state
	s.mu.Unlock()
	if known {
		return st, nil
	}
	if st, err = decodeSession(b); err != nil {
		return st, err
	}
	s.learn(rev, st)
	return st, nil
}

// learn keeps a state unless a newer one is known.
func (s *session) learn(rev int64, st sessionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev > s.rev {
		s.rev, s.state = rev, st
	}
}

// current is the state as this replica knows it: as of the last request here.
func (s *session) current() sessionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// update changes the stored state. Where another request changes it at the same
// time, change is applied again to what that one made of it.
func (s *session) update(ctx context.Context, change func(sessionState) sessionState) error {
	for {
		if _, err := s.load(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		rev := s.rev
		st := change(s.state)
		s.mu.Unlock()
		b, err := st.encode()
		if err != nil {
			return err
		}
		next, err := s.table.store.Put(ctx, s.id, rev, b)
		if err != nil {
			return err
		}
		if next != 0 {
			s.learn(next, st)
			return nil
		}
	}
}

// subscribe adds a resource to the session's subscriptions, or removes it.
func (s *session) subscribe(ctx context.Context, uri string, on bool) error {
	return s.update(ctx, func(st sessionState) sessionState { return st.subscribed(uri, on) })
}

// follow listens upstream for what the session wants to hear now, and returns what
// the upstream agreed to. Without a GET stream it does so only for a while.
func (s *session) follow(ctx context.Context, leg Leg) shim.Filter {
	s.mu.Lock()
	s.leg = leg
	s.mu.Unlock()
	agreed := s.listen.start(ctx, leg)
	if !s.attached() {
		s.listen.rest()
	}
	return agreed
}

// begin registers a request in flight. Its context has the values of ctx but not
// its end: a client whose connection is gone has not cancelled (X3). It ends by
// notifications/cancelled, or with the session. begin reports false for an id that
// is already in use.
func (s *session) begin(ctx context.Context, id jsonrpc.ID) (context.Context, func(), bool) {
	key := id.Key()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.calls[key]; ok {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	s.calls[key] = cancel
	return ctx, func() {
		stop()
		cancel(nil)
		s.mu.Lock()
		delete(s.calls, key)
		s.mu.Unlock()
	}, true
}

// abort cancels a request in flight, here or on another replica. An id that is not
// in flight anywhere is ignored: the answer and the cancellation may have crossed.
func (s *session) abort(ctx context.Context, id jsonrpc.ID) error {
	if s.abortKey(id.Key()) {
		return nil
	}
	return s.table.store.Signal(ctx, s.id, cancelWord+id.Key())
}

// abortKey cancels a request in flight on this replica, and reports whether there is
// one.
func (s *session) abortKey(key string) bool {
	s.mu.Lock()
	cancel := s.calls[key]
	s.mu.Unlock()
	if cancel != nil {
		cancel(shim.ErrCancelled)
	}
	return cancel != nil
}

// attach makes the caller the session's one GET stream (X4); it reports false
// while there is another.
func (s *session) attach() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := !s.streaming
	s.streaming = true
	if ok {
		s.streamGone = make(chan struct{})
	}
	return ok
}

func (s *session) detach() {
	s.mu.Lock()
	s.streaming, s.streamEnd = false, nil
	close(s.streamGone)
	s.mu.Unlock()
}

// attached reports whether a GET stream is open.
func (s *session) attached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streaming
}

// upstream is the session's own session with its upstream (design.md 0.16). Declared
// there is what the client can be asked (protocol.md H4).
func (s *session) upstream() shim.Session {
	st := s.current()
	return shim.Session{Key: s.id, Shared: true, ClientInfo: st.ClientInfo, Capabilities: answerable(st.Capabilities)}
}

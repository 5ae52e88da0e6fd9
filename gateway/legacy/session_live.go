package legacy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"net/url"
	"slices"
	"sync"
	"time"

	"taskgate/gateway/translate"
	"taskgate/gateway/upstream/forward"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// session is the live part of a client session on this replica.
type session struct {
	id      string
	table   *Table
	passing bool // it is of one request only, and unknown to the store; set before anybody else knows it

	// ctx ends with the session, with the cause shim.ErrCancelled, or once the live part is forgotten.
	ctx    context.Context
	cancel context.CancelCauseFunc

	// pins counts the requests and streams that hold it. It is guarded by table.mu.
	pins int

	listen  *listener
	notes   taskNotes
	changes work.Turn // to change the stored state here

	mu    sync.Mutex
	rev   int64 // of state; 0 before it was loaded
	turn  int64 // counts the states written here
	state sessionState
	calls map[string][]*inFlight // by callKey of their id
	key   string                 // of the last request that began here
	words uint64                 // likewise
	same  bool                   // requests with different words have had one id
	get   *getHold               // nil if no GET stream is here
	left  time.Time              // when the last one ended
}

func newSession(t *Table, id string) *session {
	s := &session{id: id, table: t, calls: make(map[string][]*inFlight), changes: work.NewTurn()}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.listen = newListener(s)
	return s
}

// endUse ends one use of a live part, which is forgotten after its last use. Idle time begins now, at the end
// of a long call or stream: see Sessions.Run.
func (s *session) endUse() {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.pins--
	s.table.forgetSession(s)
}

// noteUse notes that the session has had a request besides its handshake. keep is the time of a task that was made in
// it: a caller without a name finds the task by the session.
func (t *Table) noteUse(ctx context.Context, s *session, keep time.Duration) {
	if s.passing {
		return
	}
	ctx, cancel := t.withPatience(ctx)
	defer cancel()
	t.store.Use(ctx, s.id, keep)
}

// isWorthKeeping reports whether the live part is kept between requests.
func (s *session) isWorthKeeping() bool { return s.ctx.Err() == nil && s.listen.isActive() }

// loadState reads the state as it is stored now.
func (s *session) loadState(ctx context.Context) (sessionState, error) {
	st, _, err := s.loadRev(ctx)
	return st, err
}

// loadRev is loadState with the revision of the state.
func (s *session) loadRev(ctx context.Context) (st sessionState, rev int64, err error) {
	s.mu.Lock()
	turn := s.turn
	s.mu.Unlock()
	b, rev, err := s.table.store.Get(ctx, s.id)
	if err != nil {
		return st, 0, err
	}
	if rev == 0 {
		return st, 0, errNoSession
	}
	s.mu.Lock()
	known, st := s.rev == rev, s.state
	s.mu.Unlock()
	if known {
		return st, rev, nil
	}
	if st, err = decodeSession(b); err != nil {
		return st, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn == s.turn { // else it may be older than what was written here meanwhile
		s.rev, s.state = rev, st
	}
	return st, rev, nil
}

// noteWritten keeps a state that was written in place of the one with revision was.
func (s *session) noteWritten(was, rev int64, st sessionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	if s.rev == was {
		s.rev, s.state = rev, st
	}
}

// currentState is the state as this replica knows it: as of the last request here.
func (s *session) currentState() sessionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// updateState changes the stored state. If change fails, the state stays, and its error is returned. If another
// replica changes the state at the same time, change is applied again to the new one. Changes here are made one
// after the other, so that the state known here is the last one. That of a passing session stays: nobody reads it
// again.
func (s *session) updateState(ctx context.Context, change func(sessionState) (sessionState, error)) error {
	if s.passing {
		return nil
	}
	if err := s.changes.TakeWithin(ctx); err != nil {
		return fmt.Errorf("%w: %w", shim.ErrUnavailable, err)
	}
	defer s.changes.Give()
	for {
		st, rev, err := s.loadRev(ctx)
		if err == nil {
			st, err = change(st)
		}
		if err != nil {
			return err
		}
		next, err := s.table.store.Put(ctx, s.id, rev, st.encode())
		if err != nil {
			return err
		}
		if next != 0 {
			s.noteWritten(rev, next, st)
			return nil
		}
	}
}

// subscribeTo adds a resource to the session's subscriptions, if there is room for it.
func (s *session) subscribeTo(ctx context.Context, uri string) error {
	return s.updateState(ctx, func(st sessionState) (sessionState, error) {
		next, err := st.addSubscription(uri)
		if err == nil {
			err = s.table.countState(s.id, shim.Share{Owner: st.Owner}, len(next.encode()))
		}
		return next, err
	})
}

func (s *session) unsubscribeFrom(ctx context.Context, uri string) error {
	return s.updateState(ctx, func(st sessionState) (sessionState, error) {
		next := st.withSubscription(uri, false)
		return next, s.table.countState(s.id, shim.Share{Owner: st.Owner}, len(next.encode()))
	})
}

// beginRequest registers a request in flight. Its context has the values of ctx, and ends by
// notifications/cancelled or with the session: a lost connection is no cancellation (X3). Several requests may have
// one id, since each is answered on its own response: claude.ai gives all of them the id 1 (claude-ai-mcp #539). It
// returns false for a call that is in flight with the same id and the same words: something between here and the
// client has repeated it, and a tool must not run twice for that. This is not believed of a client that has been
// seen here to give one id to different requests: it makes the same call twice itself.
func (s *session) beginRequest(ctx context.Context, p shim.Principal, m jsonrpc.Message) (context.Context, func(), bool) {
	key, words := s.currentState().callKeyOf(p, m.ID), hashWords(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.same = s.same || s.key == key && s.words != words
	s.key, s.words = key, words
	if m.Method == mcp.MethodToolsCall && !s.same && slices.ContainsFunc(s.calls[key], func(other *inFlight) bool { return other.words == words }) {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	call := &inFlight{ctx, cancel, time.Now(), words}
	s.calls[key] = append(s.calls[key], call)
	return ctx, func() {
		stop()
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		rest := slices.DeleteFunc(slices.Clone(s.calls[key]), func(other *inFlight) bool { return other == call })
		if s.calls[key] = rest; len(rest) == 0 {
			delete(s.calls, key)
		}
	}, true
}

// wordsSeed is that of inFlight.words.
var wordsSeed = maphash.MakeSeed()

func hashWords(m jsonrpc.Message) uint64 {
	var h maphash.Hash
	h.SetSeed(wordsSeed)
	_, _ = h.WriteString(m.Method) // it never fails
	_, _ = h.Write(m.Params)
	return h.Sum64()
}

// inFlight is a request of the session that runs here.
type inFlight struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	since  time.Time
	words  uint64 // a hash of its method and parameters
}

// maxCallKey bounds the key of a request, in bytes: a client chooses its ids, and the key goes to every
// replica.
const maxCallKey = 64

// maxReason bounds the reason of a cancellation that goes to every replica, in bytes: it is longer than those that say
// that the client gave up.
const maxReason = 128

// callKey tells the requests of a session apart.
func callKey(id jsonrpc.ID) string {
	key := id.Key()
	if len(key) <= maxCallKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "#" + hex.EncodeToString(sum[:])
}

// callKeyOf is the key of a principal's request.
func (st sessionState) callKeyOf(p shim.Principal, id jsonrpc.ID) string {
	return st.branchOf(p) + callKey(id)
}

// abortRequest cancels a request of a principal in flight, here or on another replica. Any other id is ignored: the answer and
// the cancellation may have crossed. A long reason is cut on the way to another replica.
func (s *session) abortRequest(ctx context.Context, p shim.Principal, id jsonrpc.ID, reason string) error {
	key := s.currentState().callKeyOf(p, id)
	token := forward.SealToken(ctx, key)
	if s.abortKey(key, time.Now(), token, reason) {
		return nil
	}
	return s.table.store.Signal(ctx, s.id, cancelSignal+url.QueryEscape(reason[:min(len(reason), maxReason)])+" "+key, token)
}

// abortKey cancels a request in flight on this replica, and reports whether there is one. A request that came
// after the cancellation is a new one with the same id. If several have the id here, the cancellation is ignored: nobody
// knows which of them it means. token is that of the cancellation; "" if it has none, or if it was lost on its way
// from another replica.
func (s *session) abortKey(key string, at time.Time, token, reason string) bool {
	s.mu.Lock()
	calls := s.calls[key]
	s.mu.Unlock()
	if len(calls) != 1 {
		return len(calls) > 0
	}
	call := calls[0]
	if call.since.After(at) {
		return false
	}
	forward.BringToken(call.ctx, key, token)
	call.cancel(&shim.CancelledError{Reason: reason})
	return true
}

// upstreamSession is the session's own session with its upstream (design.md 0.16), in which it declares the
// capabilities of its client (protocol.md H4). It stays in the era in which it began.
func (s *session) upstreamSession(ctx context.Context) shim.Session {
	st := s.currentState()
	caps := translate.ClientCapabilities(st.Capabilities, translate.ClientView{Asked: true, RootsChange: true})
	of := shim.Session{
		Key: s.id, Principal: st.Owner, Mark: forward.Mark(ctx), Token: forward.Of(ctx).Token, Shared: true, Legacy: st.Legacy, ClientInfo: st.ClientInfo, Capabilities: caps,
	}
	if s.passing {
		of.Key, of.Shared = st.Owner, false // as a call of a modern client
	}
	return of
}

// principalOf returns the principal for requests of this session. A caller without a name sees the tasks of the
// session (design.md 0.7).
func (s *session) principalOf(p shim.Principal) shim.Principal {
	if p.Subject == "" {
		p.Session = s.id
	}
	return p
}

// askedPrincipal is the principal to whom a question belongs: the session's owner for one that the server asks
// outside of any call, with any token its client has by now, and the caller for one of a call.
func (s *session) askedPrincipal(call shim.ID, p shim.Principal) shim.Principal {
	if slices.Contains(s.currentState().SessionQuestions, call) {
		return s.owner()
	}
	return s.principalOf(p)
}

// owner is the principal to whom the session belongs.
func (s *session) owner() shim.Principal {
	return s.principalOf(shim.Principal{Subject: s.currentState().Owner})
}

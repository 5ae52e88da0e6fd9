package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/sse"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// session is one legacy session with the server, through all its generations: when the server loses it, it is
// opened anew under the same key.
//
// The table owns it. A caller pins the session while it uses it. mu guards the fields below it.
type session struct {
	t         *sessionTable
	key       sessionKey
	from      shim.Session
	listeners listeners
	subs      subscriptionsSlot
	get       getStream
	calls     sessionCalls
	questions sessionQuestions
	lists     sessionLists
	doubt     sessionDoubt
	opening   singleflight.Group

	mu    sync.Mutex
	refs  int
	ends  bool          // it ends with its last release: it belongs to one call, or the client's session is over
	kept  bool          // a detached call may be resumed in it, so this client never deletes it
	cur   *generation   // nil before the handshake
	timer *time.Timer   // ends an idle session
	idle  time.Duration // how long it may be idle
	level string        // the log level that the server was set; "" for none
	lost  int64         // the latest shared generation that the server has lost

	readyAt atomic.Int64                  // when the server was told that its client is ready, in nanoseconds since 1970
	carried atomic.Pointer[forward.Parts] // what the latest request in it carried; nil for nothing

	// info is all of the client's clientInfo, for the first handshake alone: an icon may be long.
	info   atomic.Pointer[json.RawMessage]
	shared atomic.Bool // with other replicas (shared.go)
	usage  sessionUsage
	over   bool // its client has ended it
}

// generation is a session from one handshake to the next: what the handshake agreed on.
type generation struct {
	target
	server Description
	born   time.Time   // zero if unknown
	ready  atomic.Bool // the server was told that the client is ready
}

func newSession(t *sessionTable, k sessionKey, s shim.Session) *session {
	info := s.ClientInfo
	s.Capabilities, s.ClientInfo = bytes.Clone(s.Capabilities), bytes.Clone(BriefInfo(info)) // the client's message is not kept
	ses := &session{t: t, key: k, from: s, idle: t.wire.cfg.SessionIdle, subs: make(subscriptionsSlot, 1)}
	ses.info.Store(&info)
	ses.get.s, ses.lists.s, ses.doubt.s, ses.calls.stream = ses, ses, ses, &ses.get
	ses.usage.s, ses.usage.turn = ses, work.NewTurn()
	ses.calls.told = make(map[string]*exchange)
	ses.calls.claimed, _ = lru.New[string, struct{}](maxClaimed) // fails only for size 0
	ses.listeners.m = make(map[*listenCall]struct{})
	ses.questions.m = make(map[sessionQuestionKey]*sessionQuestion)
	ses.questions.roots.asked, ses.questions.roots.settled = make(chan struct{}), make(chan struct{})
	ses.subs <- subscribed{listeners: make(map[string]int), told: make(map[string]*generation)}
	if t.isShared(s) && !t.wire.isLocal() {
		ses.shared.Store(true)
		t.hearOthers()
	}
	return ses
}

func (s *session) pinSession() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs++
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.shared.Load() {
		s.usage.beginUse()
	}
}

// releaseSession undoes a pin.
func (s *session) releaseSession() {
	s.mu.Lock()
	s.refs--
	last, over := s.refs == 0, s.ends
	if last {
		s.usage.endUse()
	}
	if last && !over {
		if s.timer == nil {
			s.timer = time.AfterFunc(s.idle, func() { s.t.expireSession(s) })
		} else {
			s.timer.Reset(s.idle)
		}
	}
	s.mu.Unlock()
	if last && over {
		s.get.closeUnused()
		s.deleteAtServer()
	}
}

// retainSession keeps the session at the server, for the replica that resumes a detached call in it.
func (s *session) retainSession() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = true
}

// finishSession ends a session that has left the table, at once or with its last release. A session that
// replicas share is left to the others.
func (s *session) finishSession() {
	s.mu.Lock()
	s.ends = true
	busy := s.refs > 0
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.get.closeUnused()
	if !busy {
		s.deleteAtServer()
	}
}

// deleteAtServer ends the session at the server. A session that replicas share idles out instead.
func (s *session) deleteAtServer() {
	if s.shared.Load() {
		return
	}
	s.mu.Lock()
	l := s.cur
	s.cur = nil
	kept := s.kept
	s.mu.Unlock()
	if l != nil && !kept {
		s.t.discardGeneration(s.carryLatest(context.Background()), l)
	}
}

// deleteTimeout bounds the end of a session.
const deleteTimeout = 5 * time.Second

func (s *session) isOpen() bool { return s.currentGeneration() != nil }

// noteCarried remembers the headers and token that a request carries.
func (s *session) noteCarried(ctx context.Context) {
	if f := forward.Of(ctx); f != forward.Nothing {
		s.carried.Store(f)
	}
}

// carryLatest has the session's own requests carry what its latest request did: the part that tells callers
// apart is the same for all of them.
func (s *session) carryLatest(ctx context.Context) context.Context {
	if f := s.carried.Load(); f != nil {
		return forward.For(forward.With(ctx, f), forward.Later)
	}
	return ctx
}

// openGeneration returns the session's generation, once the server knows that its client is ready. It shakes hands if
// necessary. Errors are those of exchange.runRequest.
func (s *session) openGeneration(ctx context.Context) (*generation, error) {
	for again := false; ; again = true {
		l, err := s.connectGeneration(ctx)
		if err == nil {
			err = l.introduceClient(ctx, s)
		}
		if err == nil {
			return l, nil
		}
		if se, ok := err.(*transport.StatusError); !ok || !se.IsSessionLost() || again {
			return nil, err
		}
		s.loseGeneration(l) // it was lost between its handshake and its first use
	}
}

// connectGeneration is openGeneration for a client that has yet to say that it is ready. All who need it wait for
// the same handshake.
func (s *session) connectGeneration(ctx context.Context) (*generation, error) {
	s.noteCarried(ctx)
	if l := s.currentGeneration(); l != nil {
		return l, nil
	}
	return work.Once(ctx, s.t.work, &s.opening, "", func(ctx context.Context) (*generation, error) {
		if l := s.currentGeneration(); l != nil {
			return l, nil
		}
		defer s.info.Store(nil)
		return s.shakeHands(ctx)
	})
}

// BriefInfo is what is kept of a clientInfo: name, title and version.
func BriefInfo(info json.RawMessage) json.RawMessage {
	return jsonrpc.Edit(info, func(name string, value json.RawMessage) json.RawMessage {
		switch name {
		case "name", "title", "version":
			return value
		}
		return nil
	})
}

// currentGeneration is the generation in use; nil while the session is closed.
func (s *session) currentGeneration() *generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// isOver reports whether the session is over for good: its last release has deleted it, or has left it to the
// replica that resumes a call in it. s.mu is held.
func (s *session) isOver() bool {
	return s.refs == 0 && s.ends && !s.shared.Load()
}

// shakeHands opens one generation, and settles whether the session is kept.
func (s *session) shakeHands(ctx context.Context) (*generation, error) {
	s.mu.Lock()
	if s.isOver() { // the call that wanted the GET stream was over before the stream began
		s.mu.Unlock()
		return nil, errOver
	}
	s.mu.Unlock()
	l, err := s.beginGeneration(ctx)
	s.mu.Lock()
	if err == nil {
		s.cur, s.kept = l, false // a new generation has no call to resume
		s.calls.claimed.Purge()  // the server may use the ids of the old one again
	}
	anonymous := s.key.key == "" && !s.t.wire.cfg.Shared
	over := s.isOver()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s.get.nudgeStream(false)
	switch {
	case over:
		s.deleteAtServer() // the callers that wanted it have left meanwhile
	case anonymous && l.session == "":
		// A server without session ids sees all our requests alike, so the handshake serves every call (X14).
		s.setEnds(!s.t.shareSession(s))
	case anonymous:
		s.setEnds(true)
		s.t.removeSession(s) // it may have been shared while the server had no session ids
	}
	return l, nil
}

// beginGeneration opens one generation, or joins the one that another replica has opened.
func (s *session) beginGeneration(ctx context.Context) (*generation, error) {
	if s.t.isShared(s.from) && !s.t.wire.isLocal() {
		l, err := s.openShared(ctx)
		if l != nil {
			s.shared.Store(!sse.Local(l.session))
		}
		if l != nil || err != nil {
			return l, err
		}
	}
	s.shared.Store(false)
	return s.initializeServer(ctx)
}

// setEnds sets whether the session belongs to one call.
func (s *session) setEnds(ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = ends
}

// loseGeneration drops a generation that the server has forgotten. The next open shakes hands anew; that
// happens once per generation, however many calls met the loss (design.md 0.16). The GET stream moves, too.
func (s *session) loseGeneration(l *generation) {
	s.get.learnNeed(l)
	s.mu.Lock()
	s.lost = max(s.lost, l.gen)
	if s.cur == l {
		s.cur = nil
		s.t.wire.sessionEnded(l, shim.KindSession)
	}
	s.mu.Unlock()
	s.get.leaveGeneration(l)
}

// verifyGeneration finds out by a ping whether the server still knows a generation, after an answer that
// leaves it open. A server answers a ping in every session that it knows; a server that refuses it has lost
// the session, or is no legacy server any more. Some servers say 400 where 404 is due (X6; the examples of
// the TypeScript SDK do). A generation that the server has forgotten is dropped. The error says that it is
// lost, or that the ping failed.
func (s *session) verifyGeneration(ctx context.Context, l *generation) error {
	err := s.pingServer(ctx, l)
	// Before it has heard that its client is ready, the server may refuse everything.
	if se, ok := err.(*transport.StatusError); ok && l.ready.Load() && (se.Status == http.StatusBadRequest || se.Status == http.StatusNotFound) {
		s.loseGeneration(l)
	}
	return err
}

// pingServer returns why a ping in a generation failed; nil if it was answered. Errors are those of
// exchange.runRequest.
func (s *session) pingServer(ctx context.Context, l *generation) error {
	ctx, cancel := s.t.wire.slowContext(ctx)
	defer cancel()
	_, err := s.newExchange(l.target, shim.Request{Method: mcp.MethodPing, Session: s.from}, nil).runRequest(ctx)
	return err
}

// sessionDoubt is the doubt about a generation that is shared by clients. A server that has lost it may say so in any
// words: 401, 410, 500, or an error in a 200. If calls fail for doubtAfter, and none succeeds, the gateway looks whether
// the server still knows the session: otherwise all clients that share it would fail until the gateway is started anew.
type sessionDoubt struct {
	s       *session
	failing atomic.Bool  // the latest call has failed
	asking  atomic.Bool  // a goroutine looks after it
	rests   atomic.Int64 // until then a generation that has proved itself is trusted, in nanoseconds since 1970
}

const (
	doubtAfter = time.Second
	// doubtRest bounds what calls that always fail cost the server.
	doubtRest = 10 * time.Second
)

// noteOutcome takes the outcome of a call in a generation: failed says that the server has refused it, or answered with
// an error.
func (d *sessionDoubt) noteOutcome(ctx context.Context, l *generation, failed bool) {
	d.failing.Store(failed)
	if !failed || !d.mayOutliveCalls() || time.Now().UnixNano() < d.rests.Load() || !d.asking.CompareAndSwap(false, true) {
		return
	}
	d.s.pinSession()
	if !d.s.t.work.Go(ctx, func(ctx context.Context) {
		defer d.s.releaseSession()
		defer d.asking.Store(false)
		if work.Pause(ctx, doubtAfter) == nil {
			d.settleDoubt(d.s.carryLatest(ctx), l)
		}
	}) {
		d.asking.Store(false)
		d.s.releaseSession()
	}
}

// mayOutliveCalls reports whether nobody else begins another session: neither its only client, nor the transport, nor
// the next call.
func (d *sessionDoubt) mayOutliveCalls() bool {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return !d.s.from.Shared && d.s.t.wire.cfg.Transport == nil && !d.s.ends
}

// settleDoubt drops a doubted generation if the server does not know it: it answers neither a ping nor a list in it, and
// does so in a new one. A server in trouble keeps its sessions: they may have a state that their clients need.
func (d *sessionDoubt) settleDoubt(ctx context.Context, l *generation) {
	if !d.failing.Load() || d.s.currentGeneration() != l {
		return
	}
	if d.isAnswered(ctx, l) {
		d.rests.Store(time.Now().Add(doubtRest).UnixNano())
		return
	}
	next, err := d.s.initializeServer(ctx)
	if err == nil {
		defer d.s.t.discardGeneration(ctx, next)
		err = d.s.t.wire.tellSoon(ctx, next.target, jsonrpc.AppendNotification(nil, mcp.NotifyInitialized, nil))
	}
	if err != nil || !d.isAnswered(ctx, next) {
		d.rests.Store(time.Now().Add(doubtRest).UnixNano())
		return
	}
	d.dropGeneration(l)
}

// dropDoubted drops the generation in use if its latest call has failed, and the server does not answer in it.
func (d *sessionDoubt) dropDoubted(ctx context.Context) {
	if l := d.s.currentGeneration(); l != nil && d.failing.Load() && !d.isAnswered(d.s.carryLatest(ctx), l) {
		d.dropGeneration(l)
	}
}

func (d *sessionDoubt) dropGeneration(l *generation) {
	d.s.t.wire.log.Info("the server does not know a session any more; the next call opens another one")
	d.s.loseGeneration(l)
}

// isAnswered reports whether the server answers in a generation. Some servers do not know ping.
func (d *sessionDoubt) isAnswered(ctx context.Context, l *generation) bool {
	for _, method := range []string{mcp.MethodPing, mcp.MethodToolsList} {
		within, cancel := d.s.t.wire.slowContext(ctx)
		m, err := d.s.newExchange(l.target, shim.Request{Method: method, Session: d.s.from}, nil).runRequest(within)
		cancel()
		if err == nil && m.Error == nil {
			return true
		}
	}
	return false
}

// sessionEnded measures a session. kind is that of an UpstreamError, "" if the gateway ends it.
func (w *wire) sessionEnded(l *generation, kind string) {
	if !l.born.IsZero() && l.session != "" {
		w.metrics.Session(context.Background(), max(0, time.Since(l.born)), l.version, kind)
	}
}

// deleteGeneration tells the server that a session is over (X11). A refusal is only logged, since 405 is allowed.
func (w *wire) deleteGeneration(ctx context.Context, l *generation) {
	m := l.newMessage(nil)
	if err := w.via.EndSession(ctx, &m); err != nil {
		w.log.Debug("session was not deleted", "err", fmt.Sprint(err))
	}
}

// newExchange puts a request in the words of one generation of the session.
func (s *session) newExchange(to target, r shim.Request, sink shim.Sink) *exchange {
	x := s.t.wire.newExchange(to, r, sink)
	x.calls, x.outside = &s.calls, s
	return x
}

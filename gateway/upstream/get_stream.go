package upstream

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/listed"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// getStream is the GET stream of a legacy session (X4). All listeners share it, since servers refuse a second
// one. It is held while anybody listens, or a call is in flight that can be asked. The session owns it; mu
// guards the fields below it, and its hold.
type getStream struct {
	s *session

	mu     sync.Mutex
	users  int
	cur    *heldStream // nil while the stream is not held
	rest   *time.Timer // ends the stream when it has been unwanted for a while
	used   time.Time   // the latest request in the session, at any replica as far as is known
	said   bool        // the server has said something on it
	kept   bool        // it is unwanted, and kept for its server
	wanted bool        // another replica has asked for it since it was wanted here
	closed *generation // the generation in which it was open, and closed here
}

// heldStream is the stream in the hands of the goroutine that holds it, through all its connections. Its
// getStream owns it, whose mu guards it; the goroutine reads the fields that only it changes without the
// lock.
type heldStream struct {
	s     *session // whose stream it is
	stop  context.CancelFunc
	known chan struct{} // closed once it is clear whether the server has such a stream
	open  bool          // the server has such a stream; valid once known is closed
	live  atomic.Bool   // the stream is open now
	ready chan struct{} // closed once the present attempt to open the stream has succeeded or failed
	wake  chan struct{} // a signal: the next attempt is wanted now
	rests bool          // between two attempts
	early time.Time     // until then the next attempt is not hurried
	freed bool          // another replica has closed the stream, since the last attempt began
	ended bool          // the goroutine has ended, though somebody may want the stream
	l     *generation   // the generation of the present attempt
	cut   context.CancelFunc

	missed   map[string]listed.Mark // the marks at the first break that was not made up for; nil if there is none
	gaps     int                    // breaks in which list changes may be lost
	bridging bool                   // a goroutine compares the lists

	// Fields of the goroutine that holds it.
	tries  int           // attempts in a row that have failed or ended soon, including this one
	opened bool          // it has been open
	moves  bool          // the stream was open in the present attempt, or that is the first one
	last   string        // the id of the last event
	retry  time.Duration // how long the server asks to wait before the next attempt
}

// headMost bounds the wait for the head of the stream: some servers send it only with the first event, which
// may never come.
const headMost = 2 * time.Second

// How calls that can be asked use the stream.
const (
	// headWait is how long such a call waits for the stream to open before it is sent: a question may be lost
	// if the server asks it before.
	headWait = 500 * time.Millisecond
	// linger is how long the stream is held beyond such a call. The next call then finds it open, and avoids
	// a server that still thinks it open (409).
	linger = 2 * time.Second
	// lingerMoved is how long the stream is held for a client that has moved to another replica, which is
	// told what comes. Without a stream the server may lose the message, and most servers refuse a second
	// stream.
	lingerMoved = time.Minute
	// noStreamFor is how long a server that says it lacks such a stream is believed.
	noStreamFor = 10 * time.Minute
)

// steady is the least life of a stream without events that is asked for again soon: some servers end each
// stream at once. A stream that a balancer or a host of functions cuts after seconds is steady.
const steady = time.Second

// getSupport is what is known of a server's GET streams.
type getSupport struct {
	until  atomic.Int64 // in milliseconds since 1970: until then the server has no stream
	late   atomic.Bool  // the latest head came late, or was missing
	needed atomic.Bool  // the latest session that was lost had its stream closed here
}

// joinStream takes part in the stream, and opens it for the first listener. It reports whether the server has
// one.
func (st *getStream) joinStream(ctx context.Context) (bool, error) {
	h, _ := st.wantStream(ctx)
	// The attempt to open the stream wakes it. After headMost the server counts as having one.
	if err := work.PauseFor(ctx, h.known, headMost); err != nil {
		return false, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	h.open = closeOnce(h.known) || h.open
	return h.open, nil
}

// wantStream counts one more user of the stream, and opens it if necessary. The channel is closed once that
// has succeeded or failed.
func (st *getStream) wantStream(ctx context.Context) (*heldStream, <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.users++
	st.used, st.kept, st.wanted = time.Now(), false, false
	switch h := st.cur; {
	case h == nil || h.ended:
		st.holdStream(ctx)
	case h.rests && !time.Now().Before(h.early):
		h.hurryAttempt()
	}
	return st.cur, st.cur.ready
}

// holdStream starts the goroutine that holds the stream. st.mu is held.
func (st *getStream) holdStream(ctx context.Context) {
	// Under the client's life: the stream may outlive its first listener.
	life, stop := context.WithCancel(st.s.t.work.Life())
	h := &heldStream{s: st.s, stop: stop, known: make(chan struct{}), ready: make(chan struct{}), wake: make(chan struct{}, 1)}
	st.cur = h
	if !st.s.t.work.Go(ctx, func(context.Context) { h.keepOpen(life) }) {
		h.endHold()
	}
}

// leaveGeneration breaks the stream of a generation that is lost. It is opened again in the next one.
func (st *getStream) leaveGeneration(l *generation) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if h := st.cur; h != nil && h.l == l {
		h.cut()
	}
}

// learnOutcome notes the outcome of an attempt: whether the server has such a stream.
func (h *heldStream) learnOutcome(open bool) {
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	h.open = open
	closeOnce(h.known)
	closeOnce(h.ready)
}

// closeOnce closes a channel, and reports whether it was open. Its owner's mutex is held.
func closeOnce(c chan struct{}) bool {
	if work.IsClosed(c) {
		return false
	}
	close(c)
	return true
}

// renewWait makes callers wait for the next attempt. The mutex of the stream is held.
func (h *heldStream) renewWait() {
	if work.IsClosed(h.ready) {
		h.ready = make(chan struct{})
	}
}

// hurryAttempt brings the next attempt forward. The mutex of the stream is held.
func (h *heldStream) hurryAttempt() {
	h.renewWait()
	work.Signal(h.wake)
}

// endHold notes that the goroutine has let go of the stream. Its mutex is held.
func (h *heldStream) endHold() {
	h.stop()
	h.ended = true
	closeOnce(h.known)
	closeOnce(h.ready)
}

// keepOpen keeps the stream open until ctx ends, or the server refuses it from the start.
func (h *heldStream) keepOpen(bare context.Context) {
	defer func() {
		h.s.get.mu.Lock()
		h.endHold()
		h.s.get.mu.Unlock()
		if h.s.shared.Load() {
			h.s.t.tellFreed(bare, h.s.key.key)
		}
	}()
	for h.tries = 1; ; h.tries++ {
		ctx := h.s.carryLatest(bare)
		h.moves = h.tries == 1
		l, err := h.s.currentGeneration(), error(nil)
		if l == nil && h.s.t.wire.cfg.Transport != nil { // a session is a program, which only a request starts
			h.learnOutcome(true) // such a program has a stream
		} else if l, err = h.s.connectGeneration(ctx); err == nil {
			err = h.attemptOpen(ctx, l)
		}
		if ctx.Err() != nil {
			return
		}
		if se, ok := err.(*transport.StatusError); ok && !h.mayTryAgain(ctx, l, se) {
			return
		}
		if l != nil && h.moves && h.s.currentGeneration() != l {
			continue // the session has moved on
		}
		if h.pauseBefore(ctx, h.retry, backoffOf(h.tries)) != nil {
			return
		}
	}
}

// mayTryAgain judges a refusal, and reports whether to ask for the stream again. A stream that has been open
// is asked for again, since listeners rely on it.
func (h *heldStream) mayTryAgain(ctx context.Context, l *generation, se *transport.StatusError) bool {
	s := se.Status
	unclear := s == http.StatusNotFound || s == http.StatusBadRequest
	switch {
	case s == http.StatusConflict:
		// Another replica has the stream, or the server has yet to notice that the last one is gone. So it
		// has such streams.
		h.learnOutcome(true)
		if h.s.shared.Load() {
			h.s.t.tellSign(h.s.key.key, wanted)
		}
		h.s.get.mu.Lock()
		defer h.s.get.mu.Unlock()
		h.early = time.Now().Add(linger)
		return true
	case s/100 != 2 && !isFinal(se):
		return true // it may pass
	case unclear && l != nil && h.s.verifyGeneration(ctx, l) != nil:
		return true // the refusal is about the session, or its reason is unknown
	case unclear && h.last != "":
		h.last = "" // the server has forgotten the event
		return true
	case s/100 == 2 || s == http.StatusNotFound || s == http.StatusMethodNotAllowed:
		// 405 says that this server has no such stream, which is allowed (X4). So does a 404 in a session
		// that it knows, a page for people, or an empty answer.
		h.s.t.support.until.Store(time.Now().Add(noStreamFor).UnixMilli())
	}
	h.learnOutcome(false)
	return h.opened
}

// pauseBefore waits before the next attempt: for as long as the server has asked for, and then until somebody
// wants the stream. It waits for most in all.
func (h *heldStream) pauseBefore(ctx context.Context, least, most time.Duration) error {
	h.s.get.mu.Lock()
	select {
	case <-h.wake: // from before the attempt
	default:
	}
	h.rests = true
	closeOnce(h.ready)
	if h.freed { // while the attempt was under way
		h.hurryAttempt()
	}
	h.s.get.mu.Unlock()
	if err := work.Pause(ctx, least); err != nil {
		return err
	}
	// A call or a listener that wants the stream wakes it, a replica that has closed it, or the time.
	err := work.PauseFor(ctx, h.wake, most-least)
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	if h.freed {
		h.tries, h.freed = 0, false
	}
	return err
}

// nudgeStream opens a resting stream now. freed says that another replica has closed it.
func (st *getStream) nudgeStream(freed bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	h := st.cur
	if h == nil {
		return
	}
	h.freed = h.freed || freed
	if h.rests {
		h.hurryAttempt()
	}
}

// attemptOpen opens the stream in one generation and holds it until it ends.
func (h *heldStream) attemptOpen(ctx context.Context, l *generation) error {
	life := ctx
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	again := h.l != nil
	if h.l != l {
		h.last = ""
	}
	h.s.get.mu.Lock()
	h.l, h.cut, h.rests, h.early = l, cut, false, time.Time{}
	h.renewWait()
	h.s.get.mu.Unlock()
	support := &h.s.t.support
	x := h.s.newExchange(l.target, shim.Request{Method: "GET"}, nil)
	x.uncancelled, x.listens, x.isHeard = true, true, h.s.listeners.hasListener
	x.checkpoints.state.Last = h.last
	defer x.beginExchange(ctx)()
	late := time.AfterFunc(headWait, func() { support.late.Store(true) })
	in, err := x.askForRest()
	inTime := late.Stop()
	if err != nil {
		return err
	}
	defer in.Close()
	h.live.Store(true)
	defer h.s.calls.loseAnswers()
	defer h.live.Store(false)
	if inTime {
		support.late.Store(false)
	}
	h.opened, h.moves = true, true
	begun := time.Now()
	support.until.Store(0)
	h.learnOutcome(true)
	if again && h.last == "" {
		h.bridgeGap(ctx, life)
	} else {
		h.skipGap()
	}
	defer h.noteBreak()
	for {
		it := in.Next()
		if it.Err == nil || time.Since(begun) >= steady {
			h.tries = 1
		}
		if it.Err != nil {
			return it.Err
		}
		h.handleEvent(ctx, x, it)
	}
}

// isOpen reports whether the stream is open.
func (st *getStream) isOpen() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.cur != nil && st.cur.live.Load()
}

// handleEvent handles one event.
func (h *heldStream) handleEvent(ctx context.Context, x *exchange, it *transport.Event) {
	if it.HasID {
		h.last = it.ID
	}
	if it.Retry > 0 {
		h.retry = min(it.Retry, maxRetry)
	}
	if it.Message.Kind != 0 {
		h.s.get.noteSaid()
	}
	switch m := it.Message; m.Kind {
	case jsonrpc.Notification:
		if m.Method == mcp.NotifyCancelled {
			h.s.withdrawQuestion(x.to.session, m.Params)
		}
		h.s.takeNotification(shim.Notification{Method: m.Method, Params: m.Params})
	case jsonrpc.Request:
		h.handleRequest(ctx, x, m)
	case jsonrpc.Result, jsonrpc.ErrorResponse:
		h.s.calls.passAnswer(m)
	}
}

// handleRequest takes a request that names no call.
func (h *heldStream) handleRequest(ctx context.Context, x *exchange, m jsonrpc.Message) {
	response := jsonrpc.AppendResult(nil, m.ID, nil)
	if m.Method != mcp.MethodPing {
		if !h.s.calls.claimRequest(m.ID) {
			return
		}
		response = h.s.routeQuestion(ctx, x, m)
	}
	if response != nil {
		x.postAside(ctx, response)
	}
}

func (st *getStream) awaitStream(ctx context.Context, opened <-chan struct{}) {
	if !st.s.t.support.late.Load() {
		// The attempt to open the stream wakes it; after headWait the call goes out without it.
		_ = work.PauseFor(ctx, opened, headWait)
	}
}

package upstream

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// getStream is the GET stream of a legacy session (X4). There is one, however
// many listen: servers refuse a second. It is held while anybody listens, or a call is in
// flight that can be asked. The session owns it; mu guards what follows it, and its hold.
type getStream struct {
	s *session

	mu    sync.Mutex
	users int
	cur   *getHold    // nil if nobody holds it
	rest  *time.Timer // ends it when nobody has wanted it for a while
}

// getHold is the stream in the hands of the goroutine that holds it, through all its
// connections. Its getStream owns it, whose mu guards it; what only that goroutine changes, it also
// reads without.
type getHold struct {
	s     *session // whose stream it is
	stop  context.CancelFunc
	known chan struct{} // closed once it is clear whether the server has such a stream
	open  bool          // valid once known is closed
	ready chan struct{} // closed once the present attempt to open it has had its outcome
	wake  chan struct{} // a signal: the next attempt is wanted now
	rests bool          // between two attempts
	early time.Time     // until then the next attempt is not brought forward
	freed bool          // another replica has closed the stream, since the last attempt began
	ended bool          // nobody holds it any more, though somebody may want it
	l     *link         // the generation of the present attempt
	cut   context.CancelFunc

	// Of the goroutine that holds it.
	tries  int           // attempts in a row that have failed, or ended soon, and this one
	opened bool          // it has been open
	moves  bool          // it was open in the present attempt, or that is the first one
	last   string        // the id of the last event
	retry  time.Duration // what the server asks to wait before it is asked again
}

// headMost is how long the head of the stream is waited for: some servers send
// it with the first event only, which may be never.
const headMost = 2 * time.Second

// What calls that can be asked make of the stream.
const (
	// headWait is how long such a call waits before it is sent until the stream is
	// open: what a server asks while there is none may be lost.
	headWait = 500 * time.Millisecond
	// linger is how long the stream is held beyond such a call. The next one need not
	// wait then, and does not meet a server that still thinks it open (409).
	linger = 2 * time.Second
	// lingerMoved is how long the stream is held for a client that has moved to another replica, which is told
	// what comes: a server that says something while it has no stream may lose it, and most refuse a second one.
	lingerMoved = time.Minute
	// noStreamFor is how long a server is taken to have no such stream that said so.
	noStreamFor = 10 * time.Minute
)

// steady is how long a stream lasts at least, or it brings an event, that is asked for again soon: some servers end
// each of them at once. One that a balancer or a host of functions cuts after seconds is steady.
const steady = time.Second

// getSupport is what is known of a server's GET streams.
type getSupport struct {
	until atomic.Int64 // in milliseconds since 1970: before it there is none
	late  atomic.Bool  // the latest head came late, or not at all
}

// joinStream takes part in the stream, opening it for the first. It reports whether
// the server has one.
func (st *getStream) joinStream(ctx context.Context) (bool, error) {
	h, _ := st.wantStream(ctx)
	// The attempt to open the stream wakes it; after headMost the server is taken to have one.
	if err := work.PauseFor(ctx, h.known, headMost); err != nil {
		return false, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	h.open = closeOnce(h.known) || h.open
	return h.open, nil
}

// wantStream counts one more who wants the stream, and has it opened if it is not. The channel
// is closed once that has had its outcome.
func (st *getStream) wantStream(ctx context.Context) (*getHold, <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.users++
	if st.rest != nil {
		st.rest.Stop()
		st.rest = nil
	}
	switch h := st.cur; {
	case h == nil || h.ended:
		st.holdStream(ctx)
	case h.rests && !time.Now().Before(h.early):
		h.hurryAttempt()
	}
	return st.cur, st.cur.ready
}

// holdStream has the stream held. st.mu is held.
func (st *getStream) holdStream(ctx context.Context) {
	// Not under the life of its first listener: it may outlive that one.
	life, stop := context.WithCancel(st.s.t.work.Life())
	h := &getHold{s: st.s, stop: stop, known: make(chan struct{}), ready: make(chan struct{}), wake: make(chan struct{}, 1)}
	st.cur = h
	if !st.s.t.work.Go(ctx, func(context.Context) { h.keepOpen(life) }) {
		h.endHold()
	}
}

// unwantStream undoes want. The last one closes the stream, after a while in which another may
// come who wants it.
func (st *getStream) unwantStream(after time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users--; st.users > 0 {
		return
	}
	if after <= 0 {
		st.closeStream()
		return
	}
	st.rest = time.AfterFunc(after, st.closeUnused)
}

// closeUnused closes a stream that nobody wants any more.
func (st *getStream) closeUnused() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users == 0 {
		st.closeStream()
	}
}

// closeStream ends the stream. st.mu is held.
func (st *getStream) closeStream() {
	if st.rest != nil {
		st.rest.Stop()
		st.rest = nil
	}
	if st.cur != nil {
		st.cur.stop()
		st.cur = nil
	}
}

// leaveGeneration breaks the stream if it is that of a generation which is lost: it is opened again
// in the next one.
func (st *getStream) leaveGeneration(l *link) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if h := st.cur; h != nil && h.l == l {
		h.cut()
	}
}

// learnOutcome notes whether the server has such a stream, which is the outcome of an attempt.
func (h *getHold) learnOutcome(open bool) {
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	h.open = open
	closeOnce(h.known)
	closeOnce(h.ready)
}

// closeOnce closes a channel, and reports whether it was not closed. Its owner's mutex is held.
func closeOnce(c chan struct{}) bool {
	if work.IsClosed(c) {
		return false
	}
	close(c)
	return true
}

// renewWait has callers wait for the next attempt. The mutex of the stream is held.
func (h *getHold) renewWait() {
	if work.IsClosed(h.ready) {
		h.ready = make(chan struct{})
	}
}

// hurryAttempt brings the next attempt forward. The mutex of the stream is held.
func (h *getHold) hurryAttempt() {
	h.renewWait()
	work.Signal(h.wake)
}

// endHold says that nobody holds the stream any more. Its mutex is held.
func (h *getHold) endHold() {
	h.stop()
	h.ended = true
	closeOnce(h.known)
	closeOnce(h.ready)
}

// keepOpen keeps the stream open until ctx ends, or the server refuses it from the start.
func (h *getHold) keepOpen(bare context.Context) {
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
		l, err := h.s.currentLink(), error(nil)
		if l == nil && h.s.t.wire.cfg.Transport != nil { // a session is a program, which requests alone begin
			h.learnOutcome(true) // there is such a stream then
		} else if l, err = h.s.connectLink(ctx); err == nil {
			err = h.attemptOpen(ctx, l)
		}
		if ctx.Err() != nil {
			return
		}
		if se, ok := err.(*transport.StatusError); ok && !h.mayTryAgain(ctx, l, se) {
			return
		}
		if l != nil && h.moves && h.s.currentLink() != l {
			continue // the session has moved on
		}
		if h.pauseBefore(ctx, h.retry, backoffOf(h.tries)) != nil {
			return
		}
	}
}

// mayTryAgain judges a refusal, and reports whether the stream is asked for again. One that
// has been open is: listeners rely on it.
func (h *getHold) mayTryAgain(ctx context.Context, l *link, se *transport.StatusError) bool {
	s := se.Status
	unclear := s == http.StatusNotFound || s == http.StatusBadRequest
	switch {
	case s == http.StatusConflict:
		// Another replica has it, or the server has not noticed yet that the last
		// one is gone. There is such a stream.
		h.learnOutcome(true)
		h.s.get.mu.Lock()
		defer h.s.get.mu.Unlock()
		h.early = time.Now().Add(linger)
		return true
	case s/100 != 4 && s/100 != 2 || s == http.StatusTooManyRequests || s == http.StatusRequestTimeout:
		return true
	case unclear && l != nil && h.s.verifyGeneration(ctx, l) != nil:
		return true // it is about the session, or nobody knows
	case unclear && h.last != "":
		h.last = "" // the server does not know the event any more
		return true
	case s/100 == 2 || s == http.StatusNotFound || s == http.StatusMethodNotAllowed:
		// 405: this server has no such stream, which is allowed (X4). A 404 in a
		// session that it knows means the same, and so does a page for people, or nothing.
		h.s.t.support.until.Store(time.Now().Add(noStreamFor).UnixMilli())
	}
	h.learnOutcome(false)
	return h.opened
}

// pauseBefore waits before the next attempt: for as long as the server has asked for, and then
// until somebody wants the stream, most in all.
func (h *getHold) pauseBefore(ctx context.Context, least, most time.Duration) error {
	h.s.get.mu.Lock()
	select {
	case <-h.wake: // of an attempt that has been made
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
	// A call or a listener that wants the stream wakes it, and a replica that has closed it; else the time does.
	err := work.PauseFor(ctx, h.wake, most-least)
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	if h.freed {
		h.tries, h.freed = 0, false
	}
	return err
}

// nudgeStream has a stream that rests be opened now. freed says that another replica has closed it.
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
func (h *getHold) attemptOpen(ctx context.Context, l *link) error {
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
	x.rec.state.Last = h.last
	defer x.beginExchange(ctx)()
	late := time.AfterFunc(headWait, func() { support.late.Store(true) })
	in, err := x.askForRest()
	inTime := late.Stop()
	if err != nil {
		return err
	}
	defer in.Close()
	if inTime {
		support.late.Store(false)
	}
	h.opened, h.moves = true, true
	begun := time.Now()
	support.until.Store(0)
	h.learnOutcome(true)
	if again && h.last == "" {
		h.bridgeGap(ctx)
	}
	for {
		it := in.Next()
		if it.Err == nil || time.Since(begun) >= steady {
			h.tries = 1
		}
		if it.Err != nil {
			return it.Err
		}
		if err := h.handleEvent(ctx, x, it); err != nil {
			return err
		}
	}
}

// handleEvent handles one event. A response here belongs to nobody who still waits.
func (h *getHold) handleEvent(ctx context.Context, x *exchange, it *transport.Event) error {
	if it.HasID {
		h.last = it.ID
	}
	if it.Retry > 0 {
		h.retry = min(it.Retry, maxRetry)
	}
	switch m := it.Message; m.Kind {
	case jsonrpc.Notification:
		if m.Method == mcp.NotifyCancelled {
			h.s.withdrawQuestion(x.to.session, m.Params)
		}
		h.s.takeNotification(shim.Notification{Method: m.Method, Params: m.Params})
	case jsonrpc.Request:
		return h.handleRequest(ctx, x, m)
	}
	return nil
}

// handleRequest takes a request that does not say to which call it belongs.
func (h *getHold) handleRequest(ctx context.Context, x *exchange, m jsonrpc.Message) error {
	if m.Method == mcp.MethodPing {
		x.answerPing(ctx, m.ID)
		return nil
	}
	if !h.s.calls.claimRequest(m.ID) {
		return nil
	}
	return h.s.routeQuestion(ctx, x, m)
}

// bridgeGap follows a break that nothing bridges: what was subscribed is subscribed
// again, as the server may have forgotten it, and everybody looks again.
func (h *getHold) bridgeGap(ctx context.Context) {
	h.s.t.memory.listChanged(mcp.NotifyToolsListChanged, h.s.key.isSame)
	uris := h.s.subscribeAgain(ctx, h.l)
	all := shim.Filter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true, Resources: uris}
	for _, n := range missedNotices(all) {
		h.s.listeners.passToListeners(n)
	}
}

// needStream is wantStream for a call, unless the server is known to have no such stream.
func (st *getStream) needStream(ctx context.Context) (opened <-chan struct{}) {
	if time.Now().UnixMilli() < st.s.t.support.until.Load() {
		return nil
	}
	_, opened = st.wantStream(ctx)
	return opened
}

// doneStream undoes need.
func (st *getStream) doneStream() { st.unwantStream(linger) }

func (st *getStream) awaitStream(ctx context.Context, opened <-chan struct{}) {
	if !st.s.t.support.late.Load() {
		// The attempt to open the stream wakes it; after headWait the call goes out without it.
		_ = work.PauseFor(ctx, opened, headWait)
	}
}

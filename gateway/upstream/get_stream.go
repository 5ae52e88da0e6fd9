package upstream

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

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
// connections. Its getStream owns it, whose mu guards it.
type getHold struct {
	st    *getStream
	stop  context.CancelFunc
	known chan struct{} // closed once it is clear whether the server has such a stream
	open  bool          // valid once known is closed
	ready chan struct{} // closed once the present attempt to open it has had its outcome
	wake  chan struct{} // a signal: the next attempt is wanted now
	rests bool          // between two attempts
	early time.Time     // until then the next attempt is not brought forward
	ended bool          // nobody holds it any more, though somebody may want it
	l     *link         // the generation of the present attempt
	cut   context.CancelFunc
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
	// noStreamFor is how long a server is taken to have no such stream that said so.
	noStreamFor = 10 * time.Minute
)

// getSupport is what is known of a server's GET streams.
type getSupport struct {
	until atomic.Int64 // in milliseconds since 1970: before it there is none
	late  atomic.Bool  // the latest head came late, or not at all
}

func (g *getSupport) found() { g.until.Store(0) }

func (g *getSupport) missed() { g.until.Store(time.Now().Add(noStreamFor).UnixMilli()) }

func (g *getSupport) none() bool { return time.Now().UnixMilli() < g.until.Load() }

// await waits a moment until the attempt to open such a stream has had its outcome.
func (g *getSupport) await(ctx context.Context, ready <-chan struct{}) {
	if g.late.Load() {
		return
	}
	t := time.NewTimer(headWait)
	defer t.Stop()
	// The attempt to open the stream wakes it; after headWait the call goes out without it.
	select {
	case <-ready:
	case <-t.C:
	case <-ctx.Done():
	}
}

// join takes part in the stream, opening it for the first. It reports whether
// the server has one.
func (st *getStream) join(ctx context.Context) (bool, error) {
	h, _ := st.want(ctx)
	// The attempt to open the stream wakes it; after headMost the server is taken to have one.
	select {
	case <-h.known:
		st.mu.Lock()
		defer st.mu.Unlock()
		return h.open, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// want counts one more who wants the stream, and has it opened if it is not. The channel
// is closed once that has had its outcome.
func (st *getStream) want(ctx context.Context) (*getHold, <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.users++
	if st.rest != nil {
		st.rest.Stop()
		st.rest = nil
	}
	switch h := st.cur; {
	case h == nil || h.ended:
		st.hold(ctx)
	case h.rests && !time.Now().Before(h.early):
		h.renew()
		work.Signal(h.wake)
	}
	return st.cur, st.cur.ready
}

// hold has the stream held. st.mu is held.
func (st *getStream) hold(ctx context.Context) {
	// Not under the life of its first listener: it may outlive that one.
	life, stop := context.WithCancel(st.s.t.work.Life())
	h := &getHold{st: st, stop: stop, known: make(chan struct{}), ready: make(chan struct{}), wake: make(chan struct{}, 1)}
	st.cur = h
	if !st.s.t.work.Go(ctx, func(context.Context) { h.run(life) }) {
		stop()
		h.ended = true
		close(h.known)
		close(h.ready)
	}
}

// unwant undoes want. The last one closes the stream, after a while in which another may
// come who wants it.
func (st *getStream) unwant(after time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users--; st.users > 0 {
		return
	}
	if after <= 0 {
		st.close()
		return
	}
	st.rest = time.AfterFunc(after, st.closeUnused)
}

// closeUnused closes a stream that nobody wants any more.
func (st *getStream) closeUnused() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users == 0 {
		st.close()
	}
}

// close ends the stream. st.mu is held.
func (st *getStream) close() {
	if st.rest != nil {
		st.rest.Stop()
		st.rest = nil
	}
	if st.cur != nil {
		st.cur.stop()
		st.cur = nil
	}
}

// leave breaks the stream if it is that of a generation which is lost: it is opened again
// in the next one.
func (st *getStream) leave(l *link) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if h := st.cur; h != nil && h.l == l {
		h.cut()
	}
}

// learn notes whether the server has such a stream.
func (h *getHold) learn(open bool) {
	h.st.mu.Lock()
	defer h.st.mu.Unlock()
	h.open = open
	closeOnce(h.known)
}

// assume takes the server to have such a stream, if it has not said anything yet.
func (h *getHold) assume() {
	h.st.mu.Lock()
	defer h.st.mu.Unlock()
	h.open = h.open || closeOnce(h.known)
}

// closeOnce closes a channel, and reports whether it was not closed. Its owner's mutex is held.
func closeOnce(c chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		close(c)
		return true
	}
}

// opened notes that the stream is there.
func (h *getHold) opened() {
	h.st.s.t.support.found()
	h.learn(true)
	h.st.mu.Lock()
	defer h.st.mu.Unlock()
	closeOnce(h.ready)
}

// renew has callers wait for the next attempt. The mutex of the stream is held.
func (h *getHold) renew() {
	select {
	case <-h.ready:
		h.ready = make(chan struct{})
	default:
	}
}

// finish notes that nobody holds the stream any more.
func (h *getHold) finish() {
	h.st.mu.Lock()
	defer h.st.mu.Unlock()
	h.ended = true
	closeOnce(h.known)
	closeOnce(h.ready)
}

// run keeps the stream open until ctx ends, or the server refuses it from the start.
func (h *getHold) run(ctx context.Context) {
	defer h.finish()
	defer h.stop()
	late := time.AfterFunc(headMost, h.assume)
	defer late.Stop()
	r := getReader{s: h.st.s}
	bare := ctx
	for tries := 1; ; tries++ {
		ctx = r.s.carry(bare)
		l, err := r.link(ctx)
		if err == errNotBegun {
			h.learn(true) // there is such a stream once somebody has begun the server
		}
		if err == nil {
			err = h.attempt(ctx, &r, l, func() { tries = 1; h.opened() })
		}
		if ctx.Err() != nil {
			return
		}
		if se, ok := err.(*statusError); ok && !h.again(ctx, &r, l, se) {
			return
		}
		if l != nil && tries == 1 && r.s.current() != l {
			continue // the session has moved on
		}
		if h.pause(ctx, r.retry, backoff(tries)) != nil {
			return
		}
	}
}

// attempt opens the stream in one generation and holds it until it ends.
func (h *getHold) attempt(ctx context.Context, r *getReader, l *link, opened func()) error {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	h.st.mu.Lock()
	h.l, h.cut, h.rests, h.early = l, cut, false, time.Time{}
	h.renew()
	h.st.mu.Unlock()
	return r.once(ctx, l, opened)
}

// again judges a refusal, and reports whether the stream is asked for again. One that
// has been open is: listeners rely on it.
func (h *getHold) again(ctx context.Context, r *getReader, l *link, se *statusError) bool {
	s := se.status
	unclear := s == http.StatusNotFound || s == http.StatusBadRequest
	switch {
	case s == http.StatusConflict:
		// Another replica has it, or the server has not noticed yet that the last
		// one is gone. There is such a stream.
		h.learn(true)
		h.st.mu.Lock()
		defer h.st.mu.Unlock()
		h.early = time.Now().Add(linger)
		return true
	case s/100 != 4 || s == http.StatusTooManyRequests || s == http.StatusRequestTimeout:
		return true
	case unclear && l != nil && r.s.verify(ctx, l) != nil:
		return true // it is about the session, or nobody knows
	case unclear && r.last != "":
		r.last = "" // the server does not know the event any more
		return true
	case s == http.StatusNotFound || s == http.StatusMethodNotAllowed:
		// 405: this server has no such stream, which is allowed (X4). A 404 in a
		// session that it knows means the same.
		r.s.t.support.missed()
	}
	h.learn(false)
	return r.opened
}

// pause waits before the next attempt: for as long as the server has asked for, and then
// until somebody wants the stream, most in all.
func (h *getHold) pause(ctx context.Context, least, most time.Duration) error {
	h.st.mu.Lock()
	select {
	case <-h.wake: // of an attempt that has been made
	default:
	}
	h.rests = true
	closeOnce(h.ready)
	h.st.mu.Unlock()
	if err := work.Pause(ctx, least); err != nil {
		return err
	}
	t := time.NewTimer(most - least)
	defer t.Stop()
	// A call or a listener that wants the stream wakes it; else the timer does.
	select {
	case <-t.C:
		return nil
	case <-h.wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// getReader reads a GET stream. It is what outlives one connection of the stream, and
// belongs to the goroutine that holds it.
type getReader struct {
	s      *session
	l      *link // the generation the stream was last asked for in
	opened bool  // it has been open
	last   string
	retry  time.Duration
}

// errNotBegun: a stream does not begin a server.
var errNotBegun = errors.New("the server has not begun")

// link is the generation to read in. Over a Transport a session is a program: it is begun by
// requests alone.
func (g *getReader) link(ctx context.Context) (*link, error) {
	if l := g.s.current(); l == nil && g.s.t.wire.cfg.Transport != nil {
		return nil, errNotBegun
	}
	return g.s.connect(ctx)
}

// nudge has a stream that rests be opened now.
func (st *getStream) nudge() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if h := st.cur; h != nil && h.rests {
		h.renew()
		work.Signal(h.wake)
	}
}

// once holds the stream until it ends. opened is called when it is there.
func (g *getReader) once(ctx context.Context, l *link, opened func()) error {
	again := g.l != nil
	if g.l != l {
		g.l, g.last = l, ""
	}
	x := g.s.exchange(l.target(), shim.Request{Method: "GET"}, discard{})
	x.uncancelled, x.listens = true, true
	x.rec.state.Last = g.last
	defer x.begin(WhileHere(ctx, g.s.listeners.present))()
	late := time.AfterFunc(headWait, func() { g.s.t.support.late.Store(true) })
	in, err := x.replay()
	inTime := late.Stop()
	if err != nil {
		return err
	}
	defer in.close()
	if inTime {
		g.s.t.support.late.Store(false)
	}
	g.opened = true
	opened()
	if again && g.last == "" {
		g.gap(ctx)
	}
	for {
		it := in.next()
		if it.err != nil {
			return it.err
		}
		if err := g.handle(ctx, x, it); err != nil {
			return err
		}
	}
}

// handle handles one event. A response here belongs to nobody who still waits.
func (g *getReader) handle(ctx context.Context, x *exchange, it *item) error {
	if it.hasID {
		g.last = it.eventID
	}
	if it.hasRetry {
		g.retry = min(it.retry, maxRetry)
	}
	switch m := it.msg; m.Kind {
	case jsonrpc.Notification:
		switch m.Method {
		case mcp.NotifyCancelled:
			g.s.withdrawn(x.to.session, m.Params)
		case mcp.NotifyProgress:
			g.s.calls.progressed(m.Params)
		}
		g.s.heard(shim.Notification{Method: m.Method, Params: m.Params})
	case jsonrpc.Request:
		return g.request(ctx, x, m)
	}
	return nil
}

// request takes a request that does not say to which call it belongs.
func (g *getReader) request(ctx context.Context, x *exchange, m jsonrpc.Message) error {
	if m.Method == mcp.MethodPing {
		return x.respond(ctx, jsonrpc.AppendResult(nil, m.ID, nil))
	}
	if !g.s.calls.claim(m.ID) {
		return nil
	}
	return g.s.ask(ctx, x, m)
}

// gap follows a break that nothing bridges: what was subscribed is subscribed
// again, as the server may have forgotten it, and everybody looks again.
func (g *getReader) gap(ctx context.Context) {
	g.s.t.memory.listChanged(mcp.NotifyToolsListChanged, g.s.key.is)
	uris := g.s.subscribeAgain(ctx, g.l)
	all := shim.Filter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true, Resources: uris}
	for _, n := range missed(all) {
		g.s.listeners.hear(n)
	}
}

// need is want for a call, unless the server is known to have no such stream.
func (st *getStream) need(ctx context.Context) (opened <-chan struct{}) {
	if st.s.t.support.none() {
		return nil
	}
	_, opened = st.want(ctx)
	return opened
}

// done undoes need.
func (st *getStream) done() { st.unwant(linger) }

func (st *getStream) await(ctx context.Context, opened <-chan struct{}) {
	st.s.t.support.await(ctx, opened)
}

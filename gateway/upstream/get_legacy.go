package upstream

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// standing is the GET stream of a legacy session (X4). There is one, however
// many listen: servers refuse a second. It is held while anybody listens.
type standing struct {
	mu    sync.Mutex
	users int
	stop  context.CancelFunc
	known chan struct{} // closed once it is clear whether the server has such a stream
	open  bool          // valid once known is closed
	ended bool          // nobody holds it any more, though somebody may want it
	rest  *time.Timer   // ends it when nobody has wanted it for a while
	calls []*exchange   // calls in flight that can be asked, the oldest first
	uris  map[string]int

	lone lone // questions that belong to no call here
}

// patience is how long the head of the stream is waited for: some servers send
// it with the first event only, which may be never.
const patience = 2 * time.Second

// What calls that can be asked make of the stream.
const (
	// headWait is how long such a call waits before it is sent until the stream is
	// open: what a server asks while there is none may be lost.
	headWait = 500 * time.Millisecond
	// linger is how long the stream is held beyond such a call. The next one need not
	// wait then, and does not meet a server that still thinks it open (409).
	linger = 2 * time.Second
	// getless is how long a server is taken to have no such stream that said so.
	getless = 10 * time.Minute
)

// gets is what is known of a server's GET streams.
type gets struct {
	until atomic.Int64 // in milliseconds since 1970: before it there is none
	late  atomic.Bool  // their heads come late
}

func (g *gets) found() { g.until.Store(0) }

func (g *gets) missed(status int) {
	if status == http.StatusMethodNotAllowed || status == http.StatusNotFound {
		g.until.Store(time.Now().Add(getless).UnixMilli())
	}
}

func (g *gets) none() bool { return time.Now().UnixMilli() < g.until.Load() }

// attend has the stream open for a call that can be asked, as long as there are such
// calls. It reports false where the server has none.
func (s *session) attend(ctx context.Context) bool {
	if s.h.gets.none() {
		return false
	}
	known := s.want(ctx)
	if s.h.gets.late.Load() {
		return true
	}
	t := time.NewTimer(headWait)
	defer t.Stop()
	select {
	case <-known:
	case <-t.C:
		s.h.gets.late.Store(true)
	case <-ctx.Done():
	}
	return true
}

// join takes part in the stream, opening it for the first. It reports whether
// the server has one.
func (s *session) join(ctx context.Context) (bool, error) {
	known := s.want(ctx)
	st := &s.get
	select {
	case <-known:
		st.mu.Lock()
		defer st.mu.Unlock()
		return st.open, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// want counts one more who wants the stream, and opens it for the first. The channel
// is closed once it is clear whether there is one.
func (s *session) want(ctx context.Context) <-chan struct{} {
	st := &s.get
	st.mu.Lock()
	defer st.mu.Unlock()
	st.users++
	if st.rest != nil {
		st.rest.Stop()
		st.rest = nil
	}
	if st.users == 1 && (st.stop == nil || st.ended) {
		known := make(chan struct{})
		life, stop := context.WithCancel(s.h.life)
		st.known, st.open, st.ended, st.stop = known, false, false, stop
		// Not under the life of its first listener: it may outlive that one.
		if !s.h.spawn(ctx, func(context.Context) { s.follow(life, known) }) {
			close(known)
		}
	}
	return st.known
}

// leave undoes want. The last one ends the stream, after a while in which another may
// come who wants it.
func (s *session) leave(after time.Duration) {
	st := &s.get
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users--; st.users > 0 {
		return
	}
	if after <= 0 {
		st.close()
		return
	}
	st.rest = time.AfterFunc(after, func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		if st.users == 0 {
			st.close()
		}
	})
}

// end ends a stream that nobody wants any more: its session is over.
func (st *standing) end() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users == 0 {
		st.close()
	}
}

// close ends the stream. st.mu is held.
func (st *standing) close() {
	if st.rest != nil {
		st.rest.Stop()
		st.rest = nil
	}
	if st.stop != nil {
		st.stop()
		st.stop = nil
	}
}

// settle says, once per stream, whether the server has one.
func (st *standing) settle(known chan struct{}, open bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	select {
	case <-known:
	default:
		if st.known == known {
			st.open = open
		}
		close(known)
	}
}

// follow keeps the stream open until ctx ends.
func (s *session) follow(ctx context.Context, known chan struct{}) {
	defer s.get.finish(known)
	late := time.AfterFunc(patience, func() { s.get.settle(known, true) })
	defer late.Stop()
	g := getStream{s: s}
	for tries := 1; ; tries++ {
		l, err := s.open(ctx)
		if err == nil {
			err = g.once(ctx, l, func() { tries = 1; s.h.gets.found(); s.get.settle(known, true) })
		}
		if ctx.Err() != nil {
			return
		}
		if se, ok := err.(*statusError); ok {
			switch {
			case se.lost() && g.l == l && g.held:
				s.lose(l)
			case se.status == http.StatusConflict:
				// Another replica has it, or the server has not noticed yet that the last
				// one is gone. There is such a stream.
				s.get.settle(known, true)
			case se.status/100 == 4 && se.status != http.StatusTooManyRequests:
				// 405: this server has no such stream, which is allowed (X4). A 404 in a
				// session that never had one means the same.
				s.h.gets.missed(se.status)
				return
			}
		}
		if pause(ctx, max(g.retry, backoff(tries))) != nil {
			return
		}
	}
}

// getStream is the state that outlives one connection of the stream.
type getStream struct {
	s     *session
	l     *link // the generation the stream was last asked for in
	held  bool  // and that it was open in it
	last  string
	retry time.Duration
}

// once holds the stream until it ends. opened is called when it is there.
func (g *getStream) once(ctx context.Context, l *link, opened func()) error {
	again := g.l != nil
	if g.l != l {
		g.l, g.last, g.held = l, "", false
	}
	x := g.s.h.legacyExchange(g.s, l.target(), shim.Request{Method: "GET"}, discard{})
	x.handshake, x.standing = true, true
	x.state.Last = g.last
	x.hear = func(m jsonrpc.Message) { g.s.h.heard(g.s, shim.Notification{Method: m.Method, Params: m.Params}) }
	defer x.begin(ctx)()
	in, err := x.replay()
	if err != nil {
		return err
	}
	defer in.close()
	g.held = true
	opened()
	if again && g.last == "" {
		g.gap(ctx)
	}
	for {
		it := in.next()
		if it.err != nil {
			return it.err
		}
		if err := g.take(ctx, x, *it); err != nil {
			return err
		}
	}
}

// take handles one event. A response here belongs to nobody who still waits.
func (g *getStream) take(ctx context.Context, x *exchange, it item) error {
	if it.hasID {
		g.last = it.eventID
	}
	if it.hasRetry {
		g.retry = min(it.retry, maxRetry)
	}
	for _, m := range it.msgs {
		switch m.Kind {
		case jsonrpc.Notification:
			if m.Method == mcp.NotifyCancelled {
				g.s.get.cancelled(x.to.session, m.Params)
			}
			x.hear(m)
		case jsonrpc.Request:
			if err := g.request(ctx, x, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// request takes a request that does not say to which call it belongs.
func (g *getStream) request(ctx context.Context, x *exchange, m jsonrpc.Message) error {
	if m.Method == mcp.MethodPing {
		return x.respond(ctx, jsonrpc.AppendResult(nil, m.ID, nil))
	}
	if !g.s.claim(m.ID) {
		return nil
	}
	return g.s.place(ctx, x, m)
}

// gap follows a break that nothing bridges: what was subscribed is subscribed
// again, as the server may have forgotten it, and everybody looks again.
func (g *getStream) gap(ctx context.Context) {
	g.s.h.tools.changed(g.s)
	st := &g.s.get
	st.mu.Lock()
	uris := make([]string, 0, len(st.uris))
	for uri := range st.uris {
		uris = append(uris, uri)
	}
	st.mu.Unlock()
	for _, uri := range uris {
		g.s.h.subscribe(ctx, g.s, g.l, mcp.MethodResourcesSubscribe, uri)
	}
	all := shim.Filter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true, Resources: uris}
	for _, n := range missed(all) {
		g.s.ears.hear(n)
	}
}

// finish notes that nobody holds the stream any more.
func (st *standing) finish(known chan struct{}) {
	st.settle(known, false)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.known == known {
		st.ended = true
	}
}

package upstream

import (
	"context"
	"encoding/json"
	"sync"
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
	uris  map[string]int
}

// patience is how long the head of the stream is waited for: some servers send
// it with the first event only, which may be never.
const patience = 2 * time.Second

// listen is Listen in an open session.
func (s *session) listen(ctx context.Context, l *link, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	open, err := s.join(ctx)
	defer s.leave()
	if err != nil {
		return err
	}
	agreed := agree(f, l.server, open)
	agreed.Resources = s.subscribe(ctx, l, agreed.Resources)
	defer s.unsubscribe(ctx, agreed.Resources)
	lis := &listener{filter: agreed, on: on}
	lis.mu.Lock() // nothing is heard before ready
	s.ears.add(lis)
	defer s.ears.remove(lis)
	ready(agreed)
	lis.mu.Unlock()
	<-ctx.Done()
	return context.Cause(ctx)
}

// agree leaves of a filter what can come: nothing without a stream, and no more
// than the server declares.
func agree(f shim.Filter, srv Server, open bool) shim.Filter {
	if !open {
		return shim.Filter{}
	}
	f.ToolsListChanged = f.ToolsListChanged && srv.declares("tools", "listChanged")
	f.PromptsListChanged = f.PromptsListChanged && srv.declares("prompts", "listChanged")
	f.ResourcesListChanged = f.ResourcesListChanged && srv.declares("resources", "listChanged")
	f.Log = f.Log && srv.declares("logging")
	if !srv.declares("resources", "subscribe") {
		f.Resources = nil
	}
	return f
}

// join takes part in the stream, opening it for the first. It reports whether
// the server has one.
func (s *session) join(ctx context.Context) (bool, error) {
	st := &s.get
	st.mu.Lock()
	st.users++
	if st.users == 1 {
		known := make(chan struct{})
		life, stop := context.WithCancel(s.h.life)
		st.known, st.open, st.stop = known, false, stop
		// Not under the life of its first listener: it may outlive that one.
		if !s.h.spawn(ctx, func(context.Context) { s.follow(life, known) }) {
			close(known)
		}
	}
	known := st.known
	st.mu.Unlock()
	select {
	case <-known:
		st.mu.Lock()
		defer st.mu.Unlock()
		return st.open, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

func (s *session) leave() {
	st := &s.get
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users--; st.users == 0 {
		st.stop()
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
	defer s.get.settle(known, false)
	late := time.AfterFunc(patience, func() { s.get.settle(known, true) })
	defer late.Stop()
	g := getStream{s: s}
	for tries := 1; ; tries++ {
		l, err := s.open(ctx)
		if err == nil {
			err = g.once(ctx, l, func() { tries = 1; s.get.settle(known, true) })
		}
		if ctx.Err() != nil {
			return
		}
		if se, ok := err.(*statusError); ok {
			switch {
			case se.lost() && g.l == l && g.held:
				s.lose(l)
			case se.status/100 == 4 && se.status != 409 && se.status != 429:
				// 405: this server has no such stream, which is allowed (X4). A 404 in a
				// session that never had one means the same.
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
		if err := g.take(ctx, x, it); err != nil {
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
			x.hear(m)
		case jsonrpc.Request:
			if err := g.request(ctx, x, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// request answers a request that came outside of any call: there is nobody here
// to ask.
func (g *getStream) request(ctx context.Context, x *exchange, m jsonrpc.Message) error {
	if m.Method == mcp.MethodPing {
		return x.respond(ctx, jsonrpc.AppendResult(nil, m.ID, nil))
	}
	if !g.s.claim(m.ID) {
		return nil
	}
	return x.respond(ctx, refusal(m.ID, mcp.CodeMethodNotFound, m.Method))
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

// subscribe asks for updates of resources, where nobody has yet, and returns
// those that the server agreed to.
func (s *session) subscribe(ctx context.Context, l *link, uris []string) []string {
	var agreed []string
	for _, uri := range uris {
		s.get.mu.Lock()
		have := s.get.uris[uri] > 0
		s.get.mu.Unlock()
		if !have && !s.h.subscribe(ctx, s, l, mcp.MethodResourcesSubscribe, uri) {
			continue
		}
		s.get.count(uri, 1)
		agreed = append(agreed, uri)
	}
	return agreed
}

// unsubscribe undoes subscribe, for those that nobody else listens to.
func (s *session) unsubscribe(ctx context.Context, uris []string) {
	ctx, cancel := aside(ctx, cancelTimeout)
	defer cancel()
	for _, uri := range uris {
		s.mu.Lock()
		l := s.cur
		s.mu.Unlock()
		if s.get.count(uri, -1) == 0 && l != nil {
			s.h.subscribe(ctx, s, l, mcp.MethodResourcesUnsubscribe, uri)
		}
	}
}

func (st *standing) count(uri string, by int) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.uris == nil {
		st.uris = make(map[string]int)
	}
	n := st.uris[uri] + by
	if st.uris[uri] = n; n <= 0 {
		delete(st.uris, uri)
	}
	return n
}

// subscribe sends resources/subscribe or unsubscribe and reports whether the
// server agreed.
func (h *HTTP) subscribe(ctx context.Context, s *session, l *link, method, uri string) bool {
	ctx, cancel := h.slow(ctx)
	defer cancel()
	params := json.RawMessage(append(jsonrpc.AppendString([]byte(`{"uri":`), uri), '}'))
	m, err := h.legacyExchange(s, l.target(), shim.Request{Method: method, Params: params}, discard{}).run(ctx)
	if err != nil || m.Error != nil {
		h.log.Debug("subscription failed", "method", method, "err", err, "answer", m.Error)
		return false
	}
	return true
}

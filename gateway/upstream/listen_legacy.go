package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"taskgate/gateway/upstream/listed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// listenOpen is Listen in an open session.
func (s *session) listenOpen(ctx context.Context, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	open, err := s.get.joinStream(ctx)
	defer func() { s.get.unwantStream(lingerAfter(ctx, s.from)) }()
	if err != nil {
		return err
	}
	server := s.t.memory.knownServer(ctx, s.from)
	if s.isOpen() || s.t.wire.cfg.Transport == nil {
		l, err := s.openGeneration(ctx) // the stream may have found that the generation before is lost
		if err != nil {
			return publicError(err)
		}
		server = l.server
	}
	agreed := reduceFilter(f, server, open)
	agreed.Resources = slices.DeleteFunc(slices.Clone(agreed.Resources), func(uri string) bool { return !s.subscribeTo(ctx, uri) })
	defer s.unsubscribeFrom(ctx, agreed.Resources)
	lis := newListener(ctx, agreed, s.from.Shared)
	s.listeners.addListener(lis)
	defer s.listeners.removeListener(lis)
	ready(agreed)
	for {
		// The GET stream of the session wakes it. A stream that was open is opened again, at least once a
		// minute.
		select {
		case <-lis.news:
			for _, n := range s.listeners.takeQueued(lis) {
				on(n)
			}
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if errors.Is(cause, ErrMoved) {
				// The queue is this listener's alone. The next notification goes to the remaining listeners.
				s.listeners.removeListener(lis)
				for _, n := range s.listeners.takeQueued(lis) {
					on(n)
				}
			}
			return cause
		}
	}
}

// ErrMoved is the cause that ends a Listen whose client has moved to another replica.
var ErrMoved = errors.New("the client is at another replica")

// lingerAfter is how long the GET stream is held beyond a Listen.
func lingerAfter(ctx context.Context, client shim.Session) time.Duration {
	switch {
	case errors.Is(context.Cause(ctx), ErrMoved):
		return lingerMoved
	case mcp.MayBeAsked(client.Capabilities):
		return linger // for the next call
	}
	return 0
}

// takeNotification takes a notification that is outside of the call on whose stream it came. If nobody waits
// for it here, the other replicas are told of it.
func (s *session) takeNotification(n shim.Notification) {
	n.Params = bytes.Clone(n.Params)
	if !s.passNotification(n) && s.shared.Load() {
		s.t.tellOthers(s.key.key, n)
	}
}

// passNotification hands a notification to those who wait for it here, and reports whether anybody does.
func (s *session) passNotification(n shim.Notification) bool {
	if n.Method == mcp.NotifyProgress {
		return s.calls.passProgress(n.Params)
	}
	s.t.memory.listChanged(n.Method, s.key.isSame)
	heard := s.listeners.passToListeners(n) || n.Method == mcp.NotifyElicitationComplete && s.calls.passCompleted(n.Params)
	// A listener may be about to come: here, or where another replica has introduced the client.
	if soon := time.Since(time.Unix(0, s.readyAt.Load())) < holdFor; !heard && s.from.Shared && (soon || s.get.hasUsers()) {
		s.listeners.keepEarly(n)
	}
	return heard
}

// reduceFilter reduces a filter to what can come: to what the server declares, if there is a stream.
func reduceFilter(f shim.Filter, srv Description, open bool) shim.Filter {
	if !open {
		return shim.Filter{}
	}
	f.ToolsListChanged = f.ToolsListChanged && srv.hasCapability("tools", "listChanged")
	f.PromptsListChanged = f.PromptsListChanged && srv.hasCapability("prompts", "listChanged")
	f.ResourcesListChanged = f.ResourcesListChanged && srv.hasCapability("resources", "listChanged")
	f.Log = f.Log && srv.hasCapability("logging")
	if !srv.hasCapability("resources", "subscribe") {
		f.Resources = nil
	}
	return f
}

// subscribed are the subscriptions of a session to resources.
type subscribed struct {
	listeners map[string]int
	told      map[string]*generation // the generation whose server was told last; a server may count each time
}

// mostTold bounds told: clients subscribe and unsubscribe at several replicas.
const mostTold = 10_000

func (u *subscribed) noteTold(uri string, l *generation) {
	if len(u.told) >= mostTold {
		clear(u.told)
	}
	u.told[uri] = l
}

// subscriptionsSlot has the subscriptions of a session. The holder may tell the server of them, so that messages stay in
// order, and puts them back.
type subscriptionsSlot chan subscribed

func (c subscriptionsSlot) takeSubscriptions(ctx context.Context) (subscribed, error) {
	select {
	case u := <-c:
		return u, nil
	case <-ctx.Done():
		return subscribed{}, context.Cause(ctx)
	}
}

// noteSubscribed notes that a client has told the server in a generation of a subscription, or, with nil, of its end.
func (c subscriptionsSlot) noteSubscribed(ctx context.Context, uri string, l *generation) {
	if u, err := c.takeSubscriptions(ctx); err == nil {
		if l == nil {
			delete(u.told, uri)
		} else {
			u.noteTold(uri, l)
		}
		c <- u
	}
}

// subscribeTo subscribes to a resource if that is new to the session, and reports whether the server has agreed.
func (s *session) subscribeTo(ctx context.Context, uri string) bool {
	u, err := s.subs.takeSubscriptions(ctx)
	if err != nil {
		return false
	}
	defer func() { s.subs <- u }()
	if u.listeners[uri] == 0 {
		// It uses the present generation: subscribeAgain takes only the resources counted by then. A legacy
		// client has subscribed by itself, maybe at another replica, and its server may refuse a second request.
		l, err := s.openGeneration(ctx)
		if err != nil || !s.subscribeIn(ctx, l, &u, uri) && !s.from.Shared {
			return false
		}
	}
	u.listeners[uri]++
	return true
}

// subscribeIn tells the server of a generation of a subscription, unless it knows that, and reports whether it does.
func (s *session) subscribeIn(ctx context.Context, l *generation, u *subscribed, uri string) bool {
	known := u.told[uri] == l || s.sendCommand(ctx, l, mcp.MethodResourcesSubscribe, "uri", uri)
	if known {
		u.noteTold(uri, l)
	}
	return known
}

// subscribeAgain tells the server of a generation of all subscriptions that it may lack, and returns all resources. A
// server without session ids may have been started anew in the same generation.
func (s *session) subscribeAgain(ctx context.Context, l *generation) []string {
	u, err := s.subs.takeSubscriptions(ctx)
	if err != nil {
		return nil
	}
	defer func() { s.subs <- u }()
	for uri := range u.listeners {
		if l.session == "" {
			delete(u.told, uri)
		}
		s.subscribeIn(ctx, l, &u, uri)
	}
	return slices.Collect(maps.Keys(u.listeners))
}

// unsubscribeFrom undoes subscribeTo, for resources that lose their last listener.
func (s *session) unsubscribeFrom(ctx context.Context, uris []string) {
	ctx, cancel := outliveCaller(ctx, cancelTimeout)
	defer cancel()
	for _, uri := range uris {
		s.unsubscribeOne(ctx, uri)
	}
}

// unsubscribeOne leaves the resource counted if its turn does not come in time: the server goes on with
// updates, and the next listener has them already. A legacy client unsubscribes by itself, and may listen at
// another replica.
func (s *session) unsubscribeOne(ctx context.Context, uri string) {
	u, err := s.subs.takeSubscriptions(ctx)
	if err != nil {
		return
	}
	defer func() { s.subs <- u }()
	if u.listeners[uri]--; u.listeners[uri] > 0 {
		return
	}
	delete(u.listeners, uri)
	if l := s.currentGeneration(); l != nil && !s.from.Shared {
		delete(u.told, uri)
		s.sendCommand(ctx, l, mcp.MethodResourcesUnsubscribe, "uri", uri)
	}
}

// What follows a break of the GET stream: what has changed meanwhile is told.

// noteBreak keeps the marks of the lists as they are when the stream breaks.
func (h *heldStream) noteBreak() {
	marks := h.s.lists.marks.Copy()
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	if h.missed == nil {
		h.missed = marks
	}
}

// skipGap follows a break in which no event is lost.
func (h *heldStream) skipGap() {
	h.s.get.mu.Lock()
	defer h.s.get.mu.Unlock()
	if !h.bridging {
		h.missed = nil
	}
}

// bridgeGap follows a break in which events may be lost. It makes the subscriptions that the server may lack, tells
// all listeners to look at their resources again, and has the lists compared as long as life lasts.
func (h *heldStream) bridgeGap(ctx, life context.Context) {
	uris := h.s.subscribeAgain(ctx, h.l)
	h.s.listeners.passMissed(shim.Filter{Resources: uris})
	l := h.l
	h.s.get.mu.Lock()
	h.gaps++
	begin := !h.bridging
	h.bridging = true
	h.s.get.mu.Unlock()
	if begin {
		h.s.t.work.Go(life, func(context.Context) { h.compareLists(life, l) })
	}
}

// compareLists tells the listeners which lists have changed in the breaks. A break meanwhile has them compared again.
func (h *heldStream) compareLists(ctx context.Context, l *generation) {
	st := &h.s.get
	for again := true; again; {
		st.mu.Lock()
		gaps, before := h.gaps, h.missed
		st.mu.Unlock()
		before, unread := h.s.lists.addMarks(ctx, before)
		wanted := reduceFilter(h.s.listeners.wantedLists(), l.server, true)
		changed, err := h.s.lists.marks.FindChanges(ctx, before, wanted, unread, h.s.lists.askList)
		if !wanted.ToolsListChanged || changed.ToolsListChanged {
			h.s.t.memory.listChanged(mcp.NotifyToolsListChanged, h.s.key.isSame)
		}
		if err == nil {
			h.s.listeners.passMissed(changed)
		}
		st.mu.Lock()
		again = err == nil && h.gaps != gaps
		if !again {
			h.bridging = false
		}
		if !again && err == nil {
			h.missed = nil
		}
		st.mu.Unlock()
	}
}

// sessionLists are the lists that the client of a session has read, at any replica.
type sessionLists struct {
	s     *session
	marks listed.Marks
}

// addMarks adds to marks those of lists that were read since they were taken, or at other replicas. unknown says that the
// latter cannot be had.
func (l *sessionLists) addMarks(ctx context.Context, marks map[string]listed.Mark) (all map[string]listed.Mark, unknown bool) {
	all = make(map[string]listed.Mark)
	if l.s.shared.Load() {
		st, _, err := l.s.t.loadShared(ctx, l.s.key.key)
		unknown = err != nil
		for method, sum := range st.Lists {
			all[method] = listed.Mark{Sum: sum, Known: true}
		}
	}
	maps.Copy(all, l.marks.Copy())
	maps.Copy(all, marks)
	return all, unknown
}

// noteList notes a page of a list that the client has read, for all replicas.
func (l *sessionLists) noteList(ctx context.Context, method string, params, page json.RawMessage) {
	sum, changed := l.marks.NotePage(method, params, page)
	if !changed || !l.s.shared.Load() {
		return
	}
	l.s.t.work.Go(ctx, func(ctx context.Context) {
		l.s.t.changeShared(ctx, l.s.key.key, func(st *shared) {
			st.Lists = maps.Clone(st.Lists)
			if st.Lists == nil {
				st.Lists = make(map[string]uint64, 1)
			}
			st.Lists[method] = sum
		})
	})
}

// askList asks for a page of a list in the generation in use.
func (l *sessionLists) askList(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	to := l.s.currentGeneration()
	if to == nil {
		return nil, errOver
	}
	ctx, cancel := l.s.t.wire.slowContext(ctx)
	defer cancel()
	return pageOf(l.s.newExchange(to.target, shim.Request{Method: method, Params: params, Session: l.s.from}, nil).runRequest(ctx))
}

// pageOf is the page that answers a request; nil if the server does not know the method.
func pageOf(m jsonrpc.Message, err error) (json.RawMessage, error) {
	if err == nil && m.Error != nil {
		err = m.Error
	}
	if rpc := rpcOf(err); rpc != nil && rpc.Code == mcp.CodeMethodNotFound {
		return nil, nil
	}
	return m.Result, err
}

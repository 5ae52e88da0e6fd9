package upstream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

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
		l, err := s.openLink(ctx) // the stream may have found that the generation before is lost
		if err != nil {
			return publicError(err)
		}
		server = l.server
	}
	agreed := reduceFilter(f, server, open)
	agreed.Resources = s.subscribeTo(ctx, agreed.Resources)
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
	n.Params = copyRaw(n.Params)
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
	return s.listeners.passToListeners(n) || n.Method == mcp.NotifyElicitationComplete && s.calls.passCompleted(n.Params)
}

// reduceFilter reduces a filter to what can come: to what the server declares, if there is a stream.
func reduceFilter(f shim.Filter, srv Server, open bool) shim.Filter {
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

// subscribed counts the listeners of each resource of a session, which owns it. The holder of the counts may
// tell the server of subscriptions, so that messages stay in order, and puts the counts back.
type subscribed chan map[string]int

func (u subscribed) takeTurn(ctx context.Context) (map[string]int, error) {
	select {
	case counts := <-u:
		return counts, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// subscribeTo subscribes to resources that are new to the session, and returns those that the server agreed
// to.
func (s *session) subscribeTo(ctx context.Context, uris []string) []string {
	var agreed []string
	for _, uri := range uris {
		if s.subscribeOne(ctx, uri) {
			agreed = append(agreed, uri)
		}
	}
	return agreed
}

func (s *session) subscribeOne(ctx context.Context, uri string) bool {
	counts, err := s.subs.takeTurn(ctx)
	if err != nil {
		return false
	}
	defer func() { s.subs <- counts }()
	if counts[uri] == 0 {
		// It uses the present generation: subscribeAgain takes only the resources counted by then. A legacy
		// client has subscribed by itself, and its server may refuse a second request.
		l, err := s.openLink(ctx)
		if err != nil || !s.sendCommand(ctx, l, mcp.MethodResourcesSubscribe, "uri", uri) && !s.from.Shared {
			return false
		}
	}
	counts[uri]++
	return true
}

// subscribeAgain subscribes to all resources anew in a generation, and returns them.
func (s *session) subscribeAgain(ctx context.Context, l *link) []string {
	counts, err := s.subs.takeTurn(ctx)
	if err != nil {
		return nil
	}
	defer func() { s.subs <- counts }()
	for uri := range counts {
		s.sendCommand(ctx, l, mcp.MethodResourcesSubscribe, "uri", uri)
	}
	return slices.Collect(maps.Keys(counts))
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
	counts, err := s.subs.takeTurn(ctx)
	if err != nil {
		return
	}
	defer func() { s.subs <- counts }()
	if counts[uri]--; counts[uri] > 0 {
		return
	}
	delete(counts, uri)
	if l := s.currentLink(); l != nil && !s.from.Shared {
		s.sendCommand(ctx, l, mcp.MethodResourcesUnsubscribe, "uri", uri)
	}
}

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
		// The GET stream of the session wakes it. One that was open is opened again, at least once a minute.
		select {
		case <-lis.news:
			for _, n := range lis.takeQueued() {
				on(n)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ErrMoved is why a Listen ends whose client is at another replica from now on.
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

// takeNotification takes a notification that is not of the call on whose stream it came, if it is one's.
// The other replicas are told of one that nobody waits for here.
func (s *session) takeNotification(n shim.Notification) {
	n.Params = copyRaw(n.Params)
	if !s.passNotification(n) && s.shared.Load() {
		s.t.tellOthers(s.key.key, n)
	}
}

// passNotification hands a notification to those who wait for it here, and reports whether somebody does.
func (s *session) passNotification(n shim.Notification) bool {
	if n.Method == mcp.NotifyProgress {
		return s.calls.passProgress(n.Params)
	}
	s.t.memory.listChanged(n.Method, s.key.isSame)
	return s.listeners.passToListeners(n) || n.Method == mcp.NotifyElicitationComplete && s.calls.passCompleted(n.Params)
}

// reduceFilter leaves of a filter what can come: nothing without a stream, and no more
// than the server declares.
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

// subscribed counts who listens to which resource of a session, which owns it. Whoever takes the counts has the
// turn to tell the server of subscriptions, so that one message does not overtake another, and puts them back.
type subscribed chan map[string]int

func (u subscribed) takeTurn(ctx context.Context) (map[string]int, error) {
	select {
	case counts := <-u:
		return counts, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// subscribeTo asks for updates of resources, where nobody has yet, and returns
// those that the server agreed to.
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
		// In the present generation: subscribeAgain takes along only what is counted by then.
		// A legacy client has subscribed by itself, and its server may refuse to be told twice.
		l, err := s.openLink(ctx)
		if err != nil || !s.sendCommand(ctx, l, mcp.MethodResourcesSubscribe, "uri", uri) && !s.from.Shared {
			return false
		}
	}
	counts[uri]++
	return true
}

// subscribeAgain subscribes to everything anew in a generation, and returns what that is.
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

// unsubscribeFrom undoes subscribe, for those that nobody else listens to.
func (s *session) unsubscribeFrom(ctx context.Context, uris []string) {
	ctx, cancel := outliveCaller(ctx, cancelTimeout)
	defer cancel()
	for _, uri := range uris {
		s.unsubscribeOne(ctx, uri)
	}
}

// unsubscribeOne leaves the resource counted where the turn does not come in time: the server goes on with
// updates, which the next listener need not ask for. A legacy client unsubscribes by itself, and may listen at
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

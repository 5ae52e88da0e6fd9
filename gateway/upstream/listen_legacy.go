package upstream

import (
	"context"
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// listen is Listen in an open session.
func (s *session) listen(ctx context.Context, l *link, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	open, err := s.join(ctx)
	defer s.leave(0)
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

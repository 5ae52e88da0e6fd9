package upstream

import (
	"strings"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// ears are the listeners of one session.
type ears struct {
	mu sync.Mutex
	m  map[*listener]struct{}
}

// listener is one Listen.
type listener struct {
	mu     sync.Mutex // on is called from one goroutine at a time
	filter shim.Filter
	on     func(shim.Notification)
}

func (e *ears) add(l *listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.m == nil {
		e.m = make(map[*listener]struct{})
	}
	e.m[l] = struct{}{}
}

// remove reports whether nobody listens any more.
func (e *ears) remove(l *listener) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.m, l)
	return len(e.m) == 0
}

// hear hands a notification to those who asked for it, and reports whether anybody
// did. Params must not change afterwards.
func (e *ears) hear(n shim.Notification) (heard bool) {
	e.mu.Lock()
	all := make([]*listener, 0, len(e.m))
	for l := range e.m {
		all = append(all, l)
	}
	e.mu.Unlock()
	for _, l := range all {
		heard = l.hear(n) || heard
	}
	return heard
}

func (l *listener) hear(n shim.Notification) bool {
	if !wants(l.filter, n) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on(n)
	return true
}

// wants reports whether a filter asks for a notification. What was not asked
// for is never delivered (protocol.md 2.8).
func wants(f shim.Filter, n shim.Notification) bool {
	switch n.Method {
	case mcp.NotifyToolsListChanged:
		return f.ToolsListChanged
	case mcp.NotifyPromptsListChanged:
		return f.PromptsListChanged
	case mcp.NotifyResourcesListChanged:
		return f.ResourcesListChanged
	case mcp.NotifyMessage:
		return f.Log
	case mcp.NotifyElicitationComplete:
		return f.Elicitations
	case mcp.NotifyResourceUpdated:
		uri, _ := jsonrpc.GetString(n.Params, "uri")
		return covers(f.Resources, uri)
	}
	return false
}

// covers reports whether a resource is one of these or below one: a server may
// name a sub-resource of the one subscribed (S25:server/resources).
func covers(uris []string, uri string) bool {
	for _, u := range uris {
		if uri == u || strings.HasPrefix(uri, strings.TrimSuffix(u, "/")+"/") {
			return true
		}
	}
	return false
}

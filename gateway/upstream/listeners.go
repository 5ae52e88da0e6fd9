package upstream

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"taskgate/gateway/upstream/listed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// listeners are the listeners of one session, which owns the set. mu also guards their queues.
type listeners struct {
	mu    sync.Mutex
	m     map[*listenCall]struct{}
	early []shim.Notification // what the server has said as soon as its client was ready, before the client listened
	until time.Time           // until then the first listener gets it
	had   bool                // there was a listener, here or at another replica
	news  bool                // something was heard or kept here
	giver string              // the replica whose early notifications are taken; "" until one gives them
}

// listenCall is one Listen. Its notifications wait in a queue, so that the reader of the session's
// stream never waits for it.
type listenCall struct {
	filter shim.Filter
	here   func() bool   // reports whether its client is there; nil means always
	all    bool          // it takes every notification: the session is its client's
	news   chan struct{} // a signal: the queue has something
	queue  []shim.Notification
}

// maxUnheard bounds the queue. A listener whose queue is full is told to look again instead.
const maxUnheard = 256

func newListener(ctx context.Context, f shim.Filter, all bool) *listenCall {
	here, _ := ctx.Value(hereKey{}).(func() bool)
	return &listenCall{filter: f, all: all, here: here, news: make(chan struct{}, 1)}
}

func (e *listeners) addListener(l *listenCall) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.m[l] = struct{}{}
	if l.all && time.Now().Before(e.until) {
		l.queue = e.early
		work.Signal(l.news)
	}
	e.early, e.had = nil, true
}

// The bounds of what is kept for the first listener: how many notifications, the bytes of one, and how long after the
// latest.
const (
	maxEarly      = 64
	maxEarlyBytes = 64 << 10
	earlyFor      = 10 * time.Second
)

// keepEarly keeps a notification that nobody hears for the first listener.
func (e *listeners) keepEarly(n shim.Notification) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.had && len(e.early) < maxEarly && len(n.Params) <= maxEarlyBytes {
		e.early, e.until, e.news = append(e.early, n), time.Now().Add(earlyFor), true
	}
}

// takesFrom reports whether the early notifications of another replica are new here. Each replica that keeps them has
// also told them at once, and only who has missed that from the beginning takes them, from one replica.
func (e *listeners) takesFrom(replica string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.giver == "" && !e.news {
		e.giver = replica
	}
	return e.giver == replica
}

// takeEarly takes what is kept for the first listener, which is at another replica.
func (e *listeners) takeEarly() []shim.Notification {
	e.mu.Lock()
	defer e.mu.Unlock()
	early := e.early
	e.early, e.had = nil, true
	return early
}

func (e *listeners) removeListener(l *listenCall) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.m, l)
}

// hasListener reports whether a client hears what the listeners are told.
func (e *listeners) hasListener() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.m {
		if l.here == nil || l.here() {
			return true
		}
	}
	return false
}

// wantedLists are the lists whose changes somebody wants to hear of.
func (e *listeners) wantedLists() (f shim.Filter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.m {
		if f = listed.Wanted(f, l.filter); l.all {
			return listed.Every
		}
	}
	return f
}

// passMissed tells all listeners to look again.
func (e *listeners) passMissed(f shim.Filter) {
	for _, n := range missedNotices(f) {
		e.passToListeners(n)
	}
}

// hereKey is the key of the context value that says whether a client is there.
type hereKey struct{}

// WhileHere returns a context for a Listen whose client may leave and come back meanwhile: here
// reports whether it is there.
func WhileHere(ctx context.Context, here func() bool) context.Context {
	return context.WithValue(ctx, hereKey{}, here)
}

// passToListeners hands a notification to the listeners that asked for it, and reports whether there
// are any. Params must not change afterwards.
func (e *listeners) passToListeners(n shim.Notification) (heard bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.m {
		heard = l.queueNotification(n) || heard
	}
	e.news = e.news || heard
	return heard
}

func (l *listenCall) queueNotification(n shim.Notification) bool {
	if !l.all && !Wants(l.filter, n) {
		return false
	}
	if len(l.queue) >= maxUnheard {
		l.queue = missedNotices(l.filter)
	}
	l.queue = append(l.queue, n)
	work.Signal(l.news)
	return true
}

func (e *listeners) takeQueued(l *listenCall) []shim.Notification {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue := l.queue
	l.queue = nil
	return queue
}

// Wants reports whether a filter asks for a notification. A modern client gets only those (protocol.md 2.8).
func Wants(f shim.Filter, n shim.Notification) bool {
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
		return coversResource(f.Resources, uri)
	}
	return false
}

// coversResource reports whether a resource is one of these or below one: a server may name a
// sub-resource of the one subscribed (S25:server/resources).
func coversResource(uris []string, uri string) bool {
	for _, u := range uris {
		if uri == u || strings.HasPrefix(uri, strings.TrimSuffix(u, "/")+"/") {
			return true
		}
	}
	return false
}

func asksNothing(f shim.Filter) bool {
	return !f.ToolsListChanged && !f.PromptsListChanged && !f.ResourcesListChanged && !f.Log && len(f.Resources) == 0
}

// missedNotices are the notifications that tell a listener to look again after a gap.
func missedNotices(f shim.Filter) []shim.Notification {
	var out []shim.Notification
	add := func(ok bool, method string) {
		if ok {
			out = append(out, shim.Notification{Method: method})
		}
	}
	add(f.ToolsListChanged, mcp.NotifyToolsListChanged)
	add(f.PromptsListChanged, mcp.NotifyPromptsListChanged)
	add(f.ResourcesListChanged, mcp.NotifyResourcesListChanged)
	for _, uri := range f.Resources {
		params := append(jsonrpc.AppendString([]byte(`{"uri":`), uri), '}')
		out = append(out, shim.Notification{Method: mcp.NotifyResourceUpdated, Params: json.RawMessage(params)})
	}
	return out
}

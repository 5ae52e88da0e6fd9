package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

// Tool is one entry of a server's tools list.
type Tool struct {
	// Raw is the Tool object as received.
	Raw json.RawMessage
	// Params are the arguments that a modern call mirrors in headers.
	Params []mcpheader.Param
	// Invalid says why an HTTP client must drop this tool from a modern server's
	// list (protocol.md 2.4); nil for a sound one.
	Invalid error
}

// How long a list of tools is believed. What is wrong with an old one shows: a
// call with wrong headers is refused before it begins, and repeated.
const (
	toolsMaxAge = 5 * time.Minute
	// toolsMinAge is the least time between two lists for the sake of a name that
	// was not in the first.
	toolsMinAge = 10 * time.Second
	maxPages    = 1000
	maxLists    = 1000
)

// tools caches lists of tools, one per session: a legacy server may show each
// session others (protocol.md H5), a modern one must not.
type tools struct {
	h  *HTTP
	mu sync.Mutex
	m  map[sessionKey]*toolList
}

type toolList struct {
	at     time.Time
	byName map[string]Tool
	flight *flight[*toolList]
}

// Tool looks a tool up in the server's list as this session sees it, listing
// if there is no list yet or it is old. It reports false for a tool that the
// server does not have. Errors are *shim.UpstreamError.
func (h *HTTP) Tool(ctx context.Context, s shim.Session, name string) (Tool, bool, error) {
	k, err := h.toolsKey(ctx, s)
	if err != nil {
		return Tool{}, false, public(err)
	}
	for {
		l, fresh, err := h.tools.get(ctx, k, s)
		if err != nil {
			return Tool{}, false, public(err)
		}
		t, ok := l.byName[name]
		if ok || fresh || time.Since(l.at) < toolsMinAge {
			return t, ok, nil
		}
		h.tools.drop(k, l)
	}
}

// Forget drops what is cached of the tools that this session sees, so that the
// next Tool lists them anew.
func (h *HTTP) Forget(s shim.Session) { h.tools.forget(s) }

// toolsKey says whose list it is: a modern server's list is the same for all
// who use the gateway's credentials.
func (h *HTTP) toolsKey(ctx context.Context, s shim.Session) (sessionKey, error) {
	v, err := h.eras.get(ctx)
	if err != nil || v.era == mcp.Modern {
		return sessionKey{}, err
	}
	return sessionKey{s.Key, fingerprint(s.Capabilities)}, nil
}

// get returns a list, and whether it was made just now.
func (t *tools) get(ctx context.Context, k sessionKey, s shim.Session) (*toolList, bool, error) {
	t.mu.Lock()
	l := t.m[k]
	if l != nil && l.flight == nil && time.Since(l.at) < toolsMaxAge {
		t.mu.Unlock()
		return l, false, nil
	}
	if l == nil || l.flight == nil {
		l = &toolList{}
		l.flight = fly(t.h, ctx, func(ctx context.Context) (*toolList, error) { return t.fill(ctx, k, l, s) })
		t.put(k, l)
	}
	f := l.flight
	t.mu.Unlock()
	done, err := f.wait(ctx)
	return done, true, err
}

func (t *tools) put(k sessionKey, l *toolList) {
	if t.m == nil || len(t.m) >= maxLists {
		t.m = make(map[sessionKey]*toolList) // sessions are the clients': bounded
	}
	t.m[k] = l
}

// fill lists the tools. A list that was invalidated meanwhile is used by those
// who wait for it, and by nobody after.
func (t *tools) fill(ctx context.Context, k sessionKey, place *toolList, s shim.Session) (*toolList, error) {
	byName, err := t.h.listTools(ctx, s)
	l := &toolList{at: time.Now(), byName: byName}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[k] == place {
		if err != nil {
			delete(t.m, k)
		} else {
			t.m[k] = l
		}
	}
	return l, err
}

// drop removes a list, if it is still the one meant.
func (t *tools) drop(k sessionKey, l *toolList) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[k] == l {
		delete(t.m, k)
	}
}

func (t *tools) forget(s shim.Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, sessionKey{})
	delete(t.m, sessionKey{s.Key, fingerprint(s.Capabilities)})
}

// changed follows a notification that the list has changed, for the session
// that heard it; nil is a modern server's.
func (t *tools) changed(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s == nil {
		delete(t.m, sessionKey{})
		return
	}
	delete(t.m, s.key)
}

func (t *tools) endSession(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.m {
		if k.key == key {
			delete(t.m, k)
		}
	}
}

// listTools reads all pages of the list. A legacy session stays the same for
// all of them: a cursor may belong to it.
func (h *HTTP) listTools(ctx context.Context, s shim.Session) (map[string]Tool, error) {
	ctx, cancel := h.slow(ctx)
	defer cancel()
	byName := make(map[string]Tool)
	var params json.RawMessage
	for range maxPages {
		reply, err := h.Call(ctx, shim.Request{Method: mcp.MethodToolsList, Params: params, Session: s}, nil)
		if err != nil {
			return nil, err
		}
		if reply.Error != nil {
			return nil, protocolError("the server does not list its tools", reply.Error)
		}
		list, _ := jsonrpc.Get(reply.Result, "tools")
		for raw := range jsonrpc.Elements(list) {
			name, t := readTool(raw)
			byName[name] = t
		}
		cursor, ok := jsonrpc.Get(reply.Result, "nextCursor") // "" is a cursor too (protocol.md 2.9)
		if !ok || string(cursor) == "null" {
			return byName, nil
		}
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	return nil, protocolError("the server's tools list does not end", errors.New("too many pages"))
}

func readTool(raw json.RawMessage) (string, Tool) {
	name, _ := jsonrpc.GetString(raw, "name")
	schema, _ := jsonrpc.Get(raw, "inputSchema")
	t := Tool{Raw: raw}
	t.Params, t.Invalid = mcpheader.Params(schema)
	return name, t
}

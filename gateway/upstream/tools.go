package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"taskgate/gateway/remember"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

const (
	// toolsMinAge is the least time between two lists for the sake of a name that the first lacked.
	toolsMinAge = 10 * time.Second
	maxPages    = 1000
	maxLists    = 1000
)

// listPatience is how long a call waits for a list. After that it goes out as it is, and the next
// call has the list. A call that a server has refused for want of headers waits for neededPatience.
//
// nowAge is the age up to which a list is the present one, so that many calls at once ask for one.
const (
	nowAge         = time.Second
	listPatience   = 250 * time.Millisecond
	neededPatience = 3 * time.Second
)

// Tool looks a tool up in the server's list as this session sees it. It reads the list first if that
// is missing or old. It reports false for a tool that the server lacks. Errors are
// *shim.UpstreamError.
//
// There is one list per session, since a legacy server may show each session other tools (protocol.md
// H5). A modern server must not, and has one list for each set of declared capabilities. An old list
// is harmless: a call with wrong headers is refused before it begins, and repeated.
func (h *ServerClient) Tool(ctx context.Context, s shim.Session, name string) (Tool, bool, error) {
	return h.findTool(ctx, s, name, listPatience)
}

func (h *ServerClient) findTool(ctx context.Context, s shim.Session, name string, patience time.Duration) (Tool, bool, error) {
	k, err := h.listKey(ctx, s)
	if err != nil {
		return Tool{}, false, publicError(err)
	}
	if known := h.memory.lists.Find(k); known.Fresh() {
		if tool, ok := known.Value[name]; ok {
			return tool, true, nil
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errSlowList)
	defer cancel()
	read := listReader(h, s)
	list, err := h.memory.lists.Get(ctx, k, remember.Wait, read)
	if list != nil && time.Since(list.At) >= toolsMinAge {
		if _, ok := list.Value[name]; !ok { // it may be new
			h.memory.lists.Doubt(0, k.isSame)
			list, err = h.memory.lists.Get(ctx, k, 0, read)
		}
	}
	if list == nil {
		return Tool{}, false, publicError(err)
	}
	tool, ok := list.Value[name]
	if !ok && err != nil {
		return Tool{}, false, publicError(err)
	}
	return tool, ok, nil
}

// listReader reads the list of a session.
func listReader(h *ServerClient, s shim.Session) func(context.Context) (map[string]Tool, time.Duration, error) {
	return func(ctx context.Context) (map[string]Tool, time.Duration, error) { return h.listTools(ctx, s) }
}

// mayRepeat reports whether the server says now that a second call of a tool does no harm.
func mayRepeat(ctx context.Context, h *ServerClient, s shim.Session, name string) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, neededPatience, errSlowList)
	defer cancel()
	k, err := h.listKey(ctx, s)
	if err != nil {
		return false
	}
	list, err := h.memory.lists.GetNewer(ctx, k, nowAge, 0, listReader(h, s))
	return err == nil && list.Value[name].Says.Idempotent
}

// listKey is the key of the list. For a modern server it is the same for clients of both eras.
func (h *ServerClient) listKey(ctx context.Context, s shim.Session) (sessionKey, error) {
	_, era, err := h.settleEra(ctx, s)
	if err == nil && era == mcp.Legacy {
		return keyOf(s), nil
	}
	return modernKey(ctx, s), err
}

// modernKey is the key of what a modern server lists to clients like that of s.
func modernKey(ctx context.Context, s shim.Session) sessionKey {
	return sessionKey{caps: reading.FingerprintOf(s.Capabilities), mark: s.Mark, token: forward.TokenMark(ctx)}
}

// listTools reads the list, and how long it is believed.
func (h *ServerClient) listTools(ctx context.Context, s shim.Session) (map[string]Tool, time.Duration, error) {
	return readPages(ctx, h, s, readTool)
}

// ListTools returns the entries of the server's tools list, by name. Errors are *shim.UpstreamError.
func (h *ServerClient) ListTools(ctx context.Context, s shim.Session) (map[string]json.RawMessage, error) {
	byName, _, err := readPages(ctx, h, s, func(raw json.RawMessage) (string, json.RawMessage) {
		name, _ := jsonrpc.GetString(raw, "name")
		return name, raw
	})
	return byName, publicError(err)
}

// readPages reads all pages of the list, in one legacy session: a cursor may belong to it. read is what is wanted of an
// entry, with the name of the tool. The list of a server whose cursor has come before, or has led to nothing new twice,
// is over: such servers do not look at it.
func readPages[T any](ctx context.Context, h *ServerClient, s shim.Session, read func(entry json.RawMessage) (string, T)) (map[string]T, time.Duration, error) {
	ctx, cancel := h.wire.slowContext(ctx)
	defer cancel()
	byName := make(map[string]T)
	var params json.RawMessage
	fresh, cursors, idle := remember.Most, make(map[string]bool), 0
	for range maxPages {
		reply, err := h.Call(ctx, shim.Request{Method: mcp.MethodToolsList, Params: params, Session: s}, nil)
		if err != nil {
			return nil, 0, err
		}
		if reply.Error != nil {
			return nil, 0, protocolError("the server does not list its tools", reply.Error)
		}
		fresh = min(fresh, remember.Freshness(reply.Result))
		list, _ := jsonrpc.Get(reply.Result, "tools")
		before := len(byName)
		for raw := range jsonrpc.Elements(list) {
			name, entry := read(raw)
			byName[name] = entry
		}
		if idle++; len(byName) > before {
			idle = 0
		}
		cursor, ok := jsonrpc.Get(reply.Result, "nextCursor") // "" is a cursor too (protocol.md 2.9)
		if !ok || string(cursor) == "null" {
			return byName, fresh, nil
		}
		if cursors[string(cursor)] || idle > 1 {
			h.memory.endless.Do(func() {
				h.wire.log.Warn("the server's list of tools does not end: it is read until nothing new comes", "cursor", clipCursor(cursor))
			})
			return byName, fresh, nil
		}
		cursors[string(cursor)] = true
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	return nil, 0, protocolError("the server's tools list does not end", errors.New("too many pages"))
}

// clipCursor is the begin of a cursor, for the log.
func clipCursor(cursor json.RawMessage) string { return string(cursor[:min(len(cursor), 50)]) }

// errSlowList says that the list is on its way.
var errSlowList = newError(shim.KindTimeout, "the server does not list its tools in time", nil)

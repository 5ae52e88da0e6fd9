package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
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
	// Missing says that the server's list does not have it.
	Missing bool
	// needsTask is whether the server has refused it to who takes no tasks (T5), since it was
	// listed; nil for a tool that is not listed.
	needsTask *atomic.Bool
}

const (
	// toolsMinAge is the least time between two lists for the sake of a name that
	// was not in the first.
	toolsMinAge = 10 * time.Second
	maxPages    = 1000
	maxLists    = 1000
)

// tools remembers lists of tools by name: one per session, since a legacy server may show each
// session others (protocol.md H5), and of a modern server, which must not, one for each set of
// capabilities that clients declare. What is wrong with an old list shows: a call with wrong
// headers is refused before it begins, and repeated. The client owns it.
type tools struct {
	client *HTTP
	lists  remembered[map[string]Tool]
}

// listPatience is how long a call waits for a list: it can go without, and the next one has it.
const listPatience = 3 * time.Second

// find looks a tool up in the list as a session sees it (HTTP.Tool).
func (t *tools) find(ctx context.Context, s shim.Session, name string) (Tool, bool, error) {
	k, err := t.key(ctx, s)
	if err != nil {
		return Tool{}, false, public(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listPatience, errSlowList)
	defer cancel()
	read := func(ctx context.Context) (map[string]Tool, time.Duration, error) { return t.all(ctx, s) }
	list, err := t.lists.get(ctx, k, renewWait, read)
	if list != nil && time.Since(list.at) >= toolsMinAge {
		if _, ok := list.value[name]; !ok { // it may be new
			t.lists.doubt(0, func(other sessionKey) bool { return other == k })
			list, err = t.lists.get(ctx, k, 0, read)
		}
	}
	if list == nil {
		return Tool{}, false, public(err)
	}
	tool, ok := list.value[name]
	if !ok && err != nil {
		return Tool{}, false, public(err)
	}
	tool.Missing = !ok
	return tool, ok, nil
}

// key says whose list it is. That of a modern server is the same for clients of both eras.
func (t *tools) key(ctx context.Context, s shim.Session) (sessionKey, error) {
	_, era, err := t.client.settle(ctx, s)
	if err == nil && era == mcp.Legacy {
		return keyOf(s), nil
	}
	return sessionKey{caps: fingerprint(s.Capabilities), mark: s.Mark, token: tokenMark(ctx)}, err
}

// forget has the list that a session sees be read again.
func (t *tools) forget(s shim.Session) {
	caps := fingerprint(s.Capabilities)
	t.lists.doubt(0, func(k sessionKey) bool { return k.caps == caps && (k.key == "" || k.key == s.Key) })
}

// changed takes a notification in a session with a legacy server: a list of it has changed, and
// perhaps what it says of itself.
func (t *tools) changed(k sessionKey, method string) {
	if method == mcp.NotifyToolsListChanged {
		t.lists.doubt(0, func(other sessionKey) bool { return other == k })
	}
	t.listChanged(method)
}

// heard takes a notification of a modern server, which means all of its clients.
func (t *tools) heard(n shim.Notification) {
	if n.Method == mcp.NotifyToolsListChanged {
		t.lists.doubt(0, every)
	}
	t.listChanged(n.Method)
}

func (t *tools) listChanged(method string) {
	switch method {
	case mcp.NotifyToolsListChanged, mcp.NotifyPromptsListChanged, mcp.NotifyResourcesListChanged:
		t.client.eras.seen.doubt(leastFresh, every)
	}
}

func (t *tools) endSession(key string) {
	t.lists.drop(func(k sessionKey) bool { return k.key == key })
}

// all reads all pages of the list. A legacy session stays the same for
// all of them: a cursor may belong to it.
func (t *tools) all(ctx context.Context, s shim.Session) (map[string]Tool, time.Duration, error) {
	ctx, cancel := t.client.wire.slow(ctx)
	defer cancel()
	byName := make(map[string]Tool)
	var params json.RawMessage
	fresh := mostFresh
	for range maxPages {
		reply, err := t.client.Call(ctx, shim.Request{Method: mcp.MethodToolsList, Params: params, Session: s}, nil)
		if err != nil {
			return nil, 0, err
		}
		if reply.Error != nil {
			return nil, 0, protocolError("the server does not list its tools", reply.Error)
		}
		fresh = min(fresh, freshness(reply.Result))
		list, _ := jsonrpc.Get(reply.Result, "tools")
		for raw := range jsonrpc.Elements(list) {
			name, tool := readTool(raw)
			byName[name] = tool
		}
		cursor, ok := jsonrpc.Get(reply.Result, "nextCursor") // "" is a cursor too (protocol.md 2.9)
		if !ok || string(cursor) == "null" {
			return byName, fresh, nil
		}
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	return nil, 0, protocolError("the server's tools list does not end", errors.New("too many pages"))
}

// errSlowList: the list is on its way.
var errSlowList = fail(kindTimeout, "the server does not list its tools in time", nil)

func readTool(raw json.RawMessage) (string, Tool) {
	name, _ := jsonrpc.GetString(raw, "name")
	schema, _ := jsonrpc.Get(raw, "inputSchema")
	t := Tool{Raw: raw, needsTask: new(atomic.Bool)}
	t.Params, t.Invalid = mcpheader.Params(schema)
	return name, t
}

package gateway

import (
	"encoding/json"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// askedFor are the client capabilities that let a server ask a client something
// (protocol.md 2.2).
var askedFor = []string{"elicitation", "sampling", "roots"}

// answerable are those of a client's capabilities by which it can be asked, and no
// others; nil for none. A server hears of no more than that, and so asks for no more
// (T40, H4).
func answerable(capabilities json.RawMessage) json.RawMessage {
	var out []byte
	for _, name := range askedFor {
		value, ok := jsonrpc.Get(capabilities, name)
		if !ok || !jsonrpc.IsObject(value) {
			continue
		}
		if out == nil {
			out = []byte(`{}`)
		}
		out = jsonrpc.Extend(out, append(append(jsonrpc.AppendString(nil, name), ':'), value...))
	}
	return out
}

// asking says how the client is asked what a legacy server wants to know in a call of
// this tool, or what a server of either era does once there is a task: in the task.
// So it is not asked where there might be none.
func (e *endpoint) asking(q *modernRequest) shim.Asking {
	t := e.config.Tool(q.name)
	if !q.tasks || t.Tasks == config.TasksNever || t.EarlyInput == config.EarlyMRTR && q.server.Era != mcp.Modern ||
		answerable(q.capabilities) == nil {
		return shim.AskNever
	}
	return shim.AskPark
}

// declared are the capabilities that a legacy server is told of. They hold for the
// upstream session and not for one call, so they do not depend on the tool: what a
// server lists may depend on them, and has to be what it then does (H5).
func (e *endpoint) declared(q *modernRequest) json.RawMessage {
	if !q.tasks || !e.convertible() {
		return nil // nobody would bring a question to this client
	}
	return answerable(q.capabilities)
}

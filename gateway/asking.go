package gateway

import (
	"encoding/json"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// asking says how the client can be asked. Before there is a task, the questions of
// a modern server are relayed; those of a legacy one need a state that can be sealed.
func (e *endpoint) asking(q *modernRequest) shim.Asking {
	if !asks(q.msg.Method) || answerable(q.capabilities) == nil {
		return shim.AskNever
	}
	if q.server.Era != mcp.Modern && e.gateway.state != nil || e.asksInTask(q) {
		return shim.AskPark
	}
	return shim.AskNever
}

// asksInTask reports whether every question of the call is asked in a task, apart from
// those of a modern server that are relayed before there is one. A client that does not
// take tasks can be asked in one while it waits in the gateway's tool (design.md 0.10).
func (e *endpoint) asksInTask(q *modernRequest) bool {
	if q.msg.Method != mcp.MethodToolsCall || !e.convertible() {
		return false
	}
	tool := e.config.Tool(q.name)
	if !q.tasks {
		return e.handles() && e.gateway.state != nil && q.server.Era == mcp.Modern && tool.Tasks != config.TasksNever
	}
	return tool.Tasks != config.TasksNever && (q.server.Era == mcp.Modern || tool.EarlyInput != config.EarlyMRTR)
}

// declared are the capabilities that a legacy server is told of: none of a client to
// whom nobody would bring a question. They hold for the upstream session and not for one
// call, so they do not depend on the tool: what a server lists may depend on them, and
// has to be what it then does (H5).
func (e *endpoint) declared(q *modernRequest) json.RawMessage {
	if e.gateway.state == nil && (!q.tasks || !e.convertible()) {
		return nil
	}
	return answerable(q.capabilities)
}

// answerable are the kinds of questions that a client declared it answers, in one
// spelling: there is a session with a legacy server for each set of them (H4). nil
// stands for none.
func answerable(capabilities json.RawMessage) json.RawMessage {
	var out json.RawMessage
	for _, kind := range []struct {
		name  string
		modes []string
	}{{"elicitation", []string{"form", "url"}}, {"roots", nil}, {"sampling", []string{"context", "tools"}}} {
		declared, _ := jsonrpc.Get(capabilities, kind.name)
		if !jsonrpc.IsObject(declared) {
			continue
		}
		if out == nil {
			out = json.RawMessage(`{}`)
		}
		out = with(out, json.RawMessage(`{}`), kind.name)
		for _, mode := range kind.modes {
			if v, _ := jsonrpc.Get(declared, mode); jsonrpc.IsObject(v) {
				out = with(out, json.RawMessage(`{}`), kind.name, mode)
			}
		}
	}
	return out
}

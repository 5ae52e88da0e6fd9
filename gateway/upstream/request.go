package upstream

import (
	"encoding/json"
	"net/http"

	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

// newExchange makes the part of an exchange that both eras have in common. With a nil sink everything before
// the answer is discarded.
func (w *wire) newExchange(to target, r shim.Request, sink shim.Sink) *exchange {
	if sink == nil {
		sink = discard{}
	}
	x := &exchange{
		w: w, outside: discard{}, to: to, sink: sink, caller: r.Session, level: r.LogLevel,
		id: w.nextID(to), method: r.Method, name: r.Name, params: r.Params,
		progress: r.Progress || r.Method == mcp.MethodToolsCall, limits: r.Limits,
	}
	from := to.beginCheckpoint(x.id)
	from.Called = r.Shown
	x.checkpoints = newCheckpointer(sink, w.log, from)
	x.cork.to, x.asking.x, x.res.x = sink, x, x
	return x
}

// modernExchange puts a request in the words of a modern version: everything that a legacy server knows from
// its session goes with it (protocol.md 2.2, 2.4).
func (w *wire) modernExchange(r shim.Request, sink shim.Sink, version string) *exchange {
	x := w.newExchange(target{era: mcp.Modern, version: version}, r, sink)
	x.meta = append(make([]reading.Pair, 0, 8),
		reading.Text(mcp.MetaProtocolVersion, version),
		reading.Pair{Key: mcp.MetaClientCapabilities, Value: w.declaredAbilities(r)},
		reading.Pair{Key: mcp.MetaClientInfo, Value: w.cfg.clientInfo(r.Session.ClientInfo)})
	if x.level != "" {
		x.meta = append(x.meta, reading.Text(mcp.MetaLogLevel, x.level))
	}
	x.header = make(http.Header, 4)
	x.header[mcp.HeaderMethod] = []string{r.Method}
	if member := mcp.NameParam(r.Method); member != "" {
		// The name comes from the body, and not from r.Name: the server compares the two.
		if name, ok := jsonrpc.GetString(r.Params, member); ok {
			x.header[mcp.HeaderName] = []string{mcpheader.Encode(name)}
		}
	}
	return x
}

// declaredAbilities are the capabilities that a modern request declares. They say that the gateway takes
// tasks, unless the operator has excluded tasks or the call goes without (call.withoutTask). A request about
// a task has to declare it in any case (T3, T6).
func (w *wire) declaredAbilities(r shim.Request) json.RawMessage {
	caps := reading.DeclaredCapabilities(r.Session.Capabilities)
	if (w.cfg.Tasks == TasksNever || r.NoTask) && mcp.NameParam(r.Method) != "taskId" {
		return caps
	}
	return jsonrpc.With(caps, json.RawMessage(`{}`), "extensions", mcp.ExtensionTasks)
}

// besideRequest is a request of the gateway's own about this one.
func (x *exchange) besideRequest(method string, params []byte) *exchange {
	var y *exchange
	if x.to.era == mcp.Modern {
		y = x.w.modernExchange(shim.Request{Method: method, Params: params, Session: x.caller}, nil, x.to.version)
	} else {
		y = x.w.newExchange(x.to, shim.Request{Method: method, Params: params}, nil)
		y.calls = x.calls
	}
	y.outside, y.uncancelled = x.outside, true
	return y
}

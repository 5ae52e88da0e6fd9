package upstream

import (
	"context"
	"encoding/json"
	"net/http"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

// modernExchange puts a request in the words of a modern version: everything
// that a legacy server knows from its session goes with it (protocol.md 2.2,
// 2.4).
func (w *wire) modernExchange(r shim.Request, sink shim.Sink, version string) *exchange {
	x := w.exchange(target{era: mcp.Modern, version: version}, r, sink)
	x.meta = append(make([]pair, 0, 8),
		text(mcp.MetaProtocolVersion, version),
		pair{mcp.MetaClientCapabilities, w.abilities(r)},
		pair{mcp.MetaClientInfo, w.cfg.clientInfo(r.Session.ClientInfo)})
	if x.level != "" {
		x.meta = append(x.meta, text(mcp.MetaLogLevel, x.level))
	}
	x.header = make(http.Header, 4)
	set(x.header, mcp.HeaderMethod, r.Method)
	if member := mcp.NameParam(r.Method); member != "" {
		// Out of the body and not out of r.Name: the server compares the two.
		if name, ok := jsonrpc.GetString(r.Params, member); ok {
			set(x.header, mcp.HeaderName, mcpheader.Encode(name))
		}
	}
	return x
}

// abilities are the capabilities that a modern request declares. That the gateway takes tasks
// is one of them, unless the operator wants none; who asks about a task has to declare it in
// any case (T3, T6).
func (w *wire) abilities(r shim.Request) json.RawMessage {
	caps := declared(r.Session.Capabilities)
	if w.cfg.Tasks == TasksNever && mcp.NameParam(r.Method) != "taskId" {
		return caps
	}
	return jsonrpc.With(caps, json.RawMessage(`{}`), "extensions", mcp.ExtensionTasks)
}

// modern makes one attempt at a call.
func (c *call) modern(ctx context.Context, v *verdict) (shim.Reply, error) {
	x := c.h.wire.modernExchange(c.r, c.sink, v.version)
	x.outside = c.h.tools
	if c.r.Method == mcp.MethodToolsCall {
		if c.h.wire.cfg.Tasks != TasksNever {
			x.task = newServerTask(x, &taskMark{})
			x.task.listeners = c.h.listeners
		}
		c.mirror(ctx, x)
		if err := ended(ctx); err != nil {
			return shim.Reply{}, err
		}
	}
	m, err := x.run(ctx)
	if err == nil && x.task.id() != "" {
		return taskReply(c.r, v.version, m)
	}
	rpc, refused := m.Error, false
	if se, ok := err.(*statusError); ok {
		rpc, refused = se.answer(), se.refusal()
		c.h.eras.doubt(v, se)
	}
	switch {
	case rpc != nil:
		return c.modernError(v, rpc, refused)
	case err != nil:
		return shim.Reply{}, err
	}
	return modernReply(c.r, m)
}

// modernError sorts the errors of a modern server (protocol.md 7.5). Those about
// headers and versions are ours to mend, once. refused says that the error is the
// body of a refusal; anywhere else these codes prove nothing.
func (c *call) modernError(v *verdict, rpc *jsonrpc.Error, refused bool) (shim.Reply, error) {
	code := mcp.CodeFrom(v.version, rpc.Code)
	listed := supportedVersions(rpc.Data) != nil
	if rpc.Code == mcp.CodeDraftUnsupportedVersion && listed {
		code = mcp.CodeUnsupportedVersion // as a server of the other version spells it
	}
	reply := modernFailure(code, rpc)
	switch code {
	case mcp.CodeHeaderMismatch:
		return c.proved(refused, &notBegun{why: otherHeaders, reply: reply})
	case mcp.CodeUnsupportedVersion:
		return c.proved(refused && listed, &notBegun{why: otherVersion, v: v, reply: reply})
	}
	if v.mute && code == mcp.CodeMethodNotFound {
		c.h.eras.forget(v) // it never described itself, and now knows no method
	}
	return reply, nil
}

// modernFailure is the reply for an error of a modern server, whose code in its newest spelling
// is code.
func modernFailure(code int64, rpc *jsonrpc.Error) shim.Reply {
	switch {
	case code == mcp.CodeHeaderMismatch:
		return ours(rpc, "the server and the gateway disagree about the headers of the call")
	case code == mcp.CodeUnsupportedVersion:
		return ours(rpc, "the server and the gateway have no protocol version in common")
	case code == mcp.CodeMissingCapability:
		e := rpcError(rpc)
		e.Code = code
		return shim.Reply{Error: e}
	case mcp.Reserved(rpc.Code):
		return ours(rpc, "the server answered with an error that is not for clients")
	}
	return shim.Reply{Error: rpcError(rpc)}
}

// mirror writes the arguments that the tool's schema marks into headers
// (protocol.md 2.4, H12). Without the schema the call goes as it is: most tools
// mark nothing, and a server that misses a header says so before it begins.
func (c *call) mirror(ctx context.Context, x *exchange) {
	name, _ := jsonrpc.GetString(c.r.Params, "name")
	tool, ok, err := c.h.tools.find(ctx, c.r.Session, name)
	if err != nil {
		c.h.wire.log.Debug("tools could not be listed before a call", "err", err)
	}
	if !ok || len(tool.Params) == 0 {
		return
	}
	args, _ := jsonrpc.Get(c.r.Params, "arguments")
	for _, p := range tool.Params {
		value, present, err := mcpheader.Value(p.Argument(args), p)
		if err == nil && present { // a wrong type is for the server to judge
			x.header.Set(mcp.HeaderParamPrefix+p.Header, mcpheader.Encode(value))
		}
	}
}

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
// is one of them, unless the operator wants none, or the call goes without (call.withoutTask);
// who asks about a task has to declare it in any case (T3, T6).
func (w *wire) abilities(r shim.Request) json.RawMessage {
	caps := declared(r.Session.Capabilities)
	if (w.cfg.Tasks == TasksNever || r.NoTask) && mcp.NameParam(r.Method) != "taskId" {
		return caps
	}
	return jsonrpc.With(caps, json.RawMessage(`{}`), "extensions", mcp.ExtensionTasks)
}

// modern makes one attempt at a call.
func (c *call) modern(ctx context.Context, v *verdict) (shim.Reply, error) {
	r, tool := c.r, c.tool(ctx)
	if err := ended(ctx); err != nil {
		return shim.Reply{}, err
	}
	r.NoTask = c.withoutTask(ctx, tool)
	x := c.h.wire.modernExchange(r, c.sink, v.version)
	x.outside = c.h.tools
	if r.Method == mcp.MethodToolsCall {
		if c.h.wire.cfg.Tasks != TasksNever && !r.NoTask {
			x.task = newServerTask(x, &taskMark{})
			if c.offersTasks(ctx) {
				x.task.naming = namedSoon
			}
		}
		mirror(x, tool)
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
	case rpc != nil && r.NoTask && requiresTask(v, rpc):
		again := &notBegun{why: needsTask, tool: tool, reply: modernFailure(mcp.CodeMissingCapability, rpc)}
		return c.proved(!x.told, again)
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

// withoutTask reports whether the call does not declare that the gateway takes tasks. A task has
// one status message at a time, so a caller who waits for the reply, and hears progress
// meanwhile, would hear less. A tool that needs a task is refused then (T5), and is called again
// with the extension declared (design.md 0.25).
func (c *call) withoutTask(ctx context.Context, tool Tool) bool {
	hears := c.r.Progress || c.r.LogLevel != ""
	return c.r.Method == mcp.MethodToolsCall && c.r.NoTask && hears && c.h.wire.cfg.Tasks == TasksAuto &&
		!c.met[needsTask] && (tool.needsTask == nil || !tool.needsTask.Load()) && c.offersTasks(ctx)
}

// offersTasks reports whether the modern server of the call is known to have the extension (T1).
func (c *call) offersTasks(ctx context.Context) bool {
	s := c.r.Session
	s.Legacy = false // it says the same to clients of both eras
	srv := c.h.eras.seen.find(clientsLike(ctx, s))
	if srv == nil {
		return false
	}
	_, offers := jsonrpc.Get(srv.value.Capabilities, "extensions", mcp.ExtensionTasks)
	return offers
}

// requiresTask reports whether an error of a server that has the extension says that the request
// has to declare it (T5).
func requiresTask(v *verdict, rpc *jsonrpc.Error) bool {
	_, wants := jsonrpc.Get(rpc.Data, "requiredCapabilities", "extensions", mcp.ExtensionTasks)
	return wants && mcp.CodeFrom(v.version, rpc.Code) == mcp.CodeMissingCapability
}

// learn notes that the server refuses the tool to who takes no tasks.
func (t Tool) learn() {
	if t.needsTask != nil {
		t.needsTask.Store(true)
	}
}

// tool is what the server lists of the tool that is called. Without that the call goes as it is:
// most tools mark no argument, and a server that misses a header says so before it begins.
func (c *call) tool(ctx context.Context) Tool {
	if c.r.Method != mcp.MethodToolsCall {
		return Tool{}
	}
	name, _ := jsonrpc.GetString(c.r.Params, "name")
	tool, _, err := c.h.tools.find(ctx, c.r.Session, name)
	if err != nil {
		c.h.wire.log.Debug("tools could not be listed before a call", "err", err)
	}
	return tool
}

// mirror writes the arguments that the tool's schema marks into headers
// (protocol.md 2.4, H12).
func mirror(x *exchange, tool Tool) {
	if len(tool.Params) == 0 {
		return
	}
	args, _ := jsonrpc.Get(x.params, "arguments")
	for _, p := range tool.Params {
		value, present, err := mcpheader.Value(p.Argument(args), p)
		if err == nil && present { // a wrong type is for the server to judge
			x.header.Set(mcp.HeaderParamPrefix+p.Header, mcpheader.Encode(value))
		}
	}
}

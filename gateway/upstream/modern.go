package upstream

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

func (c *call) attemptModern(ctx context.Context, v *verdict) (shim.Reply, error) {
	r := c.r
	tool, err := c.findTool(ctx)
	if ended := causeOf(ctx); ended != nil || err != nil {
		return shim.Reply{}, cmp.Or(ended, err)
	}
	r.NoTask = c.withoutTask(ctx, tool)
	x := c.h.wire.modernExchange(r, c.sink, v.version)
	x.outside = c.h.memory
	c.noteExchange(x)
	if r.Method == mcp.MethodToolsCall {
		if c.h.wire.cfg.Tasks != TasksNever && !r.NoTask {
			t := newServerTask(x, &taskMark{})
			if x.task = t; c.offersTasks(ctx) {
				t.naming = namedSoon
			}
		}
		mirrorArguments(x, tool)
	}
	m, err := x.runRequest(ctx)
	if err == nil && x.checkpoints.taskID() != "" {
		return taskReply(c.r, x.answer)
	}
	rpc, refused := m.Error, false
	if se, ok := err.(*transport.StatusError); ok {
		rpc, refused = se.Answer(), se.IsRefusal()
		c.h.memory.doubtVerdict(v, se)
	}
	switch {
	case rpc != nil && r.NoTask && requiresTask(rpc):
		return shim.Reply{}, &notBegun{why: needsTask, unproven: x.told, tool: tool, reply: reading.ModernFailure(mcp.CodeMissingCapability, rpc)}
	case rpc != nil:
		return c.modernError(v, rpc, refused)
	case err != nil:
		return shim.Reply{}, err
	}
	if r.Method != mcp.MethodToolsCall {
		c.h.memory.marksOf(modernKey(ctx, r.Session)).NotePage(r.Method, r.Params, x.answer.Result)
	}
	return reading.ModernReply(c.r, x.answer)
}

// modernError sorts the errors of a modern server (protocol.md 7.5). The gateway mends those about
// headers and versions, once. refused says that the error is the body of a refusal; only there these
// codes are proof.
func (c *call) modernError(v *verdict, rpc *jsonrpc.Error, refused bool) (shim.Reply, error) {
	code := rpc.Code
	listed := supportedVersions(rpc.Data) != nil
	if rpc.Code == mcp.CodeDraftUnsupportedVersion && listed {
		code = mcp.CodeUnsupportedVersion // the spelling of a draft
	}
	reply := reading.ModernFailure(code, rpc)
	switch code {
	case mcp.CodeHeaderMismatch:
		return shim.Reply{}, &notBegun{why: otherHeaders, unproven: !refused, reply: reply}
	case mcp.CodeUnsupportedVersion:
		return shim.Reply{}, &notBegun{why: otherVersion, unproven: !refused || !listed, v: v, reply: reply}
	}
	if v.mute && code == mcp.CodeMethodNotFound {
		c.h.memory.forgetVerdict(v) // it never described itself, and now knows no method
	}
	return reply, nil
}

// withoutTask reports whether the call goes out without declaring that the gateway takes tasks. A
// task has one status message at a time, so a caller who waits for the reply, and hears progress
// meanwhile, would hear less. A tool that needs a task refuses the call then (T5). It is sent again
// with the extension declared (design.md 0.25).
func (c *call) withoutTask(ctx context.Context, tool Tool) bool {
	hears := c.r.Progress || c.r.LogLevel != ""
	return c.r.Method == mcp.MethodToolsCall && c.r.NoTask && hears && c.h.wire.cfg.Tasks == TasksAuto &&
		!c.met[needsTask] && (tool.needsTask == nil || !tool.needsTask.Load()) && c.offersTasks(ctx)
}

// offersTasks reports whether the modern server of the call is known to have the extension (T1).
func (c *call) offersTasks(ctx context.Context) bool {
	s := c.r.Session
	s.Legacy = false // a modern server says the same to clients of both eras
	srv := c.h.memory.seen.Find(clientsLike(ctx, s))
	if srv == nil {
		return false
	}
	_, offers := jsonrpc.Get(srv.Value.Capabilities, "extensions", mcp.ExtensionTasks)
	return offers
}

// requiresTask reports whether an error of a server says that the request has to declare the
// extension (T5).
func requiresTask(rpc *jsonrpc.Error) bool {
	_, wants := jsonrpc.Get(rpc.Data, "requiredCapabilities", "extensions", mcp.ExtensionTasks)
	return wants && rpc.Code == mcp.CodeMissingCapability
}

// findTool is the called tool as the server lists it. If the list is missing, the call goes as it
// is: few tools mark an argument, and a server that misses a header says so before it begins. The error is the refusal of
// a token that came with answers: they go out with no other one, so the call ends.
func (c *call) findTool(ctx context.Context) (Tool, error) {
	if c.r.Method != mcp.MethodToolsCall {
		return Tool{}, nil
	}
	name, _ := jsonrpc.GetString(c.r.Params, "name")
	patience := listPatience
	if c.met[otherHeaders] {
		patience = neededPatience
	}
	tool, _, err := c.h.findTool(ctx, c.r.Session, name, patience)
	if err != nil {
		c.h.wire.log.Debug("tools could not be listed before a call", "err", err)
	}
	if refusal, ok := errors.AsType[*forward.ServerRefusal](err); ok && refusal.Status == http.StatusUnauthorized && forward.HandsOn(ctx) {
		return tool, err
	}
	return tool, nil
}

// mirrorArguments writes the arguments that the tool's schema marks into headers
// (protocol.md 2.4, H12).
func mirrorArguments(x *exchange, tool Tool) {
	if len(tool.Params) == 0 {
		return
	}
	args, _ := jsonrpc.Get(x.params, "arguments")
	values := mcpheader.Arguments(tool.Params, args)
	for i, p := range tool.Params {
		value, present, err := mcpheader.Value(values[i], p)
		if err == nil && present { // the server judges a wrong type
			x.header.Set(mcp.HeaderParamPrefix+p.Header, mcpheader.Encode(value))
		}
	}
}

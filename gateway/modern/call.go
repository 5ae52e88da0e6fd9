package modern

import (
	"context"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// callTool answers tools/call: with the upstream's result, or with a task if the shim made one
// (T4), which a client without tasks is told of in words (design.md 0.10). If the client goes
// before that, its context ends, and the upstream call with it. Once there is a task, it is
// independent of this request (T42).
func (q *request) callTool(ctx context.Context) (jsonrpc.Spliced, error) {
	q.hidden, q.msg.Params, q.name = q.h.HideTool(ctx, q.msg.Params, q.name)
	session := q.upstreamSession(ctx)
	if err := q.checkTool(ctx, session); err != nil {
		return nil, err
	}
	req, err := q.upstreamRequest(ctx, session)
	if err != nil {
		return nil, err
	}
	return q.converseOnCall(ctx, shim.Call{
		Request:  req,
		Handle:   q.tasks && q.isConvertible(), // T2, T3
		Partials: q.h.Convertible() && wantsPartials(q.capabilities),
		After:    q.h.HandleAfter(q.describeCaller()),
	})
}

// converseOnCall makes a call during which the client may be asked, or goes on with the call that
// the request returns to.
func (q *request) converseOnCall(ctx context.Context, c shim.Call) (jsonrpc.Spliced, error) {
	c.Upstream, c.Principal, c.Origin = q.h.Name, q.principal, dialect.OriginExt
	c.Asking, c.Stream = q.waysToAsk(), q.newSink()
	if c.Asking == shim.AskPark { // the call may return to another replica
		c.ProgressToken = q.token
	}
	call := q.h.Shim.Call
	if q.state != nil {
		call = q.comeBack
	}
	answered, err := call(ctx, c)
	switch {
	case err != nil:
		return nil, err
	case answered.Task != nil:
		q.op.Task(string(answered.Task.ID), answered.Task.Trace)
		if !q.tasks {
			return translate.ModernResult(q.msg.Method, mcp.Legacy, q.h.ToldOfTask(*answered.Task), q.h.Identity())
		}
		return q.h.withServerInfo(dialect.Ext.Created(*answered.Task)), nil
	case answered.Parked != nil:
		return q.askForInput(*answered.Parked), nil
	}
	return q.showReply(ctx, answered.Reply)
}

// describeCaller returns what decides how a slow call of the client is answered.
func (q *request) describeCaller() endpoint.Client {
	return endpoint.Client{Info: q.clientInfo, Tasks: q.tasks || q.principal.NoTasks}
}

// isConvertible reports whether any call of this caller could become a task.
func (q *request) isConvertible() bool { return q.h.Convertible() && !q.principal.NoTasks }

// waysToAsk says how the client can be asked. Until there is a task, the questions of a modern
// server are relayed. Those of a legacy server, and of a task of a modern one, need a state that
// can be sealed.
func (q *request) waysToAsk() shim.Asking {
	if !mcp.MayRequireInput(q.msg.Method) || !mcp.MayBeAsked(q.capabilities) {
		return shim.AskNever
	}
	served := q.msg.Method == mcp.MethodToolsCall && q.h.TasksOf(q.server)
	if q.h.State != nil && (q.server.Era != mcp.Modern || served) || q.asksInTask() {
		return shim.AskPark
	}
	return shim.AskNever
}

// asksInTask reports whether every question of the call is asked in a task, apart from those of a
// modern server that are relayed before there is one. A client without tasks can be asked in one
// while it waits in the gateway's tool (design.md 0.10).
func (q *request) asksInTask() bool {
	if q.msg.Method != mcp.MethodToolsCall || !q.isConvertible() {
		return false
	}
	tool := q.h.Config.Tool(q.name)
	if !q.tasks {
		return q.h.HandleAfter(q.describeCaller()) > 0 && q.h.State != nil && q.server.Era == mcp.Modern && tool.Tasks != config.TasksNever
	}
	relayed := q.server.Era == mcp.Modern && !q.h.TasksOf(q.server)
	return tool.Tasks != config.TasksNever && (relayed || tool.EarlyInput != config.EarlyMRTR)
}

// checkTool checks the call against its tool, including the arguments against the headers that
// mirror them. Only modern upstreams have such tools (H12).
func (q *request) checkTool(ctx context.Context, session shim.Session) error {
	first := q.h.TaskFirst(q.name, q.tasks, q.describeCaller())
	return q.hidden.Reveal(q.h.CheckTool(ctx, session, q.server, q.name, first, func(tool upstream.Tool) error {
		return checkParamHeaders(q.header, q.arguments, tool.Params)
	}))
}

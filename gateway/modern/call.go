package modern

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"

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
	q.says = q.h.SaysOf(ctx, session, q.name)
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
		Repeat:   q.repeatOf(session),
	})
}

// converseOnCall makes a call during which the client may be asked, or goes on with the call that
// the request returns to.
func (q *request) converseOnCall(ctx context.Context, c shim.Call) (jsonrpc.Spliced, error) {
	c.Upstream, c.Principal, c.Origin = q.h.Name, q.principal, dialect.OriginExt
	c.Asking, c.Stream = q.waysToAsk(), q.newSink()
	if c.Asking == shim.AskPark || c.Repeat.IsPossible() { // the call may return to another replica
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
	return q.showReply(ctx, endpoint.WithPickedUp(answered))
}

// repeatOf says how the call is known as the same one as an earlier call of the client. Without sign-in all clients on a
// machine with the same clientInfo count as one, if nobody else can reach the gateway.
func (q *request) repeatOf(s shim.Session) shim.Repeat {
	if q.clientInfo == nil || q.principal.NoTasks || q.principal.Owner() == "" && !q.isAlone() {
		return shim.Repeat{}
	}
	r := endpoint.Repeater{Owner: q.principal.Owner(), Info: q.clientInfo, Capabilities: q.capabilities}
	return q.h.RepeatOf(r, q.name, q.policy(), func() json.RawMessage { return q.arguments }, s, q.begun, q.x.Silence)
}

// forwarding are the headers by which proxies say for whom they ask.
var forwarding = []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"}

// isAlone reports whether the gateway has the users of one machine only: over stdio, or by a name of loopback, without a
// proxy in between, and without a name under which others reach it.
func (q *request) isAlone() bool {
	if q.header == nil {
		return true
	}
	named := q.h.Global.PublicURL != "" || len(q.h.Global.AllowedHosts) > 0
	proxied := slices.ContainsFunc(forwarding, func(name string) bool { return len(q.header[name]) > 0 })
	host, _, err := net.SplitHostPort(q.host)
	if err != nil {
		host = strings.Trim(q.host, "[]")
	}
	return !named && !proxied && config.IsLoopback(host)
}

// policy is that of the tool that is called.
func (q *request) policy() config.Tool { return q.h.Config.Tool(q.name, q.says) }

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
	tool := q.policy()
	if !q.tasks {
		return q.h.HandleAfter(q.describeCaller()) > 0 && q.h.State != nil && q.server.Era == mcp.Modern && tool.Tasks != config.TasksNever
	}
	relayed := q.server.Era == mcp.Modern && !q.h.TasksOf(q.server)
	return tool.Tasks != config.TasksNever && (relayed || tool.EarlyInput != config.EarlyMRTR)
}

// checkTool checks the call against its tool, including the arguments against the headers that
// mirror them. Only modern upstreams have such tools (H12).
func (q *request) checkTool(ctx context.Context, session shim.Session) error {
	first := q.h.TaskFirst(q.policy(), q.tasks, q.describeCaller())
	return q.hidden.Reveal(q.h.CheckTool(ctx, session, q.server, q.name, first, func(tool upstream.Tool) error {
		return checkParamHeaders(q.header, q.arguments, tool.Params)
	}))
}

package legacy

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// errAsks says that a server asks for input that this client cannot give.
var errAsks = &shim.UpstreamError{Kind: shim.KindProtocol, Message: "the server asks for input that this client cannot give"}

// callTool runs a tools/call. It becomes a task if the client says so. Otherwise it blocks, under
// any policy of the tool, for as long as clients without tasks can wait (design.md 0.10). It goes
// on when the client's connection is lost, which is no cancellation (X3).
func (q *request) callTool(ctx context.Context) (json.RawMessage, error) {
	if q.name == "" {
		return nil, wire.InvalidParams("params.name must be a string")
	}
	task, ttl, err := q.taskWish()
	if err != nil {
		return nil, err
	}
	if q.h.ReadsTasks(q.msg.Method, q.name, q.describeCaller()) {
		if task {
			return nil, shim.ErrForbidsTask
		}
		return q.taskResult(ctx)
	}
	q.hidden, q.msg.Params, q.name = q.h.HideTool(ctx, q.msg.Params, q.name)
	server, err := q.h.Upstream.Describe(ctx, q.s.upstreamSession(ctx))
	if err != nil {
		q.h.Telemetry.Unreached(ctx, q.h.Name, q.name, q.begun)
		return nil, err
	}
	q.says = q.h.SaysOf(ctx, q.s.upstreamSession(ctx), q.name)
	policy := q.policy()
	first := q.h.TaskFirst(policy, false, q.describeCaller()) || task && policy.Tasks != config.TasksNever
	err = q.h.CheckTool(ctx, q.s.upstreamSession(ctx), server, q.name, first, func(upstream.Tool) error { return nil })
	if err != nil {
		return nil, q.hidden.Reveal(err)
	}
	req := q.upstreamRequest(ctx, server.Era)
	a, err := q.makeCall(q.whenTaken(ctx), shim.Call{
		Request: req, Demand: task, After: q.h.HandleAfter(q.describeCaller()), TTL: ttl, ProgressToken: q.token,
		Partials: task && q.h.takesPartials(q.state), Repeat: q.repeatOf(req.Session),
	})
	switch {
	case err != nil:
		return nil, err
	case a.Task != nil && !task:
		q.h.Sessions.noteUse(ctx, q.s, a.Task.TTL)
		q.op.Task(string(a.Task.ID), a.Task.Trace)
		return q.h.ToldOfTask(*a.Task), nil
	case a.Task != nil:
		q.h.Sessions.noteUse(ctx, q.s, a.Task.TTL)
		return q.showCreated(*a.Task), nil
	}
	return q.showReply(ctx, server, endpoint.WithPickedUp(a))
}

// repeatOf says how the call is known as the same one as an earlier call in the session. Nobody comes back to a passing
// session. A connection that ends may be resumed, so it is no cancellation (X3), and the call may be picked up meanwhile.
func (q *request) repeatOf(s shim.Session) shim.Repeat {
	if q.s.passing || q.principal.NoTasks {
		return shim.Repeat{}
	}
	params := q.msg.Params
	arguments := func() json.RawMessage {
		value, _ := jsonrpc.Get(params, "arguments")
		return value
	}
	r := q.h.RepeatOf(repeaterOf(q.s, q.state, q.principal), q.name, q.policy(), arguments, s, q.begun, nil)
	r.Gone, r.Stream = q.gone, q.log.w.name
	return r
}

// repeaterOf names the session and the caller as a client that may pick up its calls.
func repeaterOf(s *session, st sessionState, p shim.Principal) endpoint.Repeater {
	return endpoint.Repeater{Owner: p.Owner(), Session: s.id, Info: st.ClientInfo, Capabilities: st.Capabilities}
}

// policy is that of the tool that is called.
func (q *request) policy() config.Tool { return q.h.Config.Tool(q.name, q.says) }

func (q *request) describeCaller() endpoint.Client { return clientOf(q.state, q.principal) }

// makeCall makes a call during which the client may be asked.
func (q *request) makeCall(ctx context.Context, c shim.Call) (shim.Answered, error) {
	c.Upstream, c.Principal, c.Origin = q.h.Name, q.principal, dialect.OriginLegacy
	c.Block, c.Stay = true, true
	c.Asking = q.waysToAsk(c.Demand || c.Handle)
	if c.Asking == shim.AskNever {
		c.Stream = q.newSink()
		return q.h.Shim.Call(ctx, c)
	}
	asks, stop := q.newAsker(ctx)
	defer stop()
	asker := callAsker{Sink: q.newSink(), asks: asks, q: q}
	defer context.AfterFunc(q.log.client, asker.refuseOpen)()
	c.Stream = asker
	return q.h.Shim.Call(ctx, c)
}

// relayRequest passes on any other request, known or unknown.
func (q *request) relayRequest(ctx context.Context) (json.RawMessage, error) {
	server, err := q.h.Upstream.Describe(ctx, q.s.upstreamSession(ctx))
	if err != nil {
		return nil, err
	}
	// A modern server may want to be called again, even if the client cannot be asked (protocol.md
	// 2.7).
	if q.waysToAsk(false) != shim.AskNever || server.Era == mcp.Modern && mcp.MayRequireInput(q.msg.Method) {
		a, err := q.makeCall(ctx, shim.Call{Request: q.upstreamRequest(ctx, server.Era)})
		if err != nil {
			return nil, err
		}
		return q.showReply(ctx, server, a.Reply)
	}
	reply, err := q.h.Upstream.Call(ctx, q.upstreamRequest(ctx, server.Era), q.newSink())
	if err != nil {
		return nil, err
	}
	return q.showReply(ctx, server, reply)
}

// showReply returns an upstream's reply as this client may see it.
func (q *request) showReply(ctx context.Context, server upstream.Description, reply shim.Reply) (json.RawMessage, error) {
	if reply.Error != nil && reply.Error.Code == mcp.CodeURLElicitation && q.state.Version < mcp.Version20251125 {
		reply = translate.URLRequired(q.msg.Method, reply.Error)
	}
	switch {
	case reply.Error != nil:
		return nil, reply.Error
	case reply.InputRequired: // the request excluded it (Request.Relay)
		return nil, errAsks
	case !jsonrpc.IsObject(reply.Result):
		return nil, translate.NotMCP(errors.New("the result of " + q.msg.Method + " is not an object"))
	case reply.IsError:
		q.op.ToolError()
	}
	tasks, _ := jsonrpc.Get(q.state.Capabilities, "tasks")
	view := translate.LegacyView{Modern: server.Era == mcp.Modern, Requires: jsonrpc.IsObject(tasks) || endpoint.RunsTasks(q.state.ClientInfo), Dropped: func(name string, reason error) { q.h.LogDropped(ctx, name, reason) }}
	view.Wrapped = view.Modern && q.msg.Method == mcp.MethodToolsCall && q.showsWrapped(ctx, q.name, reply.Result)
	if q.h.offersTasks(q.state) && !q.principal.NoTasks {
		view.Tasks = q.h.MayBeTask
		if q.msg.Method == mcp.MethodToolsList && q.h.takesPartials(q.state) {
			view.Partials = q.h.showsPartials
		}
	}
	if q.msg.Method == mcp.MethodToolsList {
		reply.Result = q.h.ShownTools(ctx, reply.Result)
	}
	var result json.RawMessage
	budget.From(ctx).InTurn(len(reply.Result), func() { result = translate.LegacyResult(q.msg.Method, reply.Result, view) })
	if q.msg.Method == mcp.MethodToolsList {
		return q.h.WithTaskResult(ctx, q.describeCaller(), q.msg.Params, result), nil
	}
	return result, nil
}

// showsWrapped reports whether the object that a tool of a modern server returned has to be
// wrapped, because legacy clients see the tool's output schema wrapped. If listing the tools fails,
// the object stays as it is: only a strict client refuses it. A tool without a listed schema stays
// unwrapped.
func (q *request) showsWrapped(ctx context.Context, name string, result []byte) bool {
	if _, ok := jsonrpc.Get(result, "structuredContent"); !ok {
		return false
	}
	tool, _, err := q.h.Upstream.Tool(ctx, q.s.upstreamSession(ctx), name)
	if err != nil || q.h.HidesOutput(q.h.Config.Tool(name, tool.Says), q.describeCaller()) {
		return false
	}
	return tool.OutputSchema != nil && translate.NeedsWrap(tool.OutputSchema)
}

func (q *request) upstreamRequest(ctx context.Context, era mcp.Era) shim.Request {
	level := anyLevel
	if era == mcp.Modern {
		level = q.state.LogLevel
	}
	var params json.RawMessage
	budget.From(ctx).InTurn(len(q.msg.Params), func() { params = translate.LegacyParams(q.msg.Method, era, q.msg.Params) })
	return shim.Request{
		Method:   q.msg.Method,
		Params:   params,
		Name:     q.name,
		Shown:    q.hidden.Tool,
		Says:     q.says,
		Session:  q.s.upstreamSession(ctx),
		Progress: q.token != nil,
		LogLevel: level,
	}
}

// anyLevel stands in for the log level towards a legacy upstream: every message passes, and the
// gateway sets no level. The client sets it at the server by its own logging/setLevel, which is
// passed on; until then the server decides what it sends (S25:server/utilities/logging).
const anyLevel = "any"

// newSink is where the upstream's messages of this request go. The call goes on if the client
// refuses them or has gone (X3).
func (q *request) newSink() *endpoint.Sink {
	return &endpoint.Sink{Notify: q.out.Notify, Corks: q.out.Cork, Token: q.token, Passes: func(level string) bool {
		return loudEnough(level, q.s.currentState().LogLevel)
	}}
}

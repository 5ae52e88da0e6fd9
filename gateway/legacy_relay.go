package gateway

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// errAsks: a server asks for input, and this client cannot be asked.
var errAsks = &shim.UpstreamError{Kind: "protocol", Message: "the server asks for input that this client cannot give"}

// callLegacyTool runs a tools/call. It becomes a task if the client says so, and
// blocks otherwise, whatever the tool's policy is, unless it outlasts what clients
// without tasks can wait for (design.md 0.10). It goes on when the client's
// connection is lost, which is no cancellation (X3).
func (e *endpoint) callLegacyTool(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	if q.name == "" {
		return nil, invalidParams("params.name must be a string")
	}
	task, ttl, err := e.taskWish(q)
	if err != nil {
		return nil, err
	}
	if e.readsTasks(q.msg.Method, q.name) {
		if task {
			return nil, shim.ErrForbidsTask
		}
		return e.legacyTaskResult(ctx, q)
	}
	var mode responseMode
	if task {
		if mode, err = e.responseMode(q); err != nil {
			return nil, err
		}
	}
	if mode.immediate && !e.mayBeTask(q.name) { // or it would only block
		return nil, shim.ErrForbidsTask
	}
	server, err := e.leg.Describe(ctx, q.s.upstream())
	if err != nil {
		return nil, err
	}
	a, err := e.callLegacy(ctx, q, e.modeCall(q, mode, shim.Call{
		Request: q.request(server.Era), Demand: task, After: e.handleAfter(), TTL: ttl, ProgressToken: q.token,
	}))
	switch {
	case err != nil:
		return nil, err
	case a.Task != nil && !task:
		q.op.task(string(a.Task.ID), nil)
		return e.toldOfTask(*a.Task), nil
	case a.Task != nil && mode.streaming:
		return e.streamCall(ctx, q, *a.Task)
	case a.Task != nil && mode.unlisted:
		return fellBack(e.legacyCreated(q, *a.Task)), nil
	case a.Task != nil:
		return e.legacyCreated(q, *a.Task), nil
	}
	return e.legacyReply(ctx, q, server, a.Reply)
}

// callLegacy makes a call during which the client may be asked.
func (e *endpoint) callLegacy(ctx context.Context, q *legacyRequest, c shim.Call) (shim.Answered, error) {
	c.Upstream, c.Principal, c.Origin = e.name, q.principal, dialect.OriginLegacy
	c.Block, c.Stay = true, true
	c.Asking = q.asking(c.Demand || c.Handle)
	if c.Asking == shim.AskNever {
		c.Stream = legacySink{q}
		return e.shim.Call(ctx, c)
	}
	asker := newLegacyAsker(e, q)
	defer asker.end()
	c.Stream = asker
	return e.shim.Call(ctx, c)
}

// relayLegacy passes on any other request, known or not.
func (e *endpoint) relayLegacy(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	server, err := e.leg.Describe(ctx, q.s.upstream())
	if err != nil {
		return nil, err
	}
	if q.asking(false) != shim.AskNever {
		a, err := e.callLegacy(ctx, q, shim.Call{Request: q.request(server.Era)})
		if err != nil {
			return nil, err
		}
		return e.legacyReply(ctx, q, server, a.Reply)
	}
	reply, err := e.leg.Call(ctx, q.request(server.Era), legacySink{q})
	if err != nil {
		return nil, err
	}
	return e.legacyReply(ctx, q, server, reply)
}

// legacyReply is an upstream's reply as this client may see it.
func (e *endpoint) legacyReply(ctx context.Context, q *legacyRequest, server Server, reply shim.Reply) (json.RawMessage, error) {
	if reply.Error != nil && reply.Error.Code == mcp.CodeURLElicitation && q.state.Version < mcp.Version20251125 {
		reply = urlRequired(q.msg.Method, reply.Error)
	}
	switch {
	case reply.Error != nil:
		return nil, reply.Error
	case reply.InputRequired: // was not asked for (Request.Relay)
		return nil, errAsks
	case !jsonrpc.IsObject(reply.Result):
		return nil, notMCP(errors.New("the result of " + q.msg.Method + " is not an object"))
	case reply.IsError:
		q.op.toolError()
	}
	view := legacyView{modern: server.Era == mcp.Modern}
	view.wrapped = view.modern && q.msg.Method == mcp.MethodToolsCall && e.showsWrapped(ctx, q, q.name, reply.Result)
	if e.offersTasks(q.state.Version) {
		view.tasks = e.mayBeTask
		if q.msg.Method == mcp.MethodToolsList && e.drafts(q.state).partials {
			view.partials = e.showsPartials
		}
	}
	result := legacyResult(q.msg.Method, reply.Result, view)
	if q.msg.Method == mcp.MethodToolsList {
		return e.withTaskResult(ctx, q.msg.Params, result), nil
	}
	return result, nil
}

// showsWrapped reports whether an object that a tool of a modern server returned
// has to be wrapped because legacy clients see the tool's output schema wrapped.
// Where the tools cannot be listed just now it stays as it is: better a result
// that a strict client refuses than none. A schema that is not listed wraps nothing.
func (e *endpoint) showsWrapped(ctx context.Context, q *legacyRequest, name string, result []byte) bool {
	if _, ok := jsonrpc.Get(result, "structuredContent"); !ok || e.hidesOutput(name) {
		return false
	}
	tool, _, err := e.leg.Tool(ctx, q.s.upstream(), name)
	if err != nil {
		return false
	}
	schema, ok := jsonrpc.Get(tool.Raw, "outputSchema")
	return ok && needsWrap(schema)
}

// request is the request for the upstream, free of what only means something
// between this client and the gateway (protocol.md 7.2): a task, too, is made here
// and not there.
func (q *legacyRequest) request(upstream mcp.Era) shim.Request {
	params := q.msg.Params
	if meta, ok := jsonrpc.Get(params, "_meta"); ok {
		if foreign := foreignMeta(meta); foreign != nil {
			params = with(params, foreign, "_meta")
		} else {
			params = without(params, "_meta")
		}
	}
	if q.msg.Method == mcp.MethodToolsCall {
		params = without(params, "task")
	}
	level := anyLevel
	if upstream == mcp.Modern {
		level = q.state.LogLevel
		if asks(q.msg.Method) { // this era has no retries: the server would take it for one
			params = withoutRetry(params)
		}
	}
	return shim.Request{
		Method:   q.msg.Method,
		Params:   params,
		Name:     q.name,
		Session:  q.s.upstream(),
		Progress: q.token != nil,
		LogLevel: level,
	}
}

// anyLevel stands in for the level towards a legacy upstream. It is none, so every
// message passes, and the leg asks the server for none: that is the client's own
// matter, whose logging/setLevel is passed on, and before that the server's, which
// may decide what it sends (S25:server/utilities/logging).
const anyLevel = "any"

// legacySink brings what an upstream says before it answers onto the stream of the
// request.
type legacySink struct{ q *legacyRequest }

var (
	_ shim.Sink   = legacySink{}
	_ shim.Stream = legacySink{}
)

// Progress relays progress under the client's own token. That the client does not
// take it, or has gone, is no reason to stop (X3).
func (s legacySink) Progress(p shim.Progress) {
	if s.q.token != nil {
		_ = s.q.out.Notify(mcp.NotifyProgress, unrelated(with(p.Raw, s.q.token, mcp.MetaProgressToken)))
	}
}

// Log relays a log message if the session's level lets it through.
func (s legacySink) Log(l shim.Log) {
	if loudEnough(l.Level, s.q.s.current().LogLevel) {
		_ = s.q.out.Notify(mcp.NotifyMessage, unrelated(l.Raw))
	}
}

// Ask refuses: where the client can be asked, the shim calls.
func (s legacySink) Ask(context.Context, ...shim.Question) ([]shim.Answer, error) {
	return nil, shim.ErrNoAsk
}

// Checkpoint keeps nothing: a call that is no task is not resumed.
func (s legacySink) Checkpoint(context.Context, json.RawMessage) error { return nil }

package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// describe asks the leg what its upstream is, and remembers the identity.
func (e *endpoint) describe(ctx context.Context, q *modernRequest) (Server, error) {
	s, err := e.leg.Describe(ctx, shim.Session{Key: q.principal.Subject, ClientInfo: q.clientInfo, Capabilities: e.declared(q)})
	if err == nil && jsonrpc.IsObject(s.Info) {
		e.identity.Store(&s.Info)
	}
	return s, err
}

// identified is a result of the gateway's own with the serverInfo that every
// modern result should carry (protocol.md 1.2, row 19). It has no _meta yet.
func (e *endpoint) identified(result json.RawMessage) json.RawMessage {
	return jsonrpc.Extend(result, []byte(`"_meta":{"`+mcp.MetaServerInfo+`":`+string(*e.identity.Load())+`}`))
}

// relay passes a request on that never becomes a task.
func (e *endpoint) relay(ctx context.Context, q *modernRequest, x *exchange) (json.RawMessage, error) {
	req, err := e.upstreamRequest(q)
	if err != nil {
		return nil, err
	}
	if _, ours := e.ourState(q); ours || e.asking(q) != shim.AskNever {
		return e.converse(ctx, q, x, shim.Call{Request: req})
	}
	reply, err := e.leg.Call(ctx, req, modernSink{x: x, q: q})
	if err != nil {
		return nil, err
	}
	return e.replied(ctx, q, reply)
}

// replied is an upstream's reply as a modern client may see it.
func (e *endpoint) replied(ctx context.Context, q *modernRequest, reply shim.Reply) (json.RawMessage, error) {
	if reply.Error != nil && reply.Error.Code == mcp.CodeURLElicitation && q.server.Era != mcp.Modern {
		reply = urlRequired(q.msg.Method, reply.Error)
	}
	switch {
	case reply.Error != nil:
		return nil, modernError(q, reply.Error)
	case reply.IsError:
		q.op.toolError()
	}
	if q.msg.Method == mcp.MethodToolsList {
		var dropped []droppedTool
		reply.Result, dropped = modernTools(reply.Result, q.server.Era)
		e.logDropped(ctx, dropped)
		reply.Result = e.withTaskResult(ctx, q.msg.Params, reply.Result)
	}
	return modernResult(q.msg.Method, q.server.Era, reply.Result, *e.identity.Load())
}

// modernError adds to an upstream's error what only the request can tell, before
// reply.go spells it (protocol.md 7.5).
func modernError(q *modernRequest, e *shim.RPCError) error {
	switch {
	case e.Code == mcp.CodeMissingCapability:
		// Servers of both eras at once (Go SDK 1.8.0) say so in a session as well. What
		// a legacy server may otherwise mean by the code names no capabilities.
		required, _ := jsonrpc.Get(e.Data, "requiredCapabilities")
		// Never declared upstream, so not the client's to mend.
		required = withoutEmpty(without(required, "extensions", mcp.ExtensionTasks), "extensions")
		if missing := missingCapabilities(required, q.capabilities); missing != nil {
			return &failure{Code: e.Code, Message: e.Message, Status: http.StatusBadRequest,
				Data: with(json.RawMessage(`{}`), missing, "requiredCapabilities")}
		}
	case e.Code == mcp.CodeResourceNotFound && e.Data == nil && q.msg.Method == mcp.MethodResourcesRead:
		found := *e
		found.Data = with(json.RawMessage(`{}`), jsonrpc.AppendString(nil, q.name), "uri")
		return &found
	}
	return e
}

// upstreamRequest frees a request of what only meant something between the client
// and the gateway.
func (e *endpoint) upstreamRequest(q *modernRequest) (shim.Request, error) {
	params, err := upstreamParams(q.msg.Method, q.server.Era, q.msg.Params)
	if err != nil {
		return shim.Request{}, err
	}
	return shim.Request{
		Method: q.msg.Method, Params: params, Name: q.name,
		Session:  e.upstreamSession(q),
		Progress: q.token != nil,
		LogLevel: q.logLevel,
		Relay:    q.server.Era == mcp.Modern && asks(q.msg.Method),
	}, nil
}

// upstreamSession says in whose name the upstream is called. Anonymous callers
// share nothing (design.md 0.16). A modern upstream is told all that this client can
// do, since its questions are relayed; a legacy one which questions it answers, as
// far as they can be brought to it. Nothing refers to the client's message, which may be
// large, and be outlived by the call.
func (e *endpoint) upstreamSession(q *modernRequest) shim.Session {
	s := shim.Session{Key: q.principal.Subject, ClientInfo: slices.Clone(q.clientInfo)}
	if q.server.Era == mcp.Modern {
		s.Capabilities = slices.Clone(upstreamCapabilities(q.capabilities))
	} else {
		s.Capabilities = e.declared(q)
	}
	return s
}

// asks reports the methods that may be answered by an InputRequiredResult
// (protocol.md 2.7).
func asks(method string) bool {
	switch method {
	case mcp.MethodToolsCall, mcp.MethodPromptsGet, mcp.MethodResourcesRead:
		return true
	}
	return false
}

// modernSink brings what an upstream says before it answers onto the response
// stream of the request, and nowhere else (protocol.md 2.6). A client that does
// not take it misses it; the request's context ends if it has gone.
type modernSink struct {
	x *exchange
	q *modernRequest
}

var (
	_ shim.Sink   = modernSink{}
	_ shim.Stream = modernSink{}
)

// Progress relays progress under the client's own token.
func (s modernSink) Progress(p shim.Progress) {
	if s.q.token == nil {
		return
	}
	params, err := jsonrpc.Set(p.Raw, s.q.token, mcp.MetaProgressToken)
	if err == nil {
		_ = s.x.Notify(mcp.NotifyProgress, unrelated(params))
	}
}

// Log relays a log message if this request asked for its level.
func (s modernSink) Log(l shim.Log) {
	if s.q.logLevel == "" || mcp.LogSeverity(l.Level) < mcp.LogSeverity(s.q.logLevel) {
		return
	}
	_ = s.x.Notify(mcp.NotifyMessage, unrelated(l.Raw))
}

// Ask refuses: whoever can be asked is called by the shim, and the questions of a
// modern server are relayed as results.
func (s modernSink) Ask(context.Context, ...shim.Question) ([]shim.Answer, error) {
	return nil, shim.ErrNoAsk
}

// Checkpoint keeps nothing: a request that is no task ends with its client.
func (s modernSink) Checkpoint(context.Context, json.RawMessage) error { return nil }

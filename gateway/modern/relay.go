package modern

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// describeUpstream asks what the upstream is, and remembers its identity.
func (q *request) describeUpstream(ctx context.Context) (upstream.Description, error) {
	s, err := q.h.Upstream.Describe(ctx, q.inName(ctx, shim.Session{ClientInfo: q.clientInfo, Capabilities: q.declaredCapabilities(mcp.Legacy)}))
	if err == nil && jsonrpc.IsObject(s.Info) {
		q.h.Identify(s.Info)
	}
	return s, err
}

// withServerInfo adds the serverInfo that every modern result should carry (protocol.md 1.2, row 19)
// to a result of the gateway's own, which has no _meta yet.
func (h *Handler) withServerInfo(result json.RawMessage) jsonrpc.Spliced {
	return jsonrpc.Extended(result, []byte(`"_meta":{"`+mcp.MetaServerInfo+`":`+string(h.Identity())+`}`))
}

// relayForeign passes on a request that is unknown to the gateway. If it is unknown to the server
// too, the answer has the status for that (protocol.md 2.5).
func (q *request) relayForeign(ctx context.Context) (_ jsonrpc.Spliced, err error) {
	if q.server, err = q.describeUpstream(ctx); err != nil {
		return nil, err
	}
	result, err := q.relayRequest(ctx)
	if e, ok := errors.AsType[*shim.RPCError](err); ok && e.Code == mcp.CodeMethodNotFound {
		err = &wire.Failure{Code: e.Code, Message: e.Message, Data: e.Data, Status: http.StatusNotFound}
	}
	return result, err
}

// relayRequest passes on a request that never becomes a task.
func (q *request) relayRequest(ctx context.Context) (jsonrpc.Spliced, error) {
	req, err := q.upstreamRequest(ctx, q.upstreamSession(ctx))
	if err != nil {
		return nil, err
	}
	if q.isReturning() || q.waysToAsk() != shim.AskNever {
		return q.converseOnCall(ctx, shim.Call{Request: req})
	}
	reply, err := q.h.Upstream.Call(ctx, req, q.newSink())
	if err != nil {
		return nil, err
	}
	return q.showReply(ctx, reply)
}

// showReply is an upstream's reply as a modern client may see it.
func (q *request) showReply(ctx context.Context, reply shim.Reply) (result jsonrpc.Spliced, err error) {
	if reply.Error != nil && reply.Error.Code == mcp.CodeURLElicitation && q.server.Era != mcp.Modern {
		reply = translate.URLRequired(q.msg.Method, reply.Error)
	}
	switch {
	case reply.Error != nil:
		return nil, refusalOf(q, reply.Error)
	case reply.IsError:
		q.op.ToolError()
	}
	if q.msg.Method == mcp.MethodToolsList {
		reply.Result = q.h.ShownTools(ctx, reply.Result)
		dropped := func(name string, reason error) { q.h.LogDropped(ctx, name, reason) }
		reply.Result = translate.ModernTools(reply.Result, q.server.Era, dropped)
		reply.Result = q.h.WithTaskResult(ctx, q.describeCaller(), q.msg.Params, reply.Result)
	}
	budget.From(ctx).InTurn(len(reply.Result), func() {
		result, err = translate.ModernReply(q.msg.Method, q.server.Era, reply, q.h.Identity())
	})
	return result, err
}

// refusalOf adds to an upstream's error what only the request can tell, before wire.FailureOf spells
// it (protocol.md 7.5).
func refusalOf(q *request, e *shim.RPCError) error {
	switch {
	case e.Code == mcp.CodeMissingCapability:
		// Servers of both eras at once (Go SDK 1.8.0) send it in a session as well. Other uses of
		// the code by legacy servers name no capabilities.
		required, _ := jsonrpc.Get(e.Data, "requiredCapabilities")
		// A client can add only what the gateway declares of it.
		required = translate.ClientCapabilities(required, translate.ClientView{Asked: true, RootsChange: true})
		if missing := missingCapabilities(required, q.capabilities); missing != nil {
			return &wire.Failure{Code: e.Code, Message: e.Message, Status: http.StatusBadRequest,
				Data: jsonrpc.With(json.RawMessage(`{}`), missing, "requiredCapabilities")}
		}
	case e.Code == mcp.CodeResourceNotFound && q.msg.Method == mcp.MethodResourcesRead:
		found := *e
		if found.Data == nil || string(found.Data) == "null" {
			found.Data = json.RawMessage(`{}`)
		}
		found.Data = jsonrpc.WithDefault(found.Data, jsonrpc.AppendString(nil, q.name), "uri")
		return &found
	}
	return e
}

// upstreamRequest is the request for the upstream; params that only concern the client and the
// gateway are removed.
func (q *request) upstreamRequest(ctx context.Context, s shim.Session) (shim.Request, error) {
	if mcp.MayRequireInput(q.msg.Method) {
		if err := q.checkRetry(); err != nil {
			return shim.Request{}, err
		}
	}
	var params json.RawMessage
	budget.From(ctx).InTurn(len(q.msg.Params), func() { params = translate.ModernParams(q.msg.Method, q.server.Era, q.msg.Params) })
	return shim.Request{
		Method: q.msg.Method, Params: params, Name: q.name, Shown: q.hidden.Tool, Says: q.says,
		Session:  s,
		Progress: q.token != nil,
		LogLevel: q.logLevel,
		Relay:    q.server.Era == mcp.Modern && mcp.MayRequireInput(q.msg.Method),
	}, nil
}

// upstreamSession says in whose name the upstream is called. Anonymous callers share nothing
// (design.md 0.16). It is a copy, since the client's message may be large, and the call may outlive
// it.
func (q *request) upstreamSession(ctx context.Context) shim.Session {
	return q.inName(ctx, shim.Session{ClientInfo: slices.Clone(q.clientInfo), Capabilities: slices.Clone(q.declaredCapabilities(q.server.Era))})
}

// inName makes a session that of the caller.
func (q *request) inName(ctx context.Context, s shim.Session) shim.Session {
	s.Key, s.Principal, s.Mark, s.Token = q.principal.Subject, q.principal.Subject, forward.Mark(ctx), forward.Of(ctx).Token
	return s
}

// declaredCapabilities are the capabilities that a server of this era is told of. The questions of a
// modern server are relayed; those of a legacy server have to be brought to the client. The
// capabilities hold for the upstream session, and so are the same for all tools: a server may list
// its tools by them, and must then do what it lists (H5).
func (q *request) declaredCapabilities(era mcp.Era) json.RawMessage {
	modern := era == mcp.Modern
	brought := q.h.State != nil || q.tasks && q.isConvertible()
	return translate.ClientCapabilities(q.capabilities, translate.ClientView{Asked: modern || brought, RootsChange: modern})
}

// newSink is where the upstream's messages of this request go.
func (q *request) newSink() *endpoint.Sink {
	return &endpoint.Sink{Notify: q.x.Notify, Corks: q.x.Cork, Token: q.token, Passes: func(level string) bool {
		return q.logLevel != "" && mcp.LogSeverity(level) >= mcp.LogSeverity(q.logLevel)
	}}
}

// missingCapabilities is what a server requires beyond the client's capabilities; nil for nothing.
func missingCapabilities(required, declared json.RawMessage) json.RawMessage {
	var missing json.RawMessage
	for name, want := range jsonrpc.Members(required) {
		if has, ok := jsonrpc.Get(declared, name); ok {
			if want = missingCapabilities(want, has); want == nil {
				continue
			}
		}
		if missing == nil {
			missing = json.RawMessage(`{}`)
		}
		missing = jsonrpc.With(missing, want, name)
	}
	return missing
}

// checkRetry checks what a client sends along when it tries again with answers (2.7).
func (q *request) checkRetry() error {
	switch {
	case q.arguments != nil && !jsonrpc.IsObject(q.arguments):
		return wire.InvalidParams("params.arguments must be an object")
	case q.responses != nil && !isResponses(q.responses):
		return wire.InvalidParams("params.inputResponses must be an object of objects")
	case q.state != nil && !isString(q.state):
		return wire.InvalidParams("params.requestState must be a string")
	}
	return nil
}

// isResponses reports whether v is a map of results (2.7, T34).
func isResponses(v json.RawMessage) bool {
	if !jsonrpc.IsObject(v) {
		return false
	}
	for _, r := range jsonrpc.Members(v) {
		if !jsonrpc.IsObject(r) {
			return false
		}
	}
	return true
}

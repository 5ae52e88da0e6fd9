package legacy

import (
	"context"
	"encoding/json"
	"slices"

	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// setLevel sets the level of log messages for the session. A legacy upstream is told; a modern one
// gets the level with each request (protocol.md 7.1).
func (q *request) setLevel(ctx context.Context) (json.RawMessage, error) {
	level, _ := jsonrpc.GetString(q.msg.Params, "level")
	if mcp.LogSeverity(level) < 0 {
		return nil, wire.InvalidParams("params.level must be one of the levels of RFC 5424")
	}
	_, result, err := q.askServer(ctx, "logging")
	if err != nil {
		return nil, err
	}
	return result, q.s.updateState(ctx, func(st sessionState) (sessionState, error) {
		st.LogLevel = level
		return st, nil
	})
}

// answerSubscribe asks for the updates of one resource. A legacy upstream is told. A modern one
// gets a new subscriptions/listen, and may refuse.
func (q *request) answerSubscribe(ctx context.Context) (json.RawMessage, error) {
	uri, ok := jsonrpc.GetString(q.msg.Params, "uri")
	if !ok {
		return nil, wire.InvalidParams("params.uri must be a string")
	}
	if _, err := q.state.addSubscription(uri); err != nil { // before the server is told
		return nil, err
	}
	server, result, err := q.askServer(ctx, "resources", "subscribe")
	if err != nil || q.s.passing {
		return result, err
	}
	if err := q.s.subscribeTo(ctx, uri); err != nil {
		return nil, err
	}
	agreed, here, failed := q.s.listenHere(ctx, q.h.Upstream)
	if !here || server.Era != mcp.Modern || slices.Contains(agreed.Resources, uri) {
		return result, nil
	}
	if err := q.s.unsubscribeFrom(ctx, uri); err != nil {
		return nil, err
	}
	_, _ = q.s.listen.startListening(ctx, q.h.Upstream) // it is tried again
	if failed != nil {
		return nil, failed
	}
	return nil, wire.InvalidParams("the server does not report updates of this resource")
}

// answerUnsubscribe ends the updates of one resource.
func (q *request) answerUnsubscribe(ctx context.Context) (json.RawMessage, error) {
	uri, ok := jsonrpc.GetString(q.msg.Params, "uri")
	if !ok {
		return nil, wire.InvalidParams("params.uri must be a string")
	}
	_, result, err := q.askServer(ctx, "resources", "subscribe")
	if err != nil || q.s.passing {
		return result, err
	}
	if err := q.s.unsubscribeFrom(ctx, uri); err != nil {
		return nil, err
	}
	if q.s.listen.isActive() || q.s.isElsewhere(ctx) {
		_, _, _ = q.s.listenHere(ctx, q.h.Upstream) // it is tried again
	}
	return result, nil
}

// askServer is the upstream's part of a request that changes the session: a legacy server is asked.
// A modern server only needs the capability: its era lacks the method. So does a legacy server in a passing
// session, since other callers may share its session.
func (q *request) askServer(ctx context.Context, capability ...string) (upstream.Description, json.RawMessage, error) {
	server, err := q.h.Upstream.Describe(ctx, q.s.upstreamSession(ctx))
	if err != nil {
		return server, nil, err
	}
	if server.Era != mcp.Modern && !q.s.passing {
		result, err := q.relayRequest(ctx)
		return server, result, err
	}
	if v, ok := jsonrpc.Get(server.Capabilities, capability...); !ok || string(v) == "false" {
		return server, nil, wire.MethodNotFound(q.msg.Method)
	}
	return server, json.RawMessage(`{}`), nil
}

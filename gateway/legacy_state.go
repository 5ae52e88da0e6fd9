package gateway

import (
	"context"
	"encoding/json"
	"slices"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// setLevel sets the level of log messages for the session. A legacy upstream is
// told; a modern one hears of the level with each request (protocol.md 7.1).
func (e *endpoint) setLevel(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	level, _ := jsonrpc.GetString(q.msg.Params, "level")
	if mcp.LogSeverity(level) < 0 {
		return nil, invalidParams("params.level must be one of the levels of RFC 5424")
	}
	_, result, err := e.settle(ctx, q, "logging")
	if err != nil {
		return nil, err
	}
	return result, q.s.update(ctx, func(st sessionState) sessionState {
		st.LogLevel = level
		return st
	})
}

// subscribe asks for the updates of one resource. A legacy upstream is told. A
// modern one is listened to, and may not agree.
func (e *endpoint) subscribe(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	uri, ok := jsonrpc.GetString(q.msg.Params, "uri")
	if !ok {
		return nil, invalidParams("params.uri must be a string")
	}
	server, result, err := e.settle(ctx, q, "resources", "subscribe")
	if err != nil {
		return nil, err
	}
	if err := q.s.subscribe(ctx, uri, true); err != nil {
		return nil, err
	}
	agreed, here := q.s.hear(ctx, e.leg)
	if !here || server.Era != mcp.Modern || slices.Contains(agreed.Resources, uri) {
		return result, nil
	}
	if err := q.s.subscribe(ctx, uri, false); err != nil {
		return nil, err
	}
	q.s.follow(ctx, e.leg)
	return nil, invalidParams("the server does not report updates of this resource")
}

// unsubscribe ends the updates of one resource.
func (e *endpoint) unsubscribe(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	uri, ok := jsonrpc.GetString(q.msg.Params, "uri")
	if !ok {
		return nil, invalidParams("params.uri must be a string")
	}
	_, result, err := e.settle(ctx, q, "resources", "subscribe")
	if err != nil {
		return nil, err
	}
	if err := q.s.subscribe(ctx, uri, false); err != nil {
		return nil, err
	}
	if q.s.listen.active() || q.s.elsewhere(ctx) {
		q.s.hear(ctx, e.leg)
	}
	return result, nil
}

// settle is the upstream's part of a request that changes the session: a legacy
// server is asked. A modern one has no such method; it only has to have the
// capability.
func (e *endpoint) settle(ctx context.Context, q *legacyRequest, capability ...string) (Server, json.RawMessage, error) {
	server, err := e.leg.Describe(ctx, q.s.upstream())
	if err != nil {
		return server, nil, err
	}
	if server.Era != mcp.Modern {
		result, err := e.relayLegacy(ctx, q)
		return server, result, err
	}
	if v, ok := jsonrpc.Get(server.Capabilities, capability...); !ok || string(v) == "false" {
		return server, nil, methodNotFound(q.msg.Method)
	}
	return server, json.RawMessage(`{}`), nil
}

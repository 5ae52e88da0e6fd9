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

// callTool answers tools/call: with the upstream's result, or with a task if the
// shim made one (T4). When the client goes away before that, its context ends and
// with it the upstream call; once there is a task, nothing that happens to this
// request touches it (T42).
func (e *endpoint) callTool(ctx context.Context, q *modernRequest, x *exchange) (json.RawMessage, error) {
	if err := e.checkArguments(ctx, q); err != nil {
		return nil, err
	}
	req, err := e.upstreamRequest(q)
	if err != nil {
		return nil, err
	}
	answered, err := e.shim.Call(ctx, shim.Call{
		Upstream:  e.name,
		Principal: q.principal,
		Request:   req,
		Origin:    dialect.OriginExt,
		Handle:    q.tasks && e.convertible(), // T2, T3
		Stream:    modernSink{x: x, q: q},
	})
	switch {
	case err != nil:
		return nil, err
	case answered.Task != nil:
		q.op.task(string(answered.Task.ID), nil)
		return dialect.Ext.Created(*answered.Task), nil
	}
	return e.replied(ctx, q, answered.Reply)
}

// checkArguments compares the arguments with the headers that mirror them. Only
// modern upstreams have such tools (H12). The schema may have changed since it
// was read, and the client may know the newer one: before a request is refused,
// the tools are listed again.
func (e *endpoint) checkArguments(ctx context.Context, q *modernRequest) error {
	if q.server.Era != mcp.Modern {
		return nil
	}
	err := e.checkTool(ctx, q, false)
	if f := (*failure)(nil); errors.As(err, &f) {
		err = e.checkTool(ctx, q, true)
	}
	return err
}

func (e *endpoint) checkTool(ctx context.Context, q *modernRequest, fresh bool) error {
	tool, err := e.leg.Tool(ctx, e.upstreamSession(q), q.name, fresh)
	switch {
	case err != nil:
		return err
	case tool.Raw == nil: // not in the list; the upstream knows best what that means
		return nil
	case tool.Invalid != nil: // not offered, so not there (2.4)
		return invalidParams("unknown tool: %s", q.name)
	}
	args, _ := jsonrpc.Get(q.msg.Params, "arguments")
	return checkParamHeaders(q.header, args, tool.Params)
}

package legacy

import (
	"context"
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Modes answers calls of tasks in ways beyond 2025-11-25, to clients that agree to them at
// initialize. gateway/modes has those of SEP-1905.
type Modes interface {
	// Declare returns the capability of tasks that a session is offered, with the modes added.
	Declare(tasks json.RawMessage) json.RawMessage
	// Answer answers a tools/call or a tasks/result of a session that can make tasks.
	Answer(ctx context.Context, r ModesRequest) (json.RawMessage, error)
}

// ModesRequest is a request that Modes answers.
type ModesRequest struct {
	Method       string
	Params       json.RawMessage
	Principal    shim.Principal
	Capabilities json.RawMessage // of the client
	Client       context.Context // ends when the client's connection does
	// Serve answers a tools/call or a tasks/result in the plain way.
	Serve func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// Send sends a response ahead of the last one; nil if the client takes one answer only.
	Send func(result json.RawMessage) error
}

// inMode has Modes answer a request, if the handler has them.
func inMode(serve serve) serve {
	return func(q *request, ctx context.Context) (json.RawMessage, error) {
		if q.h.Modes == nil || !q.h.offersTasks(q.state) {
			return serve(q, ctx)
		}
		r := ModesRequest{
			Method: q.msg.Method, Params: q.msg.Params, Principal: q.principal,
			Capabilities: q.state.Capabilities, Client: q.log.client, Serve: q.serveAs,
		}
		if q.out.Streams() {
			r.Send = func(result json.RawMessage) error { return q.out.Send(jsonrpc.AppendResult(nil, q.msg.ID, result)) }
		}
		return q.h.Modes.Answer(ctx, r)
	}
}

// serveAs answers the request with another method and other params.
func (q *request) serveAs(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	as := *q
	as.msg.Method, as.msg.Params = method, params
	as.task, _ = jsonrpc.Get(params, "task")
	if method == mcp.MethodTasksResult {
		return as.awaitTask(ctx)
	}
	return as.callTool(ctx)
}

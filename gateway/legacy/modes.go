package legacy

import (
	"context"
	"encoding/json"

	"taskgate/gateway/config"
	"taskgate/gateway/modes"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// inMode has package modes answer a request, if the upstream has response modes and the session can
// make tasks.
func inMode(serve serve) serve {
	return func(q *request, ctx context.Context) (json.RawMessage, error) {
		if !q.h.hasModes() || !q.h.offersTasks(q.state) {
			return serve(q, ctx)
		}
		r := modes.Request{
			Endpoint: q.h.Endpoint, Method: q.msg.Method, Params: q.msg.Params, Principal: q.principal,
			Capabilities: q.state.Capabilities, Client: q.log.client, Serve: q.serveAs,
			Session: q.s.upstreamSession(ctx),
		}
		if q.out.Streams() {
			r.Send = func(result json.RawMessage) error { return q.out.Send(jsonrpc.AppendResult(nil, q.msg.ID, result)) }
		}
		return r.Answer(ctx)
	}
}

// hasModes reports whether the upstream has response modes.
func (h *Handler) hasModes() bool { return h.Config.ResponseModes == config.On }

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

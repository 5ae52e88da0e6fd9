package legacy

import (
	"context"
	"encoding/json"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// taskResult answers a call of the gateway's own tool (design.md 0.10), in a session of any
// version. For versions before 2025-11-25 wrong arguments of a tool are an error of the protocol
// (protocol.md 7.5).
func (q *request) taskResult(ctx context.Context) (json.RawMessage, error) {
	c, wrong, err := q.h.ReadTaskResultCall(q.describeCaller(), q.msg.Params)
	if err != nil {
		return nil, err
	}
	if wrong != "" && q.state.Version < mcp.Version20251125 {
		return nil, wire.InvalidParams("%s", wrong)
	}
	answer := endpoint.InWords(true, "%s", wrong)
	if wrong == "" {
		ctx, done := whileAwaited(ctx, q, askNote{Task: shim.ID(c.ID), First: true})
		defer done()
		look, stop := q.askOnResult(ctx, false)
		answer, err = q.h.TaskResult(ctx, q.principal, c, q.op, endpoint.ResultWaiter{Say: endpoint.ProgressTo(q.token, q.out.Notify), Seen: look})
		stop()
	}
	if err != nil {
		return nil, err
	}
	if answer.IsError {
		q.op.ToolError()
	}
	return q.toolResult(ctx, answer.Tool, answer.Result)
}

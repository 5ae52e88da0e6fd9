package modern

import (
	"context"
	"errors"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// taskResult answers a call of the gateway's own tool (design.md 0.10). Like
// the task methods it needs no upstream. Wrong arguments are an error of the tool,
// which a model gets to see, and not of the protocol.
func (q *request) taskResult(ctx context.Context) (jsonrpc.Spliced, error) {
	c, wrong, err := q.h.ReadTaskResultCall(q.describeCaller(), q.msg.Params)
	if err != nil {
		return nil, err
	}
	if err := q.answerTask(ctx); err != nil {
		return nil, err
	}
	answer := endpoint.InWords(true, "%s", wrong)
	if wrong == "" {
		w := endpoint.Waiter{Say: endpoint.ProgressTo(q.token, q.x.Notify)}
		if q.h.State != nil {
			w.Able = translate.Answerable(q.capabilities)
		}
		answer, err = q.h.TaskResult(ctx, q.principal, c, q.op, w)
	}
	switch {
	case err != nil:
		return nil, err
	case answer.Asks != nil:
		return q.askForInput(*answer.Asks)
	case answer.IsError:
		q.op.ToolError()
	}
	// A stored result is complete, whatever a legacy server meant by that word.
	return translate.ModernResult(mcp.MethodToolsCall, mcp.Legacy, answer.Result, q.h.Identity())
}

// answerTask hands in the answers with which the tool is called again after it has asked
// what the task asks (protocol.md 2.7). The state says which task that is, and nothing
// else is done with it: as with tasks/update, what nobody waits for is ignored (T36), and
// what is still open is asked again.
func (q *request) answerTask(ctx context.Context) error {
	state, ours, err := q.openState()
	if err != nil || !ours {
		return err
	}
	id, err := shim.ParseID(state.Call)
	if err != nil {
		return errCallOver
	}
	err = q.h.Shim.Update(ctx, q.principal, q.h.Name, id, q.readAnswers())
	if errors.Is(err, shim.ErrNotFound) {
		return nil // the tool says so
	}
	return err
}

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

// taskResult answers a call of the gateway's own tool (design.md 0.10). Like the task methods it
// works without the upstream. Wrong arguments are an error of the tool, so that a model sees it.
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
		w := endpoint.ResultWaiter{Say: endpoint.ProgressTo(q.token, q.x.Notify)}
		if q.h.State != nil {
			w.Able = translate.Answerable(q.capabilities)
		}
		answer, err = q.h.TaskResult(ctx, q.principal, c, q.op, w)
	}
	switch {
	case err != nil:
		return nil, err
	case answer.Asks != nil:
		return q.askForInput(*answer.Asks), nil
	case answer.IsError:
		q.op.ToolError()
	}
	// A stored result counts as complete, whatever a legacy server wrote into resultType.
	return translate.ModernResult(mcp.MethodToolsCall, mcp.Legacy, answer.Result, q.h.Identity())
}

// answerTask hands in the answers with which the tool is called again after it has asked a task's
// questions (protocol.md 2.7). The state only names the task. As with tasks/update, superfluous
// answers are ignored (T36), and open questions are asked again.
func (q *request) answerTask(ctx context.Context) error {
	id, ours, err := q.openState(ctx)
	if err != nil || !ours {
		return err
	}
	answers, err := q.readAnswers()
	if err != nil {
		return err
	}
	err = q.h.Shim.Update(ctx, q.principal, q.h.Name, id, answers)
	if errors.Is(err, shim.ErrNotFound) {
		return nil // the tool says so
	}
	return err
}

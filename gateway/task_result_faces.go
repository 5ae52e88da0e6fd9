package gateway

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// modernTaskResult answers a call of the gateway's own tool (design.md 0.10). Like
// the task methods it needs no upstream. Wrong arguments are an error of the tool,
// which a model gets to see, and not of the protocol.
func (e *endpoint) modernTaskResult(ctx context.Context, q *modernRequest, x *exchange) (json.RawMessage, error) {
	c, wrong, err := e.readTaskResultCall(q.msg.Params)
	if err != nil {
		return nil, err
	}
	if err := e.answerTask(ctx, q); err != nil {
		return nil, err
	}
	answer := inWords(true, "%s", wrong)
	if wrong == "" {
		w := waiter{say: progressTo(q.token, x.Notify)}
		if e.gateway.state != nil {
			w.able = answerable(q.capabilities)
		}
		answer, err = e.taskResult(ctx, q.principal, c, q.op, w)
	}
	switch {
	case err != nil:
		return nil, err
	case answer.asks != nil:
		return e.park(q, *answer.asks)
	case answer.isError:
		q.op.toolError()
	}
	// A stored result is complete, whatever a legacy server meant by that word.
	return modernResult(mcp.MethodToolsCall, mcp.Legacy, answer.result, *e.identity.Load())
}

// answerTask hands in the answers with which the tool is called again after it has asked
// what the task asks (protocol.md 2.7). The state says which task that is, and nothing
// else is done with it: as with tasks/update, what nobody waits for is ignored (T36), and
// what is still open is asked again.
func (e *endpoint) answerTask(ctx context.Context, q *modernRequest) error {
	state, ours, err := e.openState(q)
	if err != nil || !ours {
		return err
	}
	id, err := shim.ParseID(state.Call)
	if err != nil {
		return errCallOver
	}
	err = e.shim.Update(ctx, q.principal, e.name, id, answersOf(q))
	if errors.Is(err, shim.ErrNotFound) {
		return nil // the tool says so
	}
	return err
}

// legacyTaskResult is modernTaskResult for a client with a session, of a version with
// tasks or without. To versions before 2025-11-25 wrong arguments of a tool are an
// error of the protocol (protocol.md 7.5).
func (e *endpoint) legacyTaskResult(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	c, wrong, err := e.readTaskResultCall(q.msg.Params)
	if err != nil {
		return nil, err
	}
	if wrong != "" && q.state.Version < mcp.Version20251125 {
		return nil, invalidParams("%s", wrong)
	}
	answer := inWords(true, "%s", wrong)
	if wrong == "" {
		ctx, done := awaiting(ctx, q)
		defer done()
		if id, err := shim.ParseID(c.id); err == nil {
			defer e.askOnResult(ctx, q, id, true)()
		}
		answer, err = e.taskResult(ctx, q.principal, c, q.op, waiter{say: progressTo(q.token, q.out.Notify)})
	}
	switch {
	case err != nil:
		return nil, err
	case !jsonrpc.IsObject(answer.result):
		return nil, notMCP(errors.New("the result of " + answer.tool + " is not an object"))
	case answer.isError:
		q.op.toolError()
	}
	return e.legacyToolResult(ctx, q, answer.tool, answer.result), nil
}

// progressTo sends each text that it is given as progress under the client's token;
// nowhere where there is none. A client that does not take it misses it.
func progressTo(token json.RawMessage, notify func(string, json.RawMessage) error) func(string) {
	n := 0
	return func(message string) {
		if token == nil {
			return
		}
		n++
		_ = notify(mcp.NotifyProgress, progressParams(token, n, message))
	}
}

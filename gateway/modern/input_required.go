package modern

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/gateway/sealed"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// A legacy server asks in the middle of a call, while a modern client is asked by a result
// (protocol.md 2.7, 7.4). So the call waits for input: it stays open upstream, and the client gets
// an InputRequiredResult. The client comes back with answers and with the requestState that leads
// to the call, on any replica (H2).

// comeBack goes on with the call that a retry leads to. A retry for a modern server is a call like
// any other.
func (q *request) comeBack(ctx context.Context, c shim.Call) (shim.Answered, error) {
	id, ours, err := q.openState(ctx)
	switch {
	case err != nil:
		return shim.Answered{}, err
	case !ours:
		return q.h.Shim.Call(ctx, c)
	}
	answers, err := q.readAnswers()
	if err != nil {
		return shim.Answered{}, err
	}
	answered, err := q.h.Shim.Reattach(ctx, c, id, answers)
	if errors.Is(err, shim.ErrNotFound) {
		err = errCallOver
	}
	return answered, err
}

// errCallOver answers a client that comes back too late: its call is unknown by then. The gateway
// never makes the call again (H2).
var errCallOver = wire.InvalidParams("the call that asked is over: the time to answer has passed, or it was cancelled")

// maxAnswers bounds the answers that come at once: a call has no more questions open (shim).
const maxAnswers = 64

// readAnswers are the answers of a retry (2.7). The shim knows which of them were asked for.
func (q *request) readAnswers() (map[string]json.RawMessage, error) {
	answers := make(map[string]json.RawMessage)
	for key, answer := range jsonrpc.Members(q.responses) {
		if len(answers) == maxAnswers {
			return nil, wire.InvalidParams("params.inputResponses has more than %d answers", maxAnswers)
		}
		answers[key] = answer
	}
	return answers, nil
}

// isReturning reports whether a request is a retry that only this gateway can have asked for: its
// state is the gateway's, or comes back to a legacy server, which gives no states. A state that
// cannot be opened is the client's mistake, and is kept from the server (H2).
func (q *request) isReturning() bool {
	text, given := jsonrpc.String(q.state)
	return given && mcp.MayRequireInput(q.msg.Method) && (sealed.Ours(text) || q.server.Era != mcp.Modern)
}

// openState returns the call that the state of a retry leads to, if it is the gateway's. Any other state
// is passed on to its server.
func (q *request) openState(ctx context.Context) (id shim.ID, ours bool, _ error) {
	if !q.isReturning() {
		return "", false, nil
	}
	text, _ := jsonrpc.String(q.state)
	if q.h.State == nil || !q.h.State.MayOpen(text) {
		return "", true, sealed.ErrSealed
	}
	var binding sealed.Binding
	budget.From(ctx).InTurn(len(q.arguments), func() { binding = q.stateBinding() })
	call, err := q.h.State.Open(text, binding)
	if err != nil {
		return "", true, err
	}
	if id, err = shim.ParseID(call); err != nil {
		err = errCallOver
	}
	return id, true, err
}

// askForInput makes the InputRequiredResult of a call that waits for its answers.
func (q *request) askForInput(p shim.Parked) jsonrpc.Spliced {
	text := q.h.State.Seal(q.stateBinding(), string(p.ID), p.Until)
	b := append([]byte(`{"resultType":"`+mcp.ResultInputRequired+`","inputRequests":`), dialect.InputRequests(p.Questions)...)
	b = append(b, `,"requestState":`...)
	return q.h.withServerInfo(append(jsonrpc.AppendString(b, text), '}'))
}

// stateBinding is what a state is good for: this caller, this endpoint, and the same request. Other
// params, such as a progress token, may change.
func (q *request) stateBinding() sealed.Binding {
	return sealed.Binding{
		Owner: q.principal.Owner(), Endpoint: q.h.Name, Method: q.msg.Method,
		Params: sealed.Digest(jsonrpc.AppendString(nil, q.name), q.arguments),
	}
}

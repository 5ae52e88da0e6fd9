package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// A legacy server asks in the middle of a call, and a modern client is asked by
// being given a result (protocol.md 2.7, 7.4). So the call is parked: it stays open
// upstream, the client gets an InputRequiredResult, and comes back with answers and
// with the requestState that leads to the call, on any replica (H2).

// stateKeys makes the keyring of the configuration. With none configured a gateway
// that shares its store with nobody makes a key of its own; any other has no
// keyring (nil), since a state has to open on the replica that the client comes
// back to.
func stateKeys(c *config.Config) (*sealed.Keyring, error) {
	if len(c.StateKeys) == 0 {
		if c.Store != config.StoreEmbedded {
			return nil, nil
		}
		return sealed.Generate()
	}
	keys := make([]sealed.Key, len(c.StateKeys))
	for i, k := range c.StateKeys {
		secret, err := k.Secret()
		if err != nil {
			return nil, fmt.Errorf("state_keys[%d]: %w", i, err)
		}
		keys[i] = sealed.Key{ID: k.ID, Secret: secret}
	}
	return sealed.New(keys...)
}

// converse makes a call during which the client may be asked, or goes on with the
// one that the request comes back to.
func (e *endpoint) converse(ctx context.Context, q *modernRequest, x *exchange, c shim.Call) (json.RawMessage, error) {
	c.Upstream, c.Principal, c.Origin = e.name, q.principal, dialect.OriginExt
	c.Asking, c.Stream = e.asking(q), modernSink{x: x, q: q}
	answered, err := e.callOrReturn(ctx, q, c)
	switch {
	case err != nil:
		return nil, err
	case answered.Task != nil:
		q.op.task(string(answered.Task.ID), nil)
		if !q.tasks {
			return modernResult(q.msg.Method, mcp.Legacy, e.toldOfTask(*answered.Task), *e.identity.Load())
		}
		return e.identified(dialect.Ext.Created(*answered.Task)), nil
	case answered.Parked != nil:
		return e.park(q, *answered.Parked)
	}
	return e.replied(ctx, q, answered.Reply)
}

func (e *endpoint) callOrReturn(ctx context.Context, q *modernRequest, c shim.Call) (shim.Answered, error) {
	state, ours, err := e.openState(q)
	switch {
	case err != nil:
		return shim.Answered{}, err
	case !ours:
		return e.shim.Call(ctx, c)
	}
	id, err := shim.ParseID(state.Call)
	if err != nil {
		return shim.Answered{}, errCallOver
	}
	c.Asked = state.Keys
	answered, err := e.shim.Reattach(ctx, c, id, answersOf(q))
	if errors.Is(err, shim.ErrNotFound) {
		err = errCallOver
	}
	return answered, err
}

// errCallOver is what a client hears that comes back too late, where nothing is
// known of its call any more. It is never made again in silence (H2).
var errCallOver = invalidParams("the call that asked is over: the time to answer has passed, or it was cancelled")

// answersOf are the answers of a retry (2.7); which of them were asked for is the
// shim's to know.
func answersOf(q *modernRequest) map[string]json.RawMessage {
	responses, _ := jsonrpc.Get(q.msg.Params, "inputResponses")
	answers := make(map[string]json.RawMessage)
	for key, answer := range jsonrpc.Members(responses) {
		answers[key] = answer
	}
	return answers
}

// openState reads the requestState of a retry, if it is one of ours. To a modern
// server any other is passed on; a legacy one gave none out.
func (e *endpoint) openState(q *modernRequest) (_ sealed.State, ours bool, _ error) {
	text, ours := e.ourState(q)
	switch {
	case !ours:
		return sealed.State{}, false, nil
	case e.gateway.state == nil:
		return sealed.State{}, true, sealed.ErrSealed
	}
	state, err := e.gateway.state.Open(text, e.binding(q), time.Now())
	return state, true, err
}

// ourState is the requestState of a retry that only this gateway can have given out:
// one that says so, and whatever comes back to a legacy server. That it does not open
// is the client's mistake, and never a reason to ask the server (H2).
func (e *endpoint) ourState(q *modernRequest) (text string, ours bool) {
	text, given := jsonrpc.GetString(q.msg.Params, "requestState")
	return text, given && asks(q.msg.Method) && (sealed.Ours(text) || q.server.Era != mcp.Modern)
}

// park is the InputRequiredResult of a call that waits for its answers.
func (e *endpoint) park(q *modernRequest, p shim.Parked) (json.RawMessage, error) {
	state := sealed.State{Call: string(p.ID), Expires: p.Until}
	for _, question := range p.Questions {
		state.Keys = append(state.Keys, question.Key)
	}
	text, err := e.gateway.state.Seal(e.binding(q), state)
	if err != nil {
		return nil, err
	}
	b := append([]byte(`{"resultType":"`+mcp.ResultInputRequired+`","inputRequests":`), dialect.InputRequests(p.Questions)...)
	b = append(b, `,"requestState":`...)
	return e.identified(append(jsonrpc.AppendString(b, text), '}')), nil
}

// binding is what a state is good for: this caller, here, and a request for the
// same. What else is in the params, such as a progress token, may change.
func (e *endpoint) binding(q *modernRequest) sealed.Binding {
	arguments, _ := jsonrpc.Get(q.msg.Params, "arguments")
	return sealed.Binding{
		Owner: q.principal.Owner(), Endpoint: e.name, Method: q.msg.Method,
		Params: sealed.Digest(jsonrpc.AppendString(nil, q.name), arguments),
	}
}

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

// The task methods of the extension (protocol.md section 3). All of them are
// answered from the store: the upstream may be down, and the task may run on
// another replica.

// getTask answers tasks/get (T22–T33).
func (e *endpoint) getTask(ctx context.Context, q *modernRequest, _ *exchange) (json.RawMessage, error) {
	id, err := shim.ParseID(q.name)
	if err != nil {
		return nil, err
	}
	t, err := e.shim.Get(ctx, q.principal, e.name, id)
	if err != nil {
		return nil, err
	}
	q.op.task(string(t.ID), t.Trace)
	return e.identified(dialect.Ext.Got(q.version, t)), nil
}

// updateTask answers tasks/update. That a task waits for nothing, or has ended, is
// no error: the answers are superfluous, and are acknowledged (T36).
func (e *endpoint) updateTask(ctx context.Context, q *modernRequest, _ *exchange) (json.RawMessage, error) {
	responses, ok := jsonrpc.Get(q.msg.Params, "inputResponses")
	if !ok || !isResponses(responses) {
		return nil, invalidParams("params.inputResponses must be an object of objects")
	}
	id, err := shim.ParseID(q.name)
	if err != nil {
		return nil, err
	}
	answers := make(map[string]json.RawMessage)
	for key, answer := range jsonrpc.Members(responses) {
		answers[key] = answer
	}
	q.op.task(string(id), nil)
	if err := e.shim.Update(ctx, q.principal, e.name, id, answers); err != nil && !errors.Is(err, shim.ErrFinal) {
		return nil, err
	}
	return e.identified(dialect.Ext.Ack()), nil
}

// cancelTask answers tasks/cancel. A task that has ended is acknowledged like any
// other (T41).
func (e *endpoint) cancelTask(ctx context.Context, q *modernRequest, _ *exchange) (json.RawMessage, error) {
	id, err := shim.ParseID(q.name)
	if err != nil {
		return nil, err
	}
	t, err := e.shim.Cancel(ctx, q.principal, e.name, id)
	if err != nil && !errors.Is(err, shim.ErrFinal) {
		return nil, err
	}
	q.op.task(string(id), t.Trace)
	return e.identified(dialect.Ext.Ack()), nil
}

// legacyTask reports whether a client that declares the legacy tasks in place of
// the extension asks for a task made under them: it may still read and cancel
// that one (T13). The shim has checked that the task is the caller's. Every other
// request without the extension is refused before its id is looked at (T6).
func (e *endpoint) legacyTask(ctx context.Context, q *modernRequest) bool {
	declared, _ := jsonrpc.Get(q.capabilities, "tasks")
	id, err := shim.ParseID(q.name)
	if err != nil || !jsonrpc.IsObject(declared) || q.msg.Method == mcp.MethodTasksUpdate {
		return false
	}
	t, err := e.shim.Get(ctx, q.principal, e.name, id)
	return err == nil && t.Origin != dialect.OriginExt
}

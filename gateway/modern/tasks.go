package modern

import (
	"context"
	"errors"

	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// The task methods of the extension (protocol.md section 3). All of them are answered from the
// store: the upstream may be down, and the task may run on another replica.

// getTask answers tasks/get (T22–T33).
func (q *request) getTask(ctx context.Context) (jsonrpc.Spliced, error) {
	id, err := shim.ParseID(q.name)
	if err != nil {
		return nil, err
	}
	t, err := q.h.Shim.Get(ctx, q.principal, q.h.Name, id)
	if err != nil {
		return nil, err
	}
	q.op.Task(string(t.ID), t.Trace)
	return q.h.withServerInfo(dialect.Ext.Got(q.version, t)), nil
}

// updateTask answers tasks/update. Answers to a task that waits for nothing, or that has ended, are
// acknowledged as superfluous (T36).
func (q *request) updateTask(ctx context.Context) (jsonrpc.Spliced, error) {
	id, err := shim.ParseID(q.name)
	if err != nil {
		return nil, err
	}
	if !isResponses(q.responses) {
		return nil, wire.InvalidParams("params.inputResponses must be an object of objects")
	}
	answers, err := q.readAnswers()
	if err != nil {
		return nil, err
	}
	q.op.Task(string(id), nil) // the shim reads the task, and links the span to it
	if err := q.h.Shim.Update(ctx, q.principal, q.h.Name, id, answers); err != nil && !errors.Is(err, shim.ErrFinal) {
		return nil, err
	}
	return q.h.withServerInfo(dialect.Ext.Ack()), nil
}

// cancelTask answers tasks/cancel. A task that has ended is acknowledged like any other (T41).
func (q *request) cancelTask(ctx context.Context) (jsonrpc.Spliced, error) {
	id, err := shim.ParseID(q.name)
	if err != nil {
		return nil, err
	}
	t, err := q.h.Shim.Cancel(ctx, q.principal, q.h.Name, id)
	if err != nil && !errors.Is(err, shim.ErrFinal) {
		return nil, err
	}
	q.op.Task(string(id), t.Trace)
	return q.h.withServerInfo(dialect.Ext.Ack()), nil
}

// legacyTask reports whether a client that declares the legacy tasks in place of the extension asks
// for a task that was made in the legacy dialect: it may still read and cancel that task (T13). The
// shim has checked that the task is the caller's. Every other request without the extension is
// refused before its id is read (T6).
func (q *request) legacyTask(ctx context.Context) bool {
	declared, _ := jsonrpc.Get(q.capabilities, "tasks")
	id, err := shim.ParseID(q.name)
	if err != nil || !jsonrpc.IsObject(declared) || q.msg.Method == mcp.MethodTasksUpdate {
		return false
	}
	t, err := q.h.Shim.Get(ctx, q.principal, q.h.Name, id)
	return err == nil && t.Origin != dialect.OriginExt
}

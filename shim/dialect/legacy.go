package dialect

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// OriginLegacy is the Task.Origin of tasks made in the 2025-11-25 dialect.
const OriginLegacy = "legacy"

// Legacy is the experimental tasks of 2025-11-25 (protocol.md section 4).
var Legacy legacy

type legacy struct{}

// Created is the CreateTaskResult of a new task: wrapped, and always working (L6, L8).
func (l legacy) Created(t shim.Task) json.RawMessage {
	o := newObject(384)
	o.raw("task", l.Got(t))
	return o.done()
}

// Got is a task without its outcome: the result of tasks/get and tasks/cancel, and the params of
// notifications/tasks/status (L10, L24, L34).
func (l legacy) Got(t shim.Task) json.RawMessage {
	t.Status = l.status(t)
	o := newObject(320)
	o.task(t, "ttl", "pollInterval")
	return o.done()
}

// Listed is the result of tasks/list (L20).
func (l legacy) Listed(tasks []shim.Task, next string) json.RawMessage {
	list := make([]json.RawMessage, len(tasks))
	for i, t := range tasks {
		list[i] = l.Got(t)
	}
	o := newObject(64 + 320*len(tasks) + len(next))
	o.raw("tasks", jsonrpc.Array(list))
	if next != "" {
		o.str("nextCursor", next)
	}
	return o.done()
}

// Result is the answer to tasks/result for a task that has ended, the same as that of the call
// itself: the result with related-task metadata, or the JSON-RPC error (L16, L17). A cancelled task
// has only an error that says so (L19).
func (l legacy) Result(t shim.Task) (json.RawMessage, *shim.RPCError) {
	switch {
	case t.Status == shim.Cancelled:
		return nil, &shim.RPCError{Code: mcp.CodeInternal, Message: "task was cancelled"}
	case t.Outcome == nil:
		return nil, &shim.RPCError{Code: mcp.CodeInternal, Message: "the outcome of the task is not available"}
	case t.Outcome.Error != nil:
		return nil, legacyError(t.Outcome.Error)
	}
	return l.Related(jsonrpc.Without(t.Outcome.Result, "resultType"), t.ID), nil
}

// status spells a tool's own error as failed (L29, H1).
func (legacy) status(t shim.Task) shim.Status {
	if t.Status == shim.Completed && t.ToolError {
		return shim.Failed
	}
	return t.Status
}

// Named is the params of a request about a task (L14).
func (legacy) Named(id shim.ID) json.RawMessage {
	o := newObject(64)
	o.str("taskId", string(id))
	return o.done()
}

// Related marks a result, or the params of a message, as that of a task (L17, L31). If the object or its _meta is
// no object, that is the upstream's own affair.
func (l legacy) Related(obj json.RawMessage, id shim.ID) json.RawMessage {
	return jsonrpc.With(obj, l.Named(id), "_meta", mcp.MetaRelatedTask)
}

// legacyError returns the stored error object as a legacy client may see it.
func legacyError(e json.RawMessage) *shim.RPCError {
	out := &shim.RPCError{Code: mcp.CodeInternal}
	if err := json.Unmarshal(e, out); err != nil {
		out.Message = "the call failed"
	}
	return out
}

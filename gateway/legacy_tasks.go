package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// The tasks of 2025-11-25 (protocol.md section 4). As with the extension, all
// methods are answered from the store: the upstream may be down, and the task may
// run on another replica.

// errLeft: a client has gone that waited for what it can ask for again.
var errLeft = errors.New("the client has gone")

// offersTasks reports whether sessions of this version can make tasks. Only
// 2025-11-25 has them, and only where a tool may become one are they offered (L1).
func (e *endpoint) offersTasks(version string) bool {
	return version == mcp.Version20251125 && e.convertible()
}

// mayBeTask reports whether a tool may be called as a task (L4).
func (e *endpoint) mayBeTask(tool string) bool {
	return e.config.Tool(tool).Tasks != config.TasksNever
}

// legacyServe answers a request in a session with a result or an error.
type legacyServe func(e *endpoint, ctx context.Context, q *legacyRequest) (json.RawMessage, error)

// withTasks makes a method exist only for sessions that can make tasks.
func withTasks(serve legacyServe) legacyServe {
	return func(e *endpoint, ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
		if !e.offersTasks(q.state.Version) {
			return nil, methodNotFound(q.msg.Method)
		}
		return serve(e, ctx, q)
	}
}

// taskWish reads params.task: whether a call is to be a task, and for how long the
// client would like it kept. Where no tasks are offered the member means nothing
// (L2). Other members of it are tolerated: the TypeScript SDK 1.x also sends
// pollInterval.
func (e *endpoint) taskWish(q *legacyRequest) (wish bool, ttl time.Duration, err error) {
	task, ok := jsonrpc.Get(q.msg.Params, "task")
	if !ok || !e.offersTasks(q.state.Version) {
		return false, 0, nil
	}
	if !jsonrpc.IsObject(task) {
		return false, 0, invalidParams("params.task must be an object")
	}
	raw, ok := jsonrpc.Get(task, "ttl")
	if !ok {
		return true, 0, nil
	}
	ttl, ok = milliseconds(raw)
	if !ok {
		return false, 0, invalidParams("params.task.ttl must be a whole number of milliseconds")
	}
	return true, max(ttl, time.Millisecond), nil
}

// milliseconds reads a duration as JSON has it. Null is as long as possible: that
// is what a ttl of null means in a task (L10), and there were clients that wished
// for it so.
func milliseconds(raw []byte) (time.Duration, bool) {
	const most = math.MaxInt64 / int64(time.Millisecond)
	if string(raw) == "null" {
		return math.MaxInt64, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), f < 0, f != math.Trunc(f):
		return 0, false
	case f >= float64(most):
		return math.MaxInt64, true
	}
	return time.Duration(f) * time.Millisecond, true
}

// legacyCreated answers a call that has become a task (L6, L11).
func (e *endpoint) legacyCreated(q *legacyRequest, t shim.Task) json.RawMessage {
	q.op.task(string(t.ID), nil)
	q.s.note([]shim.ID{t.ID}, nil)
	return dialect.Legacy.Created(t, e.config.Tool(q.name).ImmediateResponse)
}

// taskID reads params.taskId. Whatever else is in the params is ignored, as a
// related-task there has to be (L14), and as params.task, which the TypeScript SDK
// 1.32.2 sends along, deserves (protocol.md C 6).
func (q *legacyRequest) taskID() (shim.ID, error) {
	text, ok := jsonrpc.GetString(q.msg.Params, "taskId")
	if !ok {
		return "", invalidParams("params.taskId must be a string")
	}
	return shim.ParseID(text)
}

// getLegacyTask answers tasks/get.
func (e *endpoint) getLegacyTask(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	id, err := q.taskID()
	if err != nil {
		return nil, err
	}
	t, err := e.shim.Peek(ctx, q.principal, e.name, id)
	if err != nil {
		return nil, err
	}
	q.op.task(string(t.ID), t.Trace)
	return dialect.Legacy.Got(t), nil
}

// listLegacyTasks answers tasks/list: the tasks of the caller, or, where nobody
// has to say who he is, of the session (L20–L23, design.md 0.7).
func (e *endpoint) listLegacyTasks(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	cursor := ""
	if _, ok := jsonrpc.Get(q.msg.Params, "cursor"); ok {
		if cursor, _ = jsonrpc.GetString(q.msg.Params, "cursor"); cursor == "" {
			return nil, shim.ErrCursor
		}
	}
	tasks, next, err := e.shim.List(ctx, q.principal, e.name, cursor)
	if err != nil {
		return nil, err
	}
	return dialect.Legacy.Listed(tasks, next), nil
}

// cancelLegacyTask answers tasks/cancel with the task, which is cancelled by then
// (L25). One that has ended cannot be (L24).
func (e *endpoint) cancelLegacyTask(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	id, err := q.taskID()
	if err != nil {
		return nil, err
	}
	t, err := e.shim.Cancel(ctx, q.principal, e.name, id)
	if err != nil {
		return nil, err
	}
	q.op.task(string(id), t.Trace)
	return dialect.Legacy.Got(t), nil
}

// awaitLegacyTask answers tasks/result: once the task has ended, with what the
// call itself would have been answered with (L15–L17). Nothing is lost when the
// client goes meanwhile: it may ask again (L18), so nobody waits on for it, unlike
// for a call (X3).
func (e *endpoint) awaitLegacyTask(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	id, err := q.taskID()
	if err != nil {
		return nil, err
	}
	ctx, done := awaiting(ctx, q)
	defer done()
	stop := e.askOnResult(ctx, q, id, false)
	t, err := e.shim.Wait(ctx, q.principal, e.name, id)
	stop()
	if err != nil {
		return nil, err
	}
	q.op.task(string(id), t.Trace)
	return e.legacyOutcome(ctx, q, t)
}

// awaiting is the context of a wait for a task. It also ends, with errLeft, when the
// client goes and cannot come back for the answer.
func awaiting(ctx context.Context, q *legacyRequest) (context.Context, func()) {
	ctx, leave := context.WithCancelCause(ctx)
	stop := context.AfterFunc(q.client, func() {
		if !q.resumes() {
			leave(errLeft)
		}
	})
	return ctx, func() {
		stop()
		leave(nil)
	}
}

// legacyOutcome is how a task ended, as its call would have been answered.
func (e *endpoint) legacyOutcome(ctx context.Context, q *legacyRequest, t shim.Task) (json.RawMessage, error) {
	if t.Outcome != nil && t.Outcome.Result != nil {
		if !jsonrpc.IsObject(t.Outcome.Result) {
			return nil, notMCP(errors.New("the result of " + t.Tool + " is not an object"))
		}
		o := *t.Outcome
		o.Result = e.legacyToolResult(ctx, q, t.Tool, o.Result)
		t.Outcome = &o
	}
	result, failed := dialect.Legacy.Result(t)
	switch {
	case failed != nil:
		return nil, failed
	case t.ToolError:
		q.op.toolError()
	}
	return result, nil
}

// legacyToolResult translates a stored result. Its resultType tells a modern
// server's, which must have one, so that the server need not be asked what it is.
func (e *endpoint) legacyToolResult(ctx context.Context, q *legacyRequest, tool string, result json.RawMessage) json.RawMessage {
	_, modern := jsonrpc.Get(result, "resultType")
	view := legacyView{modern: modern, wrapped: modern && e.showsWrapped(ctx, q, tool, result)}
	return legacyResult(mcp.MethodToolsCall, result, view)
}

package legacy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// The tasks of 2025-11-25 (protocol.md section 4). As with the extension, all methods are answered
// from the store: the upstream may be down, and the task may run on another replica.

// errLeft says that a client has gone that can ask again for what it waited for.
var errLeft = errors.New("the client has gone")

// offersTasks reports whether a session can make tasks: only 2025-11-25 has them, and only if a tool may
// become one (L1).
func (h *Handler) offersTasks(st sessionState) bool {
	return h.readsTasks(st) && endpoint.ServesTasks(st.ClientInfo)
}

// readsTasks reports whether a session has the methods of tasks. A client that is offered none any more may
// have some.
func (h *Handler) readsTasks(st sessionState) bool {
	return st.Version == mcp.Version20251125 && h.Convertible()
}

// serve answers a request in a session with a result or an error.
type serve func(q *request, ctx context.Context) (json.RawMessage, error)

// withTasks makes a method exist only in sessions that have those of tasks.
func withTasks(serve serve) serve {
	return func(q *request, ctx context.Context) (json.RawMessage, error) {
		if !q.h.readsTasks(q.state) {
			return nil, wire.MethodNotFound(q.msg.Method)
		}
		return serve(q, ctx)
	}
}

// taskWish reads params.task: whether a call is to be a task, and how long the client would like it
// kept. The member is ignored if no tasks are offered (L2). Other members of it are tolerated: the
// TypeScript SDK 1.x also sends pollInterval.
func (q *request) taskWish() (wish bool, ttl time.Duration, err error) {
	if q.task == nil || !q.h.offersTasks(q.state) || q.principal.NoTasks {
		return false, 0, nil
	}
	if !jsonrpc.IsObject(q.task) {
		return false, 0, wire.InvalidParams("params.task must be an object")
	}
	raw, ok := jsonrpc.Get(q.task, "ttl")
	if !ok {
		return true, 0, nil
	}
	ttl, ok = readMilliseconds(raw)
	if !ok {
		return false, 0, wire.InvalidParams("params.task.ttl must be a whole number of milliseconds")
	}
	return true, max(ttl, time.Millisecond), nil
}

// readMilliseconds reads a duration in JSON. Null is as long as possible: a ttl of null means that
// in a task (L10), and there were clients that sent it as their wish.
func readMilliseconds(raw []byte) (time.Duration, bool) {
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

// showCreated answers a call that has become a task (L6, L11).
func (q *request) showCreated(t shim.Task) json.RawMessage {
	q.op.Task(string(t.ID), t.Trace)
	q.s.noteTasks([]shim.ID{t.ID}, nil)
	return dialect.Legacy.Created(t)
}

// taskID reads params.taskId. Other members are ignored: a related-task, as L14 demands, and
// params.task, which the TypeScript SDK 1.32.2 sends along (protocol.md C 6).
func (q *request) taskID() (shim.ID, error) {
	text, ok := jsonrpc.GetString(q.msg.Params, "taskId")
	if !ok {
		return "", wire.InvalidParams("params.taskId must be a string")
	}
	return shim.ParseID(text)
}

// getTask answers tasks/get.
func (q *request) getTask(ctx context.Context) (json.RawMessage, error) {
	return q.showTask(ctx, q.h.Shim.Peek)
}

// showTask answers with the task that find returns.
func (q *request) showTask(ctx context.Context, find func(context.Context, shim.Principal, string, shim.ID) (shim.Task, error)) (json.RawMessage, error) {
	id, err := q.taskID()
	if err != nil {
		return nil, err
	}
	t, err := find(ctx, q.principal, q.h.Name, id)
	if err != nil {
		return nil, err
	}
	q.op.Task(string(id), t.Trace)
	return dialect.Legacy.Got(t), nil
}

// listTasks answers tasks/list: the tasks of the caller, or of the session for an anonymous caller
// (L20–L23, design.md 0.7).
func (q *request) listTasks(ctx context.Context) (json.RawMessage, error) {
	cursor := ""
	if raw, _ := jsonrpc.Get(q.msg.Params, "cursor"); raw != nil && string(raw) != "null" {
		if cursor, _ = jsonrpc.GetString(q.msg.Params, "cursor"); cursor == "" {
			return nil, shim.ErrCursor
		}
	}
	tasks, next, err := q.h.Shim.List(ctx, q.principal, q.h.Name, cursor)
	if err != nil {
		return nil, err
	}
	return dialect.Legacy.Listed(tasks, next), nil
}

// cancelTask answers tasks/cancel with the task, which is cancelled by then (L25). A task that has
// ended is an error (L24).
func (q *request) cancelTask(ctx context.Context) (json.RawMessage, error) {
	return q.showTask(ctx, q.h.Shim.Cancel)
}

// awaitTask answers tasks/result once the task has ended, with the answer that the call itself
// would have got (L15–L17). It ends when the client goes, unlike a call (X3): the client may ask
// again (L18).
func (q *request) awaitTask(ctx context.Context) (json.RawMessage, error) {
	id, err := q.taskID()
	if err != nil {
		return nil, err
	}
	ctx, done := whileAwaited(ctx, q, askNote{Task: id})
	defer done()
	look, stop := q.askOnResult(ctx, true)
	// The end of the task wakes it, on any replica; Wait reads the task each 30 s by itself.
	t, err := q.h.Shim.Wait(ctx, q.principal, q.h.Name, id, look)
	stop()
	if err != nil {
		return nil, err
	}
	q.op.Task(string(id), t.Trace)
	return q.showOutcome(ctx, t)
}

// whileAwaited returns the context of a wait for a task. It also ends, with errLeft, when the
// client goes: if the client can come back for the answer, any replica gives it (serveResume).
func whileAwaited(ctx context.Context, q *request, n askNote) (context.Context, func()) {
	ctx, leave := context.WithCancelCause(ctx)
	n.Token = cmp.Or(string(q.token), q.log.about.Token)
	q.log.noteTask(n)
	stop := context.AfterFunc(q.log.client, func() { leave(errLeft) })
	return ctx, func() {
		stop()
		leave(nil)
	}
}

// askOnResult asks the questions of a task on the stream of a request that waits for its end. look
// takes the states of the task, until stop is called. A tasks/result leaves the questions to the
// GET stream first (late). To the GET stream a task is unknown whose client was only told of it in
// words, so task_result asks at once.
func (q *request) askOnResult(ctx context.Context, late bool) (look func(shim.Task), stop func()) {
	if !q.out.Streams() || !mcp.MayBeAsked(q.state.Capabilities) {
		return func(shim.Task) {}, func() {}
	}
	a, stop := q.newAsker(ctx)
	a.late = late
	return a.takeState, stop
}

// showOutcome is the end of a task, as its call would have been answered.
func (q *request) showOutcome(ctx context.Context, t shim.Task) (json.RawMessage, error) {
	if t.Outcome != nil && t.Outcome.Result != nil {
		result, err := q.toolResult(ctx, t.Tool, t.Outcome.Result)
		if err != nil {
			return nil, err
		}
		o := *t.Outcome
		o.Result, t.Outcome = result, &o
	}
	result, failed := dialect.Legacy.Result(t)
	switch {
	case failed != nil:
		return nil, failed
	case t.ToolError:
		q.op.ToolError()
	}
	return result, nil
}

// toolResult translates a stored result. A resultType shows that it is a modern server's, which
// saves asking the server for its era.
func (q *request) toolResult(ctx context.Context, tool string, result json.RawMessage) (json.RawMessage, error) {
	if !jsonrpc.IsObject(result) {
		return nil, translate.NotMCP(errors.New("the result of " + tool + " is not an object"))
	}
	_, modern := jsonrpc.Get(result, "resultType")
	view := translate.LegacyView{Modern: modern, Wrapped: modern && q.showsWrapped(ctx, tool, result)}
	return translate.LegacyResult(mcp.MethodToolsCall, result, view), nil
}

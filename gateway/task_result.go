package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Clients that cannot take a task (design.md 0.10). Under without_tasks: handle a
// slow call of theirs becomes a task all the same. They are told of it in words, by
// an ordinary result, and read it by a tool that the gateway adds to the server's.
// Nothing of either belongs to a dialect of tasks: what a text says, any model can
// act on.

// handles reports whether slow calls of clients without tasks become tasks here, and
// so whether there is the tool that reads them.
func (e *endpoint) handles() bool {
	return e.config.WithoutTasks == config.WithoutTasksHandle && e.convertible()
}

// handleAfter is after how long such a call becomes a task; 0 is never.
func (e *endpoint) handleAfter() time.Duration {
	if !e.handles() {
		return 0
	}
	return e.config.WithoutTasksAfter
}

// readsTasks reports whether a tools/call of this name is for the gateway's own
// tool. It is answered here whatever the server has by that name.
func (e *endpoint) readsTasks(method, name string) bool {
	return method == mcp.MethodToolsCall && e.handles() && name == e.config.TaskResultTool
}

// hidesOutput reports whether a tool is listed without its output schema: a client
// that knows one refuses a result without the structured content that it promises,
// which the text about a task does not have. It is so for all clients, since a list
// may not depend on what a client can do (protocol.md 2.9).
func (e *endpoint) hidesOutput(tool string) bool { return e.handles() && e.mayBeTask(tool) }

// withTaskResult is a page of the server's tools as it is listed under
// without_tasks: handle. The gateway's own tool stands at the end of the first page,
// since some clients read no other; a tool of the server by its name could not be
// called, and is left out of every page.
func (e *endpoint) withTaskResult(ctx context.Context, params, result json.RawMessage) json.RawMessage {
	tools, ok := jsonrpc.Get(result, "tools")
	if !e.handles() || !ok || !isArray(tools) {
		return result
	}
	out := make([]byte, 0, len(tools)+1500)
	for tool := range jsonrpc.Elements(tools) {
		name, _ := jsonrpc.GetString(tool, "name")
		if name == e.config.TaskResultTool {
			e.logDropped(ctx, []droppedTool{{name, errTakenName}})
			continue
		}
		if e.mayBeTask(name) {
			tool = without(tool, "outputSchema")
		}
		out = append(append(out, ','), tool...)
	}
	if cursor, ok := jsonrpc.Get(params, "cursor"); !ok || string(cursor) == "null" {
		out = append(append(out, ','), e.taskResultTool()...)
	}
	if len(out) == 0 {
		out = append(out, ',')
	}
	out[0] = '['
	return with(result, append(out, ']'), "tools")
}

// errTakenName is why a tool of the server is not offered.
var errTakenName = errors.New("the gateway's own tool has this name; configure another task_result_tool")

// taskResultTool is the tool as tools/list shows it. Its title is there twice:
// 2025-03-26 knows it as an annotation only.
func (e *endpoint) taskResultTool() []byte {
	const title = "Result of a task"
	most := inSeconds(e.config.TaskResultWait)
	b := append([]byte(`{"name":`), jsonrpc.AppendString(nil, e.config.TaskResultTool)...)
	b = append(b, `,"title":"`+title+`","description":`...)
	b = jsonrpc.AppendString(b, "Returns the result of a task. A call of another tool of this server that takes long "+
		"goes on in the background as a task, and answers with a text that names its taskId. "+
		"This tool waits up to "+most+" seconds for such a task to end and then returns exactly what the other tool returned. "+
		"If the task still runs by then, it says so and how far the work is; call it again to go on waiting. "+
		"It only reads: it starts nothing and may be called any number of times.")
	b = append(b, `,"inputSchema":{"type":"object","properties":{`+
		`"taskId":{"type":"string","description":"The taskId that the text named."},`+
		`"waitSeconds":{"type":"number","minimum":0,"maximum":`+most+`,"default":`+most+
		`,"description":"How long to wait for the end of the task before answering that it still runs."}`+
		`},"required":["taskId"],"additionalProperties":false}`...)
	return append(b, `,"annotations":{"title":"`+title+`","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`...)
}

// toldOfTask answers a call that has become a task, to a client that knows of none.
func (e *endpoint) toldOfTask(t shim.Task) json.RawMessage {
	text := fmt.Sprintf("The call of %q goes on in the background as a task, since it can take longer than a client waits for an answer. "+
		"Nothing has failed. Do not call %q again for the same work.", t.Tool, t.Tool)
	if t.StatusMessage != "" {
		text += fmt.Sprintf(" Its latest message: %q.", t.StatusMessage)
	}
	text += fmt.Sprintf(" To get the result, call the tool %q with the arguments {\"taskId\":%q}. "+
		"That waits up to %s seconds for it, and may be done again while the task runs.",
		e.config.TaskResultTool, t.ID, inSeconds(e.config.TaskResultWait))
	return toolText(text, false)
}

// taskResultCall is a call of the gateway's tool.
type taskResultCall struct {
	id   string
	wait time.Duration
}

// readTaskResultCall checks the arguments against the tool's schema. What is wrong
// with them comes back as a text for the model, which can mend them.
func (e *endpoint) readTaskResultCall(params json.RawMessage) (c taskResultCall, wrong string, err error) {
	args, ok := jsonrpc.Get(params, "arguments")
	if ok && !jsonrpc.IsObject(args) {
		return c, "", invalidParams("params.arguments must be an object")
	}
	c.wait = e.config.TaskResultWait
	if c.id, ok = jsonrpc.GetString(args, "taskId"); !ok {
		return c, "taskId is required and must be a string", nil
	}
	for name, value := range jsonrpc.Members(args) {
		switch name {
		case "taskId":
		case "waitSeconds":
			s, err := strconv.ParseFloat(string(value), 64)
			if err != nil || s < 0 || s > e.config.TaskResultWait.Seconds() {
				return c, "waitSeconds must be a number from 0 to " + inSeconds(e.config.TaskResultWait), nil
			}
			c.wait = time.Duration(s * float64(time.Second))
		default:
			return c, fmt.Sprintf("there is no argument %q; the arguments are taskId and waitSeconds", name), nil
		}
	}
	return c, "", nil
}

// told is what the tool answers: what a tool of the server returned, or a text.
type told struct {
	tool    string // whose result it is; "" for a text
	result  json.RawMessage
	isError bool
	asks    *shim.Parked // in place of a result: what the task asks the caller
}

// inWords is an answer of the gateway's own.
func inWords(isError bool, format string, a ...any) told {
	s := fmt.Sprintf(format, a...)
	return told{result: toolText(s, isError), isError: isError}
}

// taskResult waits for the end of a task of this caller, and says how it ended or
// that it has not, or what it asks of a caller who is asked by the answer. A task of
// somebody else is answered as one that never was, with the same work (design.md
// 0.7). That this replica stops ends the wait, not the task: another replica answers
// the next call.
func (e *endpoint) taskResult(ctx context.Context, p shim.Principal, c taskResultCall, op *operation, w waiter) (told, error) {
	unknown := inWords(true, "There is no task with this taskId: it is unknown, or it has ended and its result has expired.")
	id, err := shim.ParseID(c.id)
	if err != nil {
		return unknown, nil
	}
	t, err := e.shim.Get(ctx, p, e.name, id)
	if err == nil && !t.Status.Final() && c.wait > 0 && w.questions(t) == nil {
		t, err = e.watchTask(ctx, p, t, c.wait, w)
	}
	switch {
	case errors.Is(err, shim.ErrNotFound):
		return unknown, nil
	case err != nil:
		return told{}, err
	}
	op.task(string(id), t.Trace)
	if !t.Status.Final() {
		if open := w.questions(t); open != nil {
			return told{asks: &shim.Parked{ID: id, Questions: open, Until: t.ExpiresAt()}}, nil
		}
		return e.stillRunning(t), nil
	}
	return howItEnded(t), nil
}

// waiter is who waits for a task.
type waiter struct {
	// say is told the status message whenever it has changed.
	say func(string)
	// able are the capabilities of a caller who is asked by the answer; nil for one
	// who is not.
	able json.RawMessage
}

// questions are those that the task has for the caller.
func (w waiter) questions(t shim.Task) (open []shim.Question) {
	if w.able == nil {
		return nil
	}
	for _, q := range t.Questions {
		if q.Outstanding() && upstream.MayAsk(shim.Session{Capabilities: w.able}, q.Method, q.Params) {
			open = append(open, q)
		}
	}
	return open
}

// errTaskAsks ends the watching of a task that has questions for the one who waits.
var errTaskAsks = errors.New("the task asks")

// watchTask follows a task until it has ended, asks something or the time is over, and
// reads it again then.
func (e *endpoint) watchTask(ctx context.Context, p shim.Principal, t shim.Task, wait time.Duration, w waiter) (shim.Task, error) {
	within, stop := context.WithTimeout(ctx, wait)
	defer stop()
	within, leave, err := e.gateway.streams.enter(within)
	defer leave()
	if err != nil {
		return t, nil // this replica stops
	}
	last := ""
	err = e.shim.Follow(within, p, e.name, []shim.ID{t.ID}, func(now shim.Task) error {
		if now.StatusMessage != last && !now.Status.Final() {
			last = now.StatusMessage
			w.say(last)
		}
		if w.questions(now) != nil {
			return errTaskAsks
		}
		return nil
	})
	switch {
	case ctx.Err() != nil: // the caller has gone
		return shim.Task{}, context.Cause(ctx)
	case err != nil && !errors.Is(err, errTaskAsks) && within.Err() == nil:
		return shim.Task{}, err
	}
	return e.shim.Get(ctx, p, e.name, t.ID)
}

// stillRunning is the answer to who has waited for long enough.
func (e *endpoint) stillRunning(t shim.Task) told {
	latest := ""
	if t.StatusMessage != "" {
		latest = fmt.Sprintf(" Its latest message: %q.", t.StatusMessage)
	}
	return inWords(false, "The task %s is still running (status %q).%s There is no result yet. "+
		"Call %q again with the same taskId to go on waiting; the work goes on meanwhile.",
		t.ID, t.Status, latest, e.config.TaskResultTool)
}

// howItEnded is how a task ended: with its tool's own result, which may be an error of the
// tool, or in words where there is none.
func howItEnded(t shim.Task) told {
	switch {
	case t.Status == shim.Cancelled:
		return inWords(true, "The task %s of the tool %q was cancelled (%s). It has no result.", t.ID, t.Tool, t.StatusMessage)
	case t.Outcome == nil:
		return inWords(true, "The task %s of the tool %q has ended, but its result is not available.", t.ID, t.Tool)
	case t.Outcome.Result != nil:
		return told{tool: t.Tool, result: t.Outcome.Result, isError: t.Outcome.IsError}
	}
	message, _ := jsonrpc.GetString(t.Outcome.Error, "message")
	return inWords(true, "The task %s of the tool %q failed: %s", t.ID, t.Tool, message)
}

// toolText is a CallToolResult of one text.
func toolText(text string, isError bool) json.RawMessage {
	b := append([]byte(`{"content":[{"type":"text","text":`), jsonrpc.AppendString(nil, text)...)
	b = append(b, `}]`...)
	if isError {
		b = append(b, `,"isError":true`...)
	}
	return append(b, '}')
}

// inSeconds writes a duration as a number of seconds, in JSON and in texts.
func inSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// progressParams are the params of a notification about a task's status message. n
// rises with each one (protocol.md 2.9).
func progressParams(token json.RawMessage, n int, message string) json.RawMessage {
	b := append([]byte(`{"progressToken":`), token...)
	b = append(b, `,"progress":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, `,"message":`...)
	return append(jsonrpc.AppendString(b, message), '}')
}

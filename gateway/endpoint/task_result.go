package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Clients that cannot take a task (design.md 0.10). Under without_tasks: handle a
// slow call of theirs becomes a task all the same. They are told of it in words, by
// an ordinary result, and read it by a tool that the gateway adds to the server's.
// Nothing of either belongs to a dialect of tasks: what a text says, any model can
// act on.

// Handles reports whether slow calls of clients without tasks become tasks here, and
// so whether there is the tool that reads them.
func (e *Endpoint) Handles() bool {
	return e.Config.WithoutTasks == config.WithoutTasksHandle && e.Convertible()
}

// HandleAfter is after how long such a call becomes a task; 0 is never.
func (e *Endpoint) HandleAfter() time.Duration {
	if !e.Handles() {
		return 0
	}
	return e.Config.WithoutTasksAfter
}

// ReadsTasks reports whether a tools/call of this name is for the gateway's own
// tool. It is answered here whatever the server has by that name.
func (e *Endpoint) ReadsTasks(method, name string) bool {
	return method == mcp.MethodToolsCall && e.Handles() && name == TaskResultTool
}

// HidesOutput reports whether a tool is listed without its output schema: a client
// that knows one refuses a result without the structured content that it promises,
// which the text about a task does not have. It is so for all clients, since a list
// may not depend on what a client can do (protocol.md 2.9).
func (e *Endpoint) HidesOutput(tool string) bool { return e.Handles() && e.MayBeTask(tool) }

// WithTaskResult is a page of the server's tools as it is listed under
// without_tasks: handle. The gateway's own tool stands at the end of the first page,
// since some clients read no other; a tool of the server by its name could not be
// called, and is left out of every page.
func (e *Endpoint) WithTaskResult(ctx context.Context, params, result json.RawMessage) json.RawMessage {
	if !e.Handles() {
		return result
	}
	var own []json.RawMessage
	if cursor, ok := jsonrpc.Get(params, "cursor"); !ok || string(cursor) == "null" {
		own = append(own, e.taskResultTool())
	}
	return translate.EachTool(result, func(tool json.RawMessage) json.RawMessage {
		name, _ := jsonrpc.GetString(tool, "name")
		switch {
		case name == TaskResultTool:
			e.LogDropped(ctx, name, errTakenName)
			return nil
		case e.MayBeTask(name):
			return jsonrpc.Without(tool, "outputSchema")
		}
		return tool
	}, own...)
}

// TaskResultTool is the name of the gateway's own tool. A model reads it, so it says what the
// tool does; a tool of the server that has it is not offered.
const TaskResultTool = "task_result"

// errTakenName is why a tool of the server is not offered.
var errTakenName = errors.New("the gateway's own tool has this name")

// taskResultTool is the tool as tools/list shows it. Its title is there twice:
// 2025-03-26 knows it as an annotation only.
func (e *Endpoint) taskResultTool() []byte {
	const title = "Result of a task"
	most := inSeconds(e.Config.TaskResultWait)
	b := append([]byte(`{"name":`), jsonrpc.AppendString(nil, TaskResultTool)...)
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

// ToldOfTask answers a call that has become a task, to a client that knows of none.
func (e *Endpoint) ToldOfTask(t shim.Task) json.RawMessage {
	text := fmt.Sprintf("The call of %q goes on in the background as a task, since it can take longer than a client waits for an answer. "+
		"Nothing has failed. Do not call %q again for the same work.", t.Tool, t.Tool)
	if t.StatusMessage != "" {
		text += fmt.Sprintf(" Its latest message: %q.", t.StatusMessage)
	}
	text += fmt.Sprintf(" To get the result, call the tool %q with the arguments {\"taskId\":%q}. "+
		"That waits up to %s seconds for it, and may be done again while the task runs.",
		TaskResultTool, t.ID, inSeconds(e.Config.TaskResultWait))
	return translate.ToolText(text, false)
}

// TaskResultCall is a call of the gateway's tool.
type TaskResultCall struct {
	ID   string
	wait time.Duration
}

// ReadTaskResultCall checks the arguments against the tool's schema. What is wrong
// with them comes back as a text for the model, which can mend them.
func (e *Endpoint) ReadTaskResultCall(params json.RawMessage) (c TaskResultCall, wrong string, err error) {
	args, ok := jsonrpc.Get(params, "arguments")
	if ok && !jsonrpc.IsObject(args) {
		return c, "", wire.InvalidParams("params.arguments must be an object")
	}
	c.wait = e.Config.TaskResultWait
	if c.ID, ok = jsonrpc.GetString(args, "taskId"); !ok {
		return c, "taskId is required and must be a string", nil
	}
	for name, value := range jsonrpc.Members(args) {
		switch name {
		case "taskId":
		case "waitSeconds":
			s, err := strconv.ParseFloat(string(value), 64)
			if err != nil || s < 0 || s > e.Config.TaskResultWait.Seconds() {
				return c, "waitSeconds must be a number from 0 to " + inSeconds(e.Config.TaskResultWait), nil
			}
			c.wait = time.Duration(s * float64(time.Second))
		default:
			return c, fmt.Sprintf("there is no argument %q; the arguments are taskId and waitSeconds", name), nil
		}
	}
	return c, "", nil
}

// Told is what the tool answers: what a tool of the server returned, or a text.
type Told struct {
	Tool    string // whose result it is; "" for a text
	Result  json.RawMessage
	IsError bool
	Asks    *shim.Parked // in place of a result: what the task asks the caller
}

// InWords is an answer of the gateway's own.
func InWords(isError bool, format string, a ...any) Told {
	s := fmt.Sprintf(format, a...)
	return Told{Result: translate.ToolText(s, isError), IsError: isError}
}

// TaskResult waits for the end of a task of this caller, and says how it ended or
// that it has not, or what it asks of a caller who is asked by the answer. A task of
// somebody else is answered as one that never was, with the same work (design.md
// 0.7). That this replica stops ends the wait, not the task: another replica answers
// the next call.
func (e *Endpoint) TaskResult(ctx context.Context, p shim.Principal, c TaskResultCall, op *wire.Operation, w Waiter) (Told, error) {
	unknown := InWords(true, "There is no task with this taskId: it is unknown, or it has ended and its result has expired.")
	id, err := shim.ParseID(c.ID)
	if err != nil {
		return unknown, nil
	}
	t, err := e.Shim.Get(ctx, p, e.Name, id)
	if err == nil && !t.Status.Final() && c.wait > 0 && w.questions(t) == nil {
		t, err = e.watchTask(ctx, p, t, c.wait, w)
	}
	switch {
	case errors.Is(err, shim.ErrNotFound):
		return unknown, nil
	case err != nil:
		return Told{}, err
	}
	op.Task(string(id), t.Trace)
	if !t.Status.Final() {
		if open := w.questions(t); open != nil {
			return Told{Asks: &shim.Parked{ID: id, Questions: open, Until: t.ExpiresAt()}}, nil
		}
		return e.stillRunning(t), nil
	}
	return howItEnded(t), nil
}

// Waiter is who waits for a task.
type Waiter struct {
	// Say is told the status message whenever it has changed.
	Say func(string)
	// Seen is told every state; nil for nobody.
	Seen func(shim.Task)
	// Able are the capabilities of a caller who is asked by the answer; nil for one
	// who is not.
	Able json.RawMessage
}

// questions are those that the task has for the caller.
func (w Waiter) questions(t shim.Task) (open []shim.Question) {
	if w.Able == nil {
		return nil
	}
	for _, q := range t.Questions {
		if q.Outstanding() && upstream.MayAsk(shim.Session{Capabilities: w.Able}, q.Method, q.Params) {
			open = append(open, q)
		}
	}
	return open
}

// errTaskAsks ends the watching of a task that has questions for the one who waits.
var errTaskAsks = errors.New("the task asks")

// watchTask follows a task until it has ended, asks something or the time is over, and
// reads it again then.
func (e *Endpoint) watchTask(ctx context.Context, p shim.Principal, t shim.Task, wait time.Duration, w Waiter) (shim.Task, error) {
	within, stop := context.WithTimeout(ctx, wait)
	defer stop()
	within, leave, err := e.Streams.Enter(within)
	defer leave()
	if err != nil {
		return t, nil // this replica stops
	}
	last := ""
	err = e.Shim.Track(within, p, e.Name, []shim.Tracked{{ID: t.ID}}, func(u shim.Update) error {
		now := *u.Task
		if w.Seen != nil {
			w.Seen(now)
		}
		if now.StatusMessage != last && !now.Status.Final() {
			last = now.StatusMessage
			w.Say(last)
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
	return e.Shim.Get(ctx, p, e.Name, t.ID)
}

// stillRunning is the answer to who has waited for long enough.
func (e *Endpoint) stillRunning(t shim.Task) Told {
	latest := ""
	if t.StatusMessage != "" {
		latest = fmt.Sprintf(" Its latest message: %q.", t.StatusMessage)
	}
	return InWords(false, "The task %s is still running (status %q).%s There is no result yet. "+
		"Call %q again with the same taskId to go on waiting; the work goes on meanwhile.",
		t.ID, t.Status, latest, TaskResultTool)
}

// howItEnded is how a task ended: with its tool's own result, which may be an error of the
// tool, or in words where there is none.
func howItEnded(t shim.Task) Told {
	switch {
	case t.Status == shim.Cancelled:
		return InWords(true, "The task %s of the tool %q was cancelled (%s). It has no result.", t.ID, t.Tool, t.StatusMessage)
	case t.Outcome == nil:
		return InWords(true, "The task %s of the tool %q has ended, but its result is not available.", t.ID, t.Tool)
	case t.Outcome.Result != nil:
		return Told{Tool: t.Tool, Result: t.Outcome.Result, IsError: t.Outcome.IsError}
	}
	message, _ := jsonrpc.GetString(t.Outcome.Error, "message")
	return InWords(true, "The task %s of the tool %q failed: %s", t.ID, t.Tool, message)
}

// inSeconds writes a duration as a number of seconds, in JSON and in texts.
func inSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// ProgressTo sends each text that it is given as progress under the client's token;
// nowhere where there is none. A client that does not take it misses it.
func ProgressTo(token json.RawMessage, notify func(string, json.RawMessage) error) func(string) {
	n := 0
	return func(message string) {
		if token == nil {
			return
		}
		n++
		_ = notify(mcp.NotifyProgress, progressParams(token, n, message))
	}
}

// progressParams are the params of a notification about a task's status message. n
// rises with each one (protocol.md 2.9).
func progressParams(token json.RawMessage, n int, message string) json.RawMessage {
	b := append([]byte(`{"progressToken":`), token...)
	b = append(b, `,"progress":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, `,"message":`...)
	return append(jsonrpc.AppendString(b, message), '}')
}

package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file is for clients without tasks (design.md 0.10). A slow call of theirs may become a task
// all the same (HandleAfter). An ordinary result tells them of it in words, and they read it by a
// tool that the gateway adds to the server's. Both are outside of the dialects of tasks: any model
// can act on a text.

// ReadsTasks reports whether a tools/call of this name is for the gateway's own tool, which takes
// precedence over a tool of the server. Under without_tasks: handle it does so for every client: a
// conversation that names a task may go on in a client that takes tasks.
func (e *Endpoint) ReadsTasks(method, name string, c Client) bool {
	return method == mcp.MethodToolsCall && name == TaskResultTool && e.hidesTaken(c)
}

// hidesTaken reports whether the gateway's own tool has taken its name.
func (e *Endpoint) hidesTaken(c Client) bool {
	return e.HandleAfter(c) > 0 || e.Config.WithoutTasks == config.WithoutTasksHandle && e.Convertible()
}

// HidesOutput reports whether a tool with this policy is listed without its output schema. A client that knows the
// schema refuses a result without the structured content that it promises, which the text about a
// task lacks.
func (e *Endpoint) HidesOutput(policy config.Tool, c Client) bool {
	return e.HandleAfter(c) > 0 && policy.Tasks != config.TasksNever
}

// WithTaskResult is a page of the server's tools as a client is shown it. For a client that is told
// of tasks in words, the gateway's own tool stands at the end of the first page, since some clients
// read only that. A tool of the server with its name is left out of every page, since calls would
// miss it.
func (e *Endpoint) WithTaskResult(ctx context.Context, c Client, params, result json.RawMessage) json.RawMessage {
	if !e.hidesTaken(c) {
		return result
	}
	var own []json.RawMessage
	if cursor, ok := jsonrpc.Get(params, "cursor"); e.HandleAfter(c) > 0 && (!ok || string(cursor) == "null") {
		own = append(own, e.taskResultTool(c))
	}
	return translate.EachTool(result, func(tool json.RawMessage) json.RawMessage {
		name, _ := jsonrpc.GetString(tool, "name")
		switch {
		case name == TaskResultTool:
			e.LogDropped(ctx, name, errTakenName)
			return nil
		case e.HidesOutput(e.ListedPolicy(tool), c):
			return jsonrpc.Without(tool, "outputSchema")
		}
		return tool
	}, own...)
}

// instructions are the gateway's own: clients show them to their model as words of its user.
const instructions = "A call of a tool of this server that takes long is answered with a status and a taskId, and its work goes on. " +
	"The tool " + TaskResultTool + " of this server then gives the result: call it with the arguments that each answer names, " +
	"in place of the other tool, until it does."

// WithInstructions adds the gateway's instructions to those of the server, in a result that
// introduces the server to a client which is told of tasks in words.
func (e *Endpoint) WithInstructions(c Client, result json.RawMessage) json.RawMessage {
	if e.HandleAfter(c) == 0 {
		return result
	}
	text := jsonrpc.AppendString(nil, instructions)
	if own, ok := jsonrpc.Get(result, "instructions"); ok && len(own) > 2 && own[0] == '"' {
		text = append(append(bytes.Clone(own[:len(own)-1]), `\n\n`...), text[1:]...)
	}
	return jsonrpc.With(result, text, "instructions")
}

// TaskResultTool is the name of the gateway's own tool. A model reads it, so it says what the tool
// does. A tool of the server with this name is not offered.
const TaskResultTool = "task_result"

// errTakenName is the reason why a tool of the server is left out.
var errTakenName = errors.New("the gateway's own tool has this name")

// taskResultTool is the tool as tools/list shows it. It has its title twice: 2025-03-26 knows it as
// an annotation only.
func (e *Endpoint) taskResultTool(c Client) []byte {
	const title = "Result of a task"
	most := inSeconds(e.answersWithin(c))
	b := append([]byte(`{"name":`), jsonrpc.AppendString(nil, TaskResultTool)...)
	b = append(b, `,"title":"`+title+`","description":`...)
	b = jsonrpc.AppendString(b, "Returns the result of a task. A call of another tool of this server that takes long "+
		"goes on in the background as a task, and answers with a text that names its taskId. "+
		"This tool waits up to "+most+" seconds for such a task to end and then returns exactly what the other tool returned. "+
		"If the task still runs by then, it says so, and names the arguments of the next call. "+
		"It only reads: it starts nothing and may be called any number of times.")
	b = append(b, `,"inputSchema":{"type":"object","properties":{`+
		`"taskId":{"type":"string","description":"The taskId that the text named."},`+
		`"turn":{"type":"integer","description":"Makes this call differ from the one before; the value is ignored."},`+
		`"waitSeconds":{"type":"number","minimum":0,"default":`+most+
		`,"description":"How long to wait for the end of the task before answering that it still runs; at most `+most+`."}`+
		`},"required":["taskId"],"additionalProperties":false}`...)
	return append(b, `,"annotations":{"title":"`+title+`","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`...)
}

// ToldOfTask answers a call that has become a task, to a client without tasks.
func (e *Endpoint) ToldOfTask(t shim.Task) json.RawMessage {
	return translate.ToolText(sayRunning(t, 0), false)
}

// sayRunning says of a running task how its result is given. It is data and no order: some agents
// tell their model to ignore orders in results. turn is that of the call that it answers.
func sayRunning(t shim.Task, turn int) string {
	text := fmt.Sprintf("status: %s; ", t.Status)
	if t.Tool != "" {
		text += fmt.Sprintf("tool: %q; ", t.Tool)
	}
	text += fmt.Sprintf("taskId: %s; ", t.ID)
	if t.StatusMessage != "" {
		text += fmt.Sprintf("latest message: %q; ", t.StatusMessage)
	}
	return text + sayNext(t.ID, turn)
}

// sayNext names the next call of task_result. Its arguments differ from those of the last one,
// since agents stop a model at its fifth equal call.
func sayNext(id shim.ID, turn int) string {
	return fmt.Sprintf("the work goes on, and a second call of its tool would do it twice; "+
		"the result will be given by the tool %s of this server, arguments {\"taskId\":%q,\"turn\":%d}", TaskResultTool, id, turn+1)
}

// TaskResultCall is a call of the gateway's tool.
type TaskResultCall struct {
	ID   string
	wait time.Duration
	turn int
}

// ReadTaskResultCall checks the arguments against the tool's schema. wrong is a text about mistakes
// for the model, which can correct them.
func (e *Endpoint) ReadTaskResultCall(by Client, params json.RawMessage) (c TaskResultCall, wrong string, err error) {
	args, ok := jsonrpc.Get(params, "arguments")
	if ok && !jsonrpc.IsObject(args) {
		return c, "", wire.InvalidParams("params.arguments must be an object")
	}
	c.wait = e.answersWithin(by)
	if c.ID, ok = jsonrpc.GetString(args, "taskId"); !ok {
		return c, "taskId is required and must be a string", nil
	}
	for name, value := range jsonrpc.Members(args) {
		switch name {
		case "taskId":
		case "turn":
			c.turn, _ = strconv.Atoi(string(value)) // any other value is ignored
		case "waitSeconds":
			s, err := strconv.ParseFloat(string(value), 64)
			if err != nil || s < 0 {
				return c, "waitSeconds must be a number, and not negative", nil
			}
			if s < c.wait.Seconds() {
				c.wait = time.Duration(s * float64(time.Second))
			}
		default:
			return c, fmt.Sprintf("there is no argument %q; the arguments are taskId, turn and waitSeconds", name), nil
		}
	}
	return c, "", nil
}

// Told is the answer of the tool: the result of a tool of the server, or a text.
type Told struct {
	Tool    string // whose result it is; "" for a text
	Result  json.RawMessage
	IsError bool
	Asks    *shim.Parked // in place of a result: the task's questions to the caller
}

// InWords is an answer of the gateway's own.
func InWords(isError bool, format string, a ...any) Told {
	s := fmt.Sprintf(format, a...)
	return Told{Result: translate.ToolText(s, isError), IsError: isError}
}

// TaskResult waits for the end of a task of this caller. It says how the task ended, or that it
// still runs, or asks the task's questions of a caller who is asked by the answer. A task of
// another caller is answered as an unknown one, with the same work (design.md 0.7). If this replica
// stops, or the store stays away, only the wait ends: another replica answers the next call.
func (e *Endpoint) TaskResult(ctx context.Context, p shim.Principal, c TaskResultCall, op *wire.Operation, w ResultWaiter) (Told, error) {
	unknown := InWords(true, "There is no task with this taskId: it is unknown, or it has ended and its result has expired.")
	id, err := shim.ParseID(c.ID)
	if err != nil {
		return unknown, nil
	}
	within, stop := context.WithTimeout(ctx, c.wait)
	defer stop()
	t, err := e.Shim.Find(ctx, p, e.readsTasksOf(), id)
	if err == nil && t.Upstream != e.Name { // the task_result of that upstream asks the task's questions
		w.Seen, w.Able = nil, nil
	}
	if err == nil && !t.Status.Final() && c.wait > 0 && w.questions(t) == nil {
		t, err = e.watchTask(within, p, t, w)
	}
	switch {
	case ctx.Err() != nil: // the caller has gone
		return Told{}, context.Cause(ctx)
	case errors.Is(err, shim.ErrNotFound):
		return unknown, nil
	case errors.Is(err, shim.ErrUnavailable):
		return InWords(false, "status: unknown; taskId: %s; the task cannot be read just now; most likely %s", id, sayNext(id, c.turn)), nil
	case err != nil:
		return Told{}, err
	}
	op.Task(string(id), t.Trace)
	if !t.Status.Final() {
		if open := w.questions(t); open != nil {
			return Told{Asks: &shim.Parked{ID: id, Questions: open, Until: t.ExpiresAt()}}, nil
		}
		return InWords(false, "%s", sayRunning(t, c.turn)), nil
	}
	return howItEnded(t), nil
}

// readsTasksOf are the upstreams whose tasks this one's task_result reads: its own, and those whose
// callers sign in in the same way, with the same tokens. A model that has several servers of one
// gateway may ask the wrong one.
func (e *Endpoint) readsTasksOf() []string {
	names := []string{e.Name}
	if e.Config.Auth != nil {
		return names
	}
	for _, u := range e.Global.Upstreams {
		if u.Name != e.Name && u.Auth == nil && e.Global.SameAudiences(u, e.Config) {
			names = append(names, u.Name)
		}
	}
	return names
}

// ResultWaiter waits for a task.
type ResultWaiter struct {
	// Say is called with each new status message.
	Say func(string)
	// Seen is called with every state; it may be nil.
	Seen func(shim.Task)
	// Able are the capabilities of a caller who is asked by the answer; nil for a caller who is
	// asked otherwise.
	Able json.RawMessage
}

// questions are those that the task has for the caller.
func (w ResultWaiter) questions(t shim.Task) (open []shim.Question) {
	if w.Able == nil {
		return nil
	}
	for _, q := range t.Questions {
		if q.Outstanding() && reading.MayAsk(shim.Session{Capabilities: w.Able}, q.Method, q.Params) {
			open = append(open, q)
		}
	}
	return open
}

// errTaskAsks ends the watching of a task that has questions for the waiter.
var errTaskAsks = errors.New("the task asks")

// watchTask follows a task until it has ended, asks something or the time is over, and returns its
// newest state. While the store is away, that is the state before.
func (e *Endpoint) watchTask(within context.Context, p shim.Principal, t shim.Task, w ResultWaiter) (shim.Task, error) {
	within, leave, err := e.Streams.Enter(within)
	defer leave()
	if err != nil {
		return t, nil // this replica stops
	}
	said := ""
	err = e.Shim.Track(within, p, t.Upstream, []shim.Tracked{{ID: t.ID, Outcome: true}}, func(u shim.Update) error {
		t = *u.Task
		if w.Seen != nil {
			w.Seen(t)
		}
		if t.StatusMessage != said && !t.Status.Final() {
			said = t.StatusMessage
			w.Say(said)
		}
		if w.questions(t) != nil {
			return errTaskAsks
		}
		return nil
	})
	switch {
	case errors.Is(err, errTaskAsks), within.Err() != nil, err == nil && t.Status.Final():
		return t, nil
	case err == nil: // it is gone
		return t, shim.ErrNotFound
	}
	return t, err
}

// howItEnded is how a task ended: with its tool's own result, which may be an error of the tool, or
// else in words.
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

// ProgressTo sends each text that it is given as progress under the client's token, if there is
// one. A client that ignores it misses it.
func ProgressTo(token json.RawMessage, notify func(string, json.RawMessage) error) func(string) {
	n := 0
	return func(message string) {
		if token == nil {
			return
		}
		n++
		_ = notify(mcp.NotifyProgress, wire.ProgressParams(token, float64(n), message))
	}
}

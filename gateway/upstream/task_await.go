package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// This file waits for the end of a server's task. At a legacy server it waits for the answer to
// tasks/result, which comes when the task has ended (L15, L16) and on whose stream the task's
// questions come (L32). If that answer is lost, or refused before the end, tasks/get says whether
// to wait on. A modern server says everything by tasks/get (task_poll.go).

// Bounds of a server's pollInterval.
const (
	pollUsual = time.Second
	pollLeast = 100 * time.Millisecond
	pollMost  = time.Minute
)

// lostTries is how many requests about a task may fail in a row: two to four minutes, in which a
// server may restart.
const lostTries = 10

// pollInterval is how often the server wants to be asked.
func (t *serverTask) pollInterval() time.Duration {
	t.x.checkpoints.mu.Lock()
	defer t.x.checkpoints.mu.Unlock()
	if t.mark.Poll <= 0 {
		return pollUsual
	}
	return min(max(time.Duration(min(t.mark.Poll, pollMost.Milliseconds()))*time.Millisecond, pollLeast), pollMost)
}

// awaitEnd follows the task to its end, and makes its result or its error the answer of the
// exchange. The error says why it has neither.
func (t *serverTask) awaitEnd(ctx context.Context) error {
	t.awaiting = true
	x := t.x
	if x.to.era == mcp.Modern {
		return t.followTask(ctx)
	}
	if x.to.session != "" && x.calls.stream.needStream(ctx) != nil { // its progress may come there, now that the call is answered
		defer x.calls.stream.doneStream()
	}
	for tries := 1; ; tries++ {
		err := t.askResult(ctx)
		if err == nil && x.answer.Error == nil {
			return x.tooLate(ctx)
		}
		if cause := causeOf(ctx); cause != nil {
			return cause
		}
		if se, ok := err.(*transport.StatusError); ok && se.Answer() != nil && !se.IsSessionLost() {
			x.answer, err = reading.ErrorAnswer(se.Answer()), nil
		}
		unclear := err != nil && !isPassing(err)
		if isFinal(err) || unclear && tries > lostTries {
			t.abandonTask(ctx)
			return lostSessionIs(err)
		}
		x.idle.pauseWatch() // each request about the task has a bound of its own
		v, lookErr := t.askState(ctx)
		over, next, err := t.judgeResult(err, v, lookErr, tries)
		if over || err != nil {
			return err
		}
		switch {
		case unclear:
			next = max(next, backoffOf(tries))
		case lookErr == nil && v.refused == nil && !v.status.Final():
			tries = 0
		}
		if err := work.Pause(ctx, next); err != nil {
			return err
		}
		x.idle.resumeWatch()
	}
}

// lostSessionIs makes a lost session the end of the call: the task is out of reach.
func lostSessionIs(err error) error {
	if se, ok := err.(*transport.StatusError); ok && se.IsSessionLost() {
		return &outOfReach{se.UpstreamError()}
	}
	return publicError(err)
}

// judgeResult decides what follows a tasks/result that brought no result: it was answered with an
// error, or err says why it was not answered; v and lookErr are the outcome of tasks/get. over says
// that the answer of the exchange is the outcome of the task. Otherwise next is the pause before
// the next request, or failed says why to give up.
func (t *serverTask) judgeResult(err error, v taskView, lookErr error, tries int) (over bool, next time.Duration, failed error) {
	unknown := v.refused != nil && v.refused.Code == mcp.CodeMethodNotFound // the server has no tasks/get
	if err == nil && unknown && (t.x.answer.Error.Code != mcp.CodeMethodNotFound || tries > lostTries) {
		return true, 0, nil
	}
	if next, failed, unseen := t.judgeUnseen(v, lookErr, tries); unseen {
		return false, next, failed
	}
	switch {
	case v.status == shim.Cancelled:
		t.x.answer = reading.ErrorAnswer(v.cancelledOutcome())
		return true, 0, nil
	case v.status.Final() && err == nil:
		return true, 0, nil // the error is the outcome (L16)
	case v.status.Final() && tries > maxTries:
		return false, 0, publicError(err)
	case v.status.Final():
		return false, backoffOf(tries), nil
	}
	return false, t.pollInterval(), nil // the task runs, and the server answers tasks/result at once
}

// judgeUnseen decides what follows a tasks/get that does not say how the task stands; tries counts
// those in a row. next is the pause before the next request, if that makes sense.
func (t *serverTask) judgeUnseen(v taskView, lookErr error, tries int) (next time.Duration, failed error, unseen bool) {
	se, _ := lookErr.(*transport.StatusError)
	switch {
	case se != nil && se.IsSessionLost():
		return 0, lostSessionIs(lookErr), true
	case lookErr != nil && tries > lostTries:
		return 0, publicError(lookErr), true
	case se != nil:
		return max(backoffOf(tries), min(se.RetryAfter, pollMost)), nil, true
	case lookErr != nil:
		return backoffOf(tries), nil, true
	case v.refused != nil && v.refused.Code == mcp.CodeInvalidParams:
		return 0, &outOfReach{newError(shim.KindClosed, "the server no longer knows the task that it made of the call"+t.noteKept()+"; the work may have been done", v.refused)}, true
	case v.refused != nil && tries > lostTries:
		return 0, protocolError("the server does not say how its task stands", v.refused), true
	case v.refused != nil: // the server is in trouble
		return backoffOf(tries), nil, true
	case len(v.status.From()) == 0: // the status is unknown
		return 0, protocolError("the server's task has a status that is none", nil), true
	}
	return 0, nil, false
}

// noteKept says how long the server keeps the task, if it has said so.
func (t *serverTask) noteKept() string {
	t.x.checkpoints.mu.Lock()
	defer t.x.checkpoints.mu.Unlock()
	if t.mark.TTL <= 0 {
		return ""
	}
	return fmt.Sprintf(" (it keeps it for %v)", time.Duration(t.mark.TTL)*time.Millisecond)
}

// taskView is a server's report of its task: the state, or an error. Its bytes alias the server's
// answer.
type taskView struct {
	status    shim.Status
	message   string
	poll, ttl int64 // milliseconds, 0 if missing
	// A modern server adds its questions and the outcome.
	whole, result, failure json.RawMessage
	refused                *jsonrpc.Error
}

// viewNames are the members of a Task in both eras, and those of a modern one's outcome.
var viewNames = []string{"status", "statusMessage", "pollInterval", "pollIntervalMs", "ttl", "ttlMs", "result", "error"}

// viewOf reads a Task, in one pass, as the result may be large.
func viewOf(task json.RawMessage) taskView {
	var found [8]json.RawMessage
	jsonrpc.Pick(task, viewNames, found[:])
	status, _ := jsonrpc.String(found[0])
	v := taskView{status: shim.Status(status), whole: task, result: found[6], failure: found[7]}
	v.message, _ = jsonrpc.String(found[1])
	v.poll = cmp.Or(readInteger(found[3]), readInteger(found[2]))
	v.ttl = cmp.Or(readInteger(found[5]), readInteger(found[4]))
	return v
}

// cancelledOutcome is the outcome of a task that the server itself has cancelled (L19).
func (v taskView) cancelledOutcome() *jsonrpc.Error {
	text := "the server cancelled the call"
	if v.message != "" {
		text = fmt.Sprintf("%s: %s", text, v.message)
	}
	return &jsonrpc.Error{Code: mcp.CodeInternal, Message: text}
}

func (t *serverTask) askState(ctx context.Context) (taskView, error) {
	m, err := t.askServer(forward.For(ctx, forward.Later), mcp.MethodTasksGet, t.withTaskID())
	if err != nil || m.Error != nil {
		return taskView{refused: m.Error}, err
	}
	return viewOf(m.Result), nil
}

// askServer makes a request about the task that is answered at once. A call may need many, so they
// have no spans, and the bytes of an answer are given back before it returns. The bound is on the
// silence of the server, since an answer may be large, and any transport may lose it.
func (t *serverTask) askServer(ctx context.Context, method string, params []byte) (jsonrpc.Message, error) {
	y := t.x.besideRequest(method, params)
	y.unseen, y.patience = true, t.x.w.cfg.StartTimeout
	m, err := y.runRequest(budget.With(ctx, nil))
	if se, ok := err.(*transport.StatusError); ok && se.Answer() != nil && !se.IsSessionLost() {
		return jsonrpc.Message{Kind: jsonrpc.ErrorResponse, Error: se.Answer()}, nil
	}
	return m, err
}

func (t *serverTask) withTaskID() []byte {
	return append(jsonrpc.AppendString([]byte(`{"taskId":`), t.x.checkpoints.taskID()), '}')
}

// askResult asks for the outcome, and handles the server's messages until it is there. Errors may
// be *transport.StatusError.
func (t *serverTask) askResult(ctx context.Context) error {
	in, err := t.openResult(ctx)
	if err != nil {
		return err
	}
	return t.x.readUntilAnswer(ctx, in)
}

// openResult opens the stream of a tasks/result: the one that a checkpoint names, once, and then
// new ones. A server sends each message on one stream only (X5), so a new stream lacks what the old
// one still has.
func (t *serverTask) openResult(ctx context.Context) (transport.Stream, error) {
	x := t.x
	x.res = resumption{x: x}
	if x.checkpoints.state.Last != "" && t.mark.Wait != "" && !t.reopened {
		t.reopened = true
		x.setID(t.mark.Wait)
		if in, err := x.res.reconnectUntilOver(ctx, 0); err == nil {
			return in, nil
		}
		if err := causeOf(ctx); err != nil {
			return nil, err
		}
	}
	t.reopened = true
	id := x.w.nextID(x.to)
	x.setID(id)
	x.checkpoints.amendCheckpoint(func(c *checkpoint) { c.Last, t.mark.Wait = "", id })
	x.checkpoints.unnoted = false
	in, err := x.postRequest(forward.For(x.life, forward.Later), mcp.MethodTasksResult, jsonrpc.AppendRequest(nil, jsonrpc.TextID(id), mcp.MethodTasksResult, t.withTaskID()))
	if err != nil {
		return nil, x.judgeError(ctx, err)
	}
	return in, nil
}

// awaitsAnswer reports whether the answer to the request of this id is awaited. Other goroutines may call it.
func (x *exchange) awaitsAnswer(id jsonrpc.ID) bool {
	x.checkpoints.mu.Lock()
	defer x.checkpoints.mu.Unlock()
	return id.Equal(jsonrpc.TextID(x.id))
}

// setID sets the id of the request whose answer is read from now on.
func (x *exchange) setID(id string) {
	x.checkpoints.mu.Lock()
	x.id = id
	x.checkpoints.mu.Unlock()
	if x.calls != nil {
		x.calls.followStream(id, x)
	}
}

// namedSoon is how long a cancelled call of a modern server with tasks waits for the name of a
// task. Only then does the connection end, by which such a server hears of the cancellation.
const namedSoon = 500 * time.Millisecond

// cancelTask ends the task at the server (L28, T41). It waits a little for a task that the server
// is just making, since later it could not be ended. It reports false if the server has named no
// task.
func (t *serverTask) cancelTask(ctx context.Context) bool {
	// The answer to the call wakes it. After naming the call is cancelled like one without a task.
	work.PauseUntil(t.settled, t.naming)
	if t.x.checkpoints.taskID() == "" {
		return false
	}
	t.abandonTask(ctx)
	return true
}

// abandonTask tells the server, once, that the task has lost its caller. The task may already be
// over.
func (t *serverTask) abandonTask(ctx context.Context) {
	t.telling.Take()
	defer t.telling.Give()
	if t.told {
		return
	}
	t.told = true
	ctx, cancel := outliveCaller(forward.For(ctx, forward.Brought), cancelTimeout)
	defer cancel()
	if _, err := t.x.besideRequest(mcp.MethodTasksCancel, t.withTaskID()).runRequest(ctx); err != nil {
		t.x.w.log.Debug("cancellation was not delivered", "err", err)
	}
}

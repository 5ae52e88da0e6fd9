package upstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/job"
)

// This file follows the job that a call has started at the server (design.md 0.34). The id in the answer goes into the
// checkpoint of the call, as that of a server's task does (task.go). From then on the status tool is called in place of
// tasks/get (task_poll.go), as a call of its own that needs no connection in between:
//
//	start ──▶ id ──▶ checkpoint ──▶ pause ──▶ status ──▶ done ──▶ result ──▶ the reply
//	                                  ▲          │
//	                                  └──────────┴ running, or not to be learned
//
// The end of the caller cancels the job, unless another replica goes on with it.

// jobCall is a call that starts a job.
type jobCall struct {
	h     *ServerClient
	r     shim.Request
	sink  shim.Sink
	rules *job.Rules
	mark  job.Mark
	era   mcp.Era // of the call that has started the job

	asked    *job.Call     // the tool that is asked next: status, or result
	next     time.Duration // until then
	interval time.Duration // between two questions

	said     string  // the last status message that was handed on
	progress float64 // the last progress that was handed on
	told     bool    // something was handed on
	warned   bool    // the log has an unknown status
	failures int     // questions in a row that were not answered
}

func (h *ServerClient) newJobCall(r shim.Request, s shim.Sink) *jobCall {
	if s == nil {
		s = discard{}
	}
	if r.Session.Key == "" && !h.wire.cfg.Shared {
		r.Session.Key = "job " + rand.Text() // a job may end with the session that has started it
	}
	return &jobCall{h: h, r: r, sink: s, rules: r.Job}
}

// callForJob is Call for a call that starts a job.
func (h *ServerClient) callForJob(ctx context.Context, r shim.Request, s shim.Sink) (reply shim.Reply, err error) {
	j := h.newJobCall(r, s)
	defer j.leaveSession(ctx, r.Session)
	var over bool
	_ = work.Apart(func() error { // for the sake of the stack, as in awaitEnd
		c := &call{h: h, r: j.r, sink: j.sink}
		starting, stop := endLater(ctx, cancelTimeout)
		reply, err = c.runAttempts(starting)
		stop()
		j.era = c.at.era
		reply, over, err = j.takeAnswer(ctx, c.at, reply, err)
		return nil
	})
	if !over {
		reply, err = j.awaitEnd(ctx, j.rules.Interval)
	}
	return reading.ShowName(r, reply), err
}

// resumeJob is Resume for a call that starts a job, from a checkpoint with the job or from one before.
func (h *ServerClient) resumeJob(ctx context.Context, r shim.Request, c checkpoint, s shim.Sink) (reply shim.Reply, err error) {
	j := h.newJobCall(r, s)
	j.era = mcp.EraOf(c.Version)
	defer j.leaveSession(ctx, r.Session)
	if c.Job == nil {
		reply, err = h.resumeCall(ctx, j.r, c, j.sink)
		at := target{era: j.era, version: c.Version, session: c.Session, cookie: c.Cookie, gen: c.Generation}
		var over bool
		if reply, over, err = j.takeAnswer(ctx, at, reply, err); !over {
			reply, err = j.awaitEnd(ctx, j.rules.Interval)
		}
		return reading.ShowName(r, reply), err
	}
	if j.era == mcp.Legacy && c.Session != "" && h.wire.cfg.Transport == nil && !h.wire.isLocal() {
		ses, _ := h.sessions.adoptSession(ctx, j.r.Session, c.generationOf())
		defer ses.releaseSession()
	}
	j.mark = *c.Job
	// Those who adopt many jobs at once do not ask for all of them at once.
	reply, err = j.awaitEnd(ctx, mathrand.N(j.rules.Interval+1))
	return reading.ShowName(r, reply), err
}

// endLater is ctx that lasts a little longer: a job that the server is just starting could not be cancelled without its
// id.
func endLater(ctx context.Context, d time.Duration) (later context.Context, stop func()) {
	later, end := context.WithCancelCause(context.WithoutCancel(ctx))
	unfollow := context.AfterFunc(ctx, func() {
		if !isDetached(ctx) {
			work.PauseUntil(later.Done(), d)
		}
		end(context.Cause(ctx))
	})
	return later, func() {
		unfollow()
		end(nil)
	}
}

// leaveSession ends the session that was made for the job, unless another replica goes on in it. given is that of the
// caller.
func (j *jobCall) leaveSession(ctx context.Context, given shim.Session) {
	if j.era != mcp.Legacy {
		return
	}
	ses := j.h.sessions.findSession(ctx, j.r.Session)
	switch {
	case ses == nil:
		return
	case isDetached(ctx):
		ses.retainSession()
	case given.Key != j.r.Session.Key:
		j.h.sessions.endKey(ctx, j.r.Session.Key)
	}
	ses.releaseSession()
}

// takeAnswer keeps the job that the answer to the call names. Without one the call is over.
func (j *jobCall) takeAnswer(ctx context.Context, at target, reply shim.Reply, err error) (outcome shim.Reply, over bool, failed error) {
	if err != nil || reply.Error != nil || reply.InputRequired || reply.Round != nil || reply.IsError {
		if ended := causeOf(ctx); ended != nil && err != nil {
			return shim.Reply{}, true, ended
		}
		return reply, true, err
	}
	mark, wrong := j.rules.Begin(reply.Result, j.r.Params)
	if wrong != nil {
		failed := protocolError(wrong.Error()+"; the work may have been begun", nil)
		failed.Said = firstText(reply.Result)
		return shim.Reply{}, true, failed
	}
	j.mark = mark
	c := at.beginCheckpoint("")
	c.Job = &j.mark
	if err := j.sink.Checkpoint(c.encodeCheckpoint())(ctx); err != nil {
		j.h.wire.log.Debug("checkpoint was not taken", "err", err)
	}
	return shim.Reply{}, false, nil
}

// firstText is the begin of what a result says.
func firstText(result json.RawMessage) string {
	blocks, _ := jsonrpc.Get(result, "content")
	for block := range jsonrpc.Elements(blocks) {
		if text, ok := jsonrpc.GetString(block, "text"); ok {
			return clipWords(text)
		}
	}
	return ""
}

// clipWords is the begin of what a server says, for a message.
func clipWords(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// awaitEnd asks how the job stands until it is over, first after next, and returns its outcome. A goroutine that waits
// keeps its stack, so the questions are asked apart.
func (j *jobCall) awaitEnd(ctx context.Context, next time.Duration) (reply shim.Reply, err error) {
	j.asked, j.interval, j.next = &j.rules.Status, j.rules.Interval, next
	for over := false; !over; {
		j.leavePlace()
		if work.Pause(ctx, j.next) != nil || j.takePlace(ctx) != nil {
			return j.endEarly(ctx)
		}
		_ = work.Apart(func() error {
			reply, over, err = j.askOnce(ctx)
			return nil
		})
	}
	return reply, err
}

// askOnce asks how the job stands, or for its result, and returns its outcome if it is over.
func (j *jobCall) askOnce(ctx context.Context) (outcome shim.Reply, over bool, err error) {
	reply, err := j.callTool(ctx, j.asked)
	if ctx.Err() != nil {
		outcome, err = j.endEarly(ctx)
		return outcome, true, err
	}
	if wait, again, failed := j.judgeUnanswered(ctx, reply, err); again || failed != nil {
		j.next = max(wait, j.interval)
		return shim.Reply{}, failed != nil, failed
	}
	if j.asked == j.rules.Result {
		outcome, err = j.takeOutcome(ctx, reply)
		return outcome, true, err
	}
	state := j.rules.Read(reply.Result, reply.IsError)
	j.countPoll(ctx, string(state.Phase))
	switch state.Phase {
	case job.Done:
		j.failures = 0
		if j.rules.Result != nil {
			j.asked, j.next, j.interval = j.rules.Result, 0, j.rules.Interval
			return shim.Reply{}, false, nil
		}
		outcome, err = j.takeOutcome(ctx, reply)
	case job.Failed:
		reply.Result, reply.IsError = jsonrpc.With(reply.Result, json.RawMessage("true"), "isError"), true
		outcome, err = j.takeOutcome(ctx, reply)
	case job.Cancelled:
		outcome.Error = reading.ErrorOf(taskView{message: state.Message}.cancelledOutcome())
	case job.Lost:
		err = j.lost()
	case job.Unread:
		j.next = max(j.noteFailure("its tool answers with an error", 0), j.interval)
		return shim.Reply{}, false, nil
	default:
		j.tellState(state)
		j.next = cmp.Or(state.RetryAfter, j.interval)
		j.interval = min(j.interval+j.interval/2, max(j.rules.MaxInterval, j.rules.Interval))
		return shim.Reply{}, false, nil
	}
	return outcome, true, err
}

// newToolCall prepares a call of a job tool for the job. Such calls cannot ask anything.
func (j *jobCall) newToolCall(tool *job.Call) *call {
	r := shim.Request{Method: mcp.MethodToolsCall, Params: tool.Params(j.mark), Name: tool.Tool, Session: j.r.Session}
	return &call{h: j.h, r: r, sink: discard{}}
}

// callTool asks how the job stands, or for its result.
func (j *jobCall) callTool(ctx context.Context, tool *job.Call) (shim.Reply, error) {
	c := j.newToolCall(tool)
	c.patience = j.h.wire.cfg.StartTimeout
	if tool == j.rules.Result {
		c.patience = cmp.Or(j.h.wire.cfg.IdleTimeout, j.r.Within, resultPatience) // it may have to be made
	}
	return c.runAttempts(budget.With(forward.For(ctx, forward.Later), nil)) // the bytes of all answers would add up
}

// resultPatience bounds the silence of a result tool in a call without bounds.
const resultPatience = 24 * time.Hour

// judgeUnanswered decides what follows an answer that is no result: the job is asked for again, after wait at the
// earliest, or has failed.
func (j *jobCall) judgeUnanswered(ctx context.Context, reply shim.Reply, err error) (wait time.Duration, again bool, failed error) {
	up, ofServer := errors.AsType[*shim.UpstreamError](err)
	switch {
	case ofServer && up.Kind == shim.KindTooLarge:
		j.cancelJob(ctx)
		return 0, false, up
	case ofServer:
		return j.noteFailure(up.TellClient(), time.Duration(up.RetryAfterMs)*time.Millisecond), true, nil
	case err != nil:
		return j.noteFailure(err.Error(), 0), true, nil
	case reply.Error != nil && j.rules.Forgets(reply.Error.Message):
		return 0, false, j.lost()
	case reply.Error != nil:
		return j.noteFailure(reply.Error.Message, 0), true, nil
	case reply.InputRequired:
		return j.noteFailure("its tool asks for input", 0), true, nil
	}
	return 0, false, nil
}

// Bounds of the pauses after a question that was not answered.
const (
	mostRetryAfter = time.Hour
	failuresTold   = 3 // in a row, before the owner of the job hears of them
)

// noteFailure notes a question that was not answered, and returns how long to wait before the next one.
func (j *jobCall) noteFailure(why string, retryAfter time.Duration) time.Duration {
	j.countPoll(context.Background(), string(job.Unread))
	if j.failures++; j.failures >= failuresTold {
		j.tell(fmt.Sprintf("the server does not say how the job stands, and is asked again: %s", clipWords(why)), nil)
	}
	if j.failures == failuresTold {
		j.h.wire.log.Warn("a job is asked for again and again", "tool", j.r.Name, "err", why)
	}
	return max(backoffOf(j.failures), min(retryAfter, mostRetryAfter))
}

// lost is the outcome of a job that the server no longer knows.
func (j *jobCall) lost() error {
	return newError(shim.KindClosed, fmt.Sprintf("the server no longer knows the job %s; the work may have been done", j.name()), nil)
}

// name is the id of the job, for a text.
func (j *jobCall) name() string {
	text, ok := jsonrpc.String(j.mark.ID)
	if !ok {
		text = string(j.mark.ID)
	}
	return clipWords(text)
}

// takeOutcome makes an answer the reply of the call, which holds its bytes from now on.
func (j *jobCall) takeOutcome(ctx context.Context, reply shim.Reply) (shim.Reply, error) {
	if err := takeRoom(ctx, int64(len(reply.Result))); err != nil {
		return shim.Reply{}, err
	}
	return reply, nil
}

// tellState hands on what is new of the job.
func (j *jobCall) tellState(s job.State) {
	if j.failures = 0; s.Unknown != "" && !j.warned {
		j.warned = true
		j.h.wire.log.Warn("a job has a status that is in no list of its tool's job, and counts as running", "tool", j.r.Name, "status", s.Unknown)
	}
	j.tell(s.Message, s.Progress)
}

// tell hands on a message and a progress as progress of the call, unless they were the last that was said. Where the
// server counts nothing, the messages are counted.
func (j *jobCall) tell(message string, progress *float64) {
	message = cmp.Or(message, j.said)
	if j.told && message == j.said && (progress == nil || *progress == j.progress) || message == "" && progress == nil {
		return
	}
	j.told, j.said = true, message
	if j.progress++; progress != nil {
		j.progress = *progress
	}
	raw := strconv.AppendFloat([]byte(`{"progressToken":"job","progress":`), j.progress, 'f', -1, 64)
	if message != "" {
		raw = jsonrpc.AppendString(append(raw, `,"message":`...), message)
	}
	raw = append(raw, '}')
	j.sink.Progress(shim.Progress{Progress: j.progress, Message: message, Raw: raw, Status: true})
}

// endEarly ends the following of the job, since its caller has ended. The job is cancelled, unless another replica goes
// on with it.
func (j *jobCall) endEarly(ctx context.Context) (shim.Reply, error) {
	cause := context.Cause(ctx)
	if isDetached(ctx) {
		return shim.Reply{}, cause
	}
	refused := j.cancelJob(ctx)
	if up, ok := errors.AsType[*shim.UpstreamError](cause); ok && refused != "" {
		more := *up
		more.Message, more.Err = fmt.Sprintf("%s; the job %s may go on at the server: %s", up.Message, j.name(), refused), cause
		return shim.Reply{}, &more
	}
	return shim.Reply{}, cause
}

// cancelJob tells the server, once, that nobody waits for the job. refused says why the job may go on, "" if it ends.
func (j *jobCall) cancelJob(ctx context.Context) (refused string) {
	tool := j.rules.Cancel
	if tool == nil {
		return "it has no tool that cancels it"
	}
	ctx, stop := outliveCaller(budget.With(forward.For(ctx, forward.Brought), nil), cancelTimeout)
	defer stop()
	reply, err := j.newToolCall(tool).runAttempts(ctx)
	switch {
	case err != nil:
		refused = "it was not told to cancel it"
	case reply.Error != nil:
		refused = "it refused to cancel it: " + clipWords(reply.Error.Message)
	case reply.IsError:
		refused = "it refused to cancel it: " + firstText(reply.Result)
	}
	if refused != "" {
		j.h.wire.log.Warn("a job was not cancelled", "tool", j.r.Name, "err", cmp.Or(err, errors.New(refused)))
	}
	return refused
}

// countPoll counts a question about the job.
func (j *jobCall) countPoll(ctx context.Context, phase string) { j.h.wire.metrics.Polled(ctx, phase) }

// leavePlace and takePlace give back, and take, the place of the call among those in flight.
func (j *jobCall) leavePlace() {
	if p, ok := j.sink.(shim.Placed); ok {
		p.LeavePlace()
	}
}

func (j *jobCall) takePlace(ctx context.Context) error {
	if p, ok := j.sink.(shim.Placed); ok {
		return p.TakePlace(ctx)
	}
	return nil
}

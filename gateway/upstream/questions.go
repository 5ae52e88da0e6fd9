package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// gather is how long a question waits for further ones, so that they reach a client together (design.md
// 0.18).
const gather = 50 * time.Millisecond

// headPatience bounds the wait for the head of a resumed stream; after it the open questions of the call
// are asked. Servers of the Go SDK (1.8.0) send the head with the first event, and may need the answer to
// such a question before they have an event.
const headPatience = 500 * time.Millisecond

// errWithdrawn is the cause that ends a question.
var errWithdrawn = errors.New("the server no longer waits for an answer")

// questions is the mailbox of one call: the server's questions for the call's client. They come from the
// stream of the call, the GET stream of the session, or the checkpoint of an earlier replica. A single
// goroutine puts the questions to the client and posts the answers; it runs while there is something to ask.
// So the goroutines that read the streams never wait for a client.
//
// A mailbox belongs to its exchange. mu guards it. The questions themselves are in the exchange's checkpoint, from when
// they are heard until they are settled; pending.stage says how far each is.
type questions struct {
	x      *exchange
	caller context.Context // that of the call

	mu      sync.Mutex
	ready   bool          // the questions may be asked
	over    bool          // the call is over, and takes no more questions
	held    bool          // the GET stream of the session is held
	routed  bool          // questions on that stream may come here
	settled chan struct{} // a signal for restUntilAnswered; nil before its first use

	busy bool            // the goroutine runs
	ctx  context.Context // that of the goroutine; ends with the call
	end  context.CancelCauseFunc
	work sync.WaitGroup
}

// startAsking lets the questions be asked. If the client can be asked anything, the call also hears the
// questions on the session's GET stream, which is opened if necessary. The channel is closed once that has
// succeeded or failed; it is nil for a call that leaves that stream alone.
func (q *questions) startAsking() (opened <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ready || q.over {
		return nil
	}
	q.ready = true
	q.askSoon()
	x := q.x
	if !x.asks || !mcp.MayBeAsked(x.caller.Capabilities) {
		return nil
	}
	if x.to.session != "" {
		opened = x.calls.stream.needStream(q.caller)
		q.held = opened != nil
	}
	if q.routed = q.held || x.task != nil && x.calls != nil; q.routed {
		x.calls.addCall(x)
	}
	return opened
}

// quitAsking ends the asking. A detached call takes its questions along in its checkpoint. Otherwise a
// question of the GET stream is refused; one of the call's own stream ends with the call.
func (q *questions) quitAsking() {
	q.mu.Lock()
	q.over = true
	if q.x.checkpoints.hasWaiting() {
		q.beginAsking()
	}
	q.mu.Unlock()
	if q.routed {
		q.x.calls.removeCall(q.x)
	}
	if q.end != nil {
		q.end(errWithdrawn)
		q.work.Wait()
	}
	never := q.x.checkpoints.moveQuestions(questionSettled, questionWaiting)
	endShown(never)
	switch {
	case len(never) == 0:
	case isDetached(q.caller):
		q.x.checkpoints.saveCheckpoint(q.caller)
	default:
		_ = q.postAnswers(never, nil, errWithdrawn)
	}
	if q.held {
		q.x.calls.stream.doneStream()
	}
}

// addQuestion takes a request of the server as a question of this call. It returns an error for the server if
// the client cannot be asked that.
func (q *questions) addQuestion(m jsonrpc.Message, onGET bool) (refused *jsonrpc.Error) {
	if code, ok := reading.CheckAsked(q.x.caller, m.Method, m.Params); !ok {
		return notSupported(code, m.Method)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		return notSupported(mcp.CodeMethodNotFound, m.Method)
	}
	// A replica that goes on from a checkpoint after the event misses the question. So the question is in the
	// checkpoint from now on, before it is asked.
	q.x.checkpoints.amendCheckpoint(func(c *checkpoint) {
		if refused = q.tooMuch(c, m.Params); refused == nil {
			c.noteQuestion(m, onGET)
		}
	})
	if refused == nil {
		q.askSoon()
	}
	return refused
}

// showQuestion has the call show a session question, under its own key. It reports whether the call does.
func (q *questions) showQuestion(p pending) (shown bool) {
	if _, ok := reading.CheckAsked(q.x.caller, p.Method, p.Params); !ok {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		return false
	}
	q.x.checkpoints.amendCheckpoint(func(c *checkpoint) {
		if shown = q.tooMuch(c, p.Params) == nil; shown {
			c.Asked++
			c.Pending = append(c.Pending, p)
		}
	})
	if shown {
		q.askSoon()
	}
	return shown
}

// refuse says why the call must not ask this as well; nil if it may.
func (q *questions) refuse(m jsonrpc.Message) (refused *jsonrpc.Error) {
	q.x.checkpoints.amendCheckpoint(func(c *checkpoint) { refused = q.tooMuch(c, m.Params) })
	return refused
}

// isAsking reports whether the client has questions of this call, which another one would have to wait for.
func (q *questions) isAsking() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.busy
}

// endShown tells session questions that the call shows them no more.
func endShown(shown []pending) {
	for _, p := range shown {
		if p.over != nil {
			close(p.over)
		}
	}
}

// askSoon starts the goroutine that asks, if questions wait. q.mu is held.
func (q *questions) askSoon() {
	if !q.ready || q.busy || !q.x.checkpoints.hasWaiting() {
		return
	}
	q.beginAsking()
	q.busy = true
	q.work.Go(q.askUntilNone)
}

// beginAsking makes the context for the work on the questions. q.mu is held.
func (q *questions) beginAsking() {
	if q.ctx == nil {
		q.ctx, q.end = context.WithCancelCause(q.caller)
	}
}

// askUntilNone asks the waiting questions, those that come together in one Ask, until all are asked. The
// watch over the server's silence pauses meanwhile.
func (q *questions) askUntilNone() {
	q.x.idle.pauseWatch()
	defer q.x.idle.resumeWatch()
	for {
		_ = work.Pause(q.ctx, gather) // nextQuestions sees an end
		asked := q.nextQuestions()
		if asked == nil {
			return
		}
		// This goroutine waits in Ask for long, and keeps the stack that it has grown to.
		_ = work.Apart(func() error { q.x.checkpoints.saveCheckpoint(q.ctx); return nil })
		answers, err := q.x.sink.Ask(q.ctx, questionsOf(asked)...)
		q.settleAnswers(answers, err)
	}
}

// nextQuestions returns the questions to ask now; nil ends the goroutine.
func (q *questions) nextQuestions() (asked []pending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over && q.ctx.Err() == nil {
		asked = q.x.checkpoints.moveQuestions(questionPut, questionWaiting)
	}
	q.busy = asked != nil
	return asked
}

// settleAnswers gives the server the client's answers, and records that they are delivered. A withdrawal
// from now on comes too late.
func (q *questions) settleAnswers(answers []shim.Answer, failed error) {
	asked := q.x.checkpoints.moveQuestions(questionSettled, questionPut, questionWithdrawn)
	defer endShown(asked)
	if failed != nil && isDetached(q.ctx) {
		return // the next replica asks again, under the same keys
	}
	if err := q.postAnswers(asked, answers, failed); err != nil && isDetached(q.ctx) {
		return // the server still waits
	}
	q.x.checkpoints.amendCheckpoint(func(c *checkpoint) { c.closeQuestions(asked) })
	if q.ctx.Err() == nil {
		q.x.checkpoints.saveCheckpoint(q.ctx)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	work.Signal(q.settled)
}

// postAnswers gives the server the answers, except to questions that it has withdrawn.
func (q *questions) postAnswers(asked []pending, answers []shim.Answer, failed error) error {
	if q.x.to.era == mcp.Modern {
		return q.x.task.giveAnswers(asked, answers, failed)
	}
	for i, p := range asked {
		switch {
		case p.stage == questionWithdrawn:
			continue
		case p.Shown: // the question posts its answer
			if failed == nil && i < len(answers) && p.over != nil {
				p.over <- answers[i]
			}
			continue
		case !p.OnGET && isDetached(q.ctx):
			return context.Cause(q.ctx) // the server still waits, for the next replica
		case !p.OnGET && q.ctx.Err() != nil:
			continue // it ended with the call
		}
		err := q.deliverAnswer(responseTo(p, answers, i, failed))
		switch {
		case err == nil:
		case p.OnGET, q.x.checkpoints.taskID() != "" && isPassing(err):
			q.x.w.log.Debug("answer to the server was not delivered", "err", err)
		default:
			q.x.end(err)
			return err
		}
	}
	return nil
}

// deliverAnswer posts a response; for a short time after the call's end, too.
func (q *questions) deliverAnswer(body []byte) error {
	ctx := forward.For(q.ctx, forward.Brought)
	if q.ctx.Err() == nil {
		err := forward.Ready(ctx)
		if err == nil {
			return q.x.w.postAnswer(ctx, forward.For(q.x.life, forward.Brought), q.x.to, body)
		}
		if q.ctx.Err() == nil || isDetached(q.ctx) {
			return err
		}
	}
	ctx, cancel := outliveCaller(ctx, cancelTimeout)
	defer cancel()
	return q.x.w.postAnswer(ctx, ctx, q.x.to, body)
}

// cancelQuestion withdraws the server's request of this id, and reports whether it is one of these
// questions.
func (q *questions) cancelQuestion(id []byte) bool {
	return q.withdrawQuestion(func(p pending) bool { return string(p.ID) == string(id) })
}

// withdrawQuestion takes a question back, and reports whether it is one of these.
func (q *questions) withdrawQuestion(is func(pending) bool) bool {
	key, found := q.dropQuestion(is)
	if key != "" {
		q.x.sink.Withdraw(key)
	}
	return found
}

// dropQuestion removes a waiting question. For a question that is being asked it returns the key.
func (q *questions) dropQuestion(is func(pending) bool) (key string, found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.x.checkpoints.amendCheckpoint(func(c *checkpoint) {
		at := func(s stage) int {
			return slices.IndexFunc(c.Pending, func(p pending) bool { return p.stage == s && is(p) })
		}
		if i := at(questionWaiting); i >= 0 {
			dropped := c.Pending[i : i+1]
			endShown(dropped)
			c.closeQuestions(dropped)
			work.Signal(q.settled)
			found = true
		} else if i := at(questionPut); i >= 0 {
			c.Pending[i].stage = questionWithdrawn
			key, found = c.Pending[i].Key, true
		}
	})
	return key, found
}

// restUntilAnswered waits while questions of the call's own stream are open, until the exchange ends, or
// for maxQuiet, as the server may have withdrawn them. It reports whether any was open.
func (q *questions) restUntilAnswered() (rested bool) {
	q.mu.Lock()
	if q.settled == nil {
		q.settled = make(chan struct{}, 1)
	}
	q.mu.Unlock()
	long := time.NewTimer(maxQuiet)
	defer long.Stop()
	for slices.ContainsFunc(q.x.checkpoints.openQuestions(), func(p pending) bool { return !p.OnGET }) {
		rested = true
		select {
		case <-q.settled:
		case <-long.C:
			return true
		case <-q.x.life.Done():
			return true
		}
	}
	return rested
}

// tooMuch says why a call with this checkpoint must not ask this as well; nil if it may. A question too many is answered
// with an error at once, before anything of it is kept, and the call goes on.
func (q *questions) tooMuch(c *checkpoint, params []byte) *jsonrpc.Error {
	waiting := shim.BytesOf(questionsOf(c.Pending))
	why := q.x.limits.Refuse(c.Asked, len(c.Pending), int64(waiting), shim.Question{Params: params})
	switch {
	case why != "":
	case !q.x.sink.RoomToAsk(waiting + len(params)):
		why = "too large a question: what is kept for this caller, or for all, is at its limit"
	default:
		return nil
	}
	return &jsonrpc.Error{Code: mcp.CodeInternal, Message: why}
}

// noteQuestion notes a request of the server as a question, and gives it its key.
func (c *checkpoint) noteQuestion(m jsonrpc.Message, onGET bool) {
	c.Asked++
	c.Pending = append(c.Pending, pending{
		ID: []byte(m.ID.Raw()), Key: fmt.Sprintf("%s-q%d", c.ID, c.Asked),
		Method: m.Method, Params: bytes.Clone(reading.WithoutRelatedTask(m.Params)), OnGET: onGET,
	})
}

func questionsOf(asked []pending) []shim.Question {
	qs := make([]shim.Question, len(asked))
	for i := range asked {
		q, p := &qs[i], &asked[i]
		q.Key, q.Method, q.Params = p.Key, p.Method, p.Params
	}
	return qs
}

// postAnswer posts a response. It is tried again while ctx lasts, each time under life, for as long as a request waits
// for a server that cannot be reached: the client has answered, and would have to be asked anew.
func (w *wire) postAnswer(ctx, life context.Context, to target, body []byte) (err error) {
	for try, begun := 0, time.Now(); try == 0 || time.Since(begun) < w.cfg.StartTimeout; try++ {
		if try > 0 {
			if err := work.Pause(ctx, backoffOf(try)); err != nil {
				return err
			}
		}
		if err = w.tellSoon(life, to, body); err == nil {
			return nil
		}
		if se, ok := err.(*transport.StatusError); ok && isFinal(se) {
			if se.IsSessionLost() {
				return se.UpstreamError() // proves nothing about the call, which runs
			}
			return protocolError(fmt.Sprintf("the server refused the answer to its question with HTTP status %d", se.Status), se)
		}
		if errors.Is(err, errSlow) && ctx.Err() == nil {
			return newError(shim.KindTimeout, "the server did not take the answer to its question", err)
		}
	}
	return err
}

// responseTo is the JSON-RPC response to question number i. It is an error if there are too few answers.
func responseTo(p pending, answers []shim.Answer, i int, failed error) (body []byte) {
	id := p.requestID()
	var a shim.Answer
	if i < len(answers) {
		a = answers[i]
	}
	switch {
	case errors.Is(failed, shim.ErrNoAsk):
		return refusalOf(id, mcp.CodeMethodNotFound, p.Method)
	case failed == nil && a.Error != nil:
		return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: a.Error.Code, Message: a.Error.Message, Data: a.Error.Data})
	case failed == nil && len(a.Result) > 0:
		return jsonrpc.AppendResult(nil, id, a.Result)
	}
	return notPut(id, "the client could not be asked")
}

// notPut refuses a question that failed to reach its client.
func notPut(id jsonrpc.ID, why string) []byte {
	return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: mcp.CodeInternal, Message: why})
}

func refusalOf(id jsonrpc.ID, code int64, method string) []byte {
	return jsonrpc.AppendError(nil, id, notSupported(code, method))
}

func notSupported(code int64, method string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: code, Message: "the client does not support " + method}
}

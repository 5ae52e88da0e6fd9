package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// This file follows the task that a modern server has made of a call. The answer to tasks/get has all there
// is to know of it: how it stands, its questions, and its outcome (T22 to T27). So the exchange sends
// tasks/get as often as the server wants (T49). tasks/update answers the task's questions.

// errNotAsked is the outcome of a call whose client cannot be asked. It ends the exchange: the answer to a
// question of a modern server is always a result (protocol.md H3).
var errNotAsked = &shim.RPCError{Code: mcp.CodeInternal, Message: "the server asked for input, and the client could not be asked"}

// followTask asks how the task stands until that has ended, and makes the outcome the answer of the exchange.
// The error says why the outcome is missing.
func (t *serverTask) followTask(ctx context.Context) error {
	x := t.x
	x.idle.pauseWatch() // each request has a bound of its own
	defer x.idle.resumeWatch()
	next, tries := t.pollInterval(), 0
	if !t.working {
		next = 0 // the server has something to tell
	}
	for {
		if work.Pause(x.life, next) != nil {
			return t.stopCause(ctx)
		}
		v, err := t.askState(ctx)
		if tries++; err == nil && v.refused == nil {
			tries = 0
		}
		if x.life.Err() != nil || ctx.Err() != nil {
			return t.stopCause(ctx)
		}
		wait, failed, unseen := t.judgeUnseen(v, err, tries)
		if next = wait; unseen && failed == nil {
			continue
		}
		over := false
		if !unseen {
			over, failed = t.takeState(v)
			next = t.pollInterval()
		}
		if over || failed != nil {
			return t.finishFollowing(ctx, failed)
		}
	}
}

// stopCause is why the following of the task stops: the end of its caller, or a question that cannot be
// answered.
func (t *serverTask) stopCause(ctx context.Context) error {
	if cause := causeOf(ctx); cause != nil {
		return cause
	}
	return t.finishFollowing(ctx, context.Cause(t.x.life))
}

// finishFollowing ends the following of the task, with its outcome or because of failed. It cancels a task
// that may still run.
func (t *serverTask) finishFollowing(ctx context.Context, failed error) error {
	if failed == nil {
		return t.x.tooLate(ctx)
	}
	if _, lost := failed.(*outOfReach); lost {
		return failed
	}
	t.abandonTask(ctx)
	if rpc, ok := failed.(*shim.RPCError); ok {
		t.x.answer = reading.ErrorAnswer(&jsonrpc.Error{Code: rpc.Code, Message: rpc.Message, Data: rpc.Data})
		return nil
	}
	return t.x.judgeError(ctx, failed)
}

// takeState takes the status of the task. over says that the answer of the exchange is the outcome of the
// task.
func (t *serverTask) takeState(v taskView) (over bool, failed error) {
	t.x.checkpoints.amendCheckpoint(func(*checkpoint) { t.mark.Poll, t.mark.TTL = v.poll, v.ttl }) // both may change (T20)
	switch v.status {
	case shim.Completed:
		return true, t.takeResult(v.result)
	case shim.Failed:
		m, err := jsonrpc.ParseLenient(slices.Concat([]byte(`{"jsonrpc":"2.0","id":0,"error":`), v.failure, []byte(`}`)))
		if err != nil || m.Error == nil {
			return false, protocolError("the server's task has failed, and the server does not say how", err)
		}
		t.x.answer = reading.ErrorAnswer(m.Error)
		return true, nil
	case shim.Cancelled:
		t.x.answer = reading.ErrorAnswer(v.cancelledOutcome())
		return true, nil
	}
	t.tellStatus(v.message)
	return false, t.takeQuestions(v)
}

// takeResult takes the result of the task (T25). The call holds its bytes from now on.
func (t *serverTask) takeResult(result json.RawMessage) error {
	kind, typed := jsonrpc.Get(result, "resultType")
	if word, _ := jsonrpc.String(kind); !jsonrpc.IsObject(result) || typed && word != mcp.ResultComplete {
		return protocolError("the server's task has ended, and its result is none", nil)
	}
	if err := t.x.TakeRoom(int64(len(result))); err != nil {
		return err
	}
	t.x.answer = reading.ReadAnswer(jsonrpc.Message{Kind: jsonrpc.Result, Result: reading.WithoutRelatedTask(result)})
	return nil
}

// tellStatus hands on a new status message as progress of the call, from which it was made (T44). The server
// has stopped counting progress, so it is counted here.
func (t *serverTask) tellStatus(message string) {
	if message == "" || message == t.said {
		return
	}
	t.said = message
	var raw []byte
	var n float64
	t.x.checkpoints.amendCheckpoint(func(c *checkpoint) {
		t.mark.Told++
		n = t.mark.Told
		raw = jsonrpc.AppendString([]byte(`{"progressToken":`), c.ID)
	})
	raw = strconv.AppendFloat(append(raw, `,"progress":`...), n, 'f', -1, 64)
	raw = append(jsonrpc.AppendString(append(raw, `,"message":`...), message), '}')
	t.x.checkpoints.unnoted = true
	t.x.checkpoints.passProgress(shim.Progress{Progress: n, Message: message, Raw: raw, Status: true})
}

// takeQuestions takes the open questions of the task (T24). It puts new ones to the client, and withdraws
// those that are closed. The error says why the call cannot go on.
func (t *serverTask) takeQuestions(v taskView) error {
	x, round := t.x, &shim.Round{}
	if v.status == shim.InputRequired {
		open, refusal, err := reading.ReadRound(x.caller, v.whole)
		switch {
		case err != nil:
			return err
		case refusal != nil:
			return refusal
		}
		round = open
	}
	for _, p := range x.checkpoints.openQuestions() {
		name, _ := jsonrpc.String(p.ID)
		if !slices.ContainsFunc(round.Questions, func(q shim.Question) bool { return q.Key == name }) && x.asking.cancelQuestion(p.ID) {
			x.checkpoints.amendCheckpoint(func(*checkpoint) { // so that it can be put again
				t.mark.Keys = slices.DeleteFunc(slices.Clone(t.mark.Keys), func(k string) bool { return k == name })
			})
		}
	}
	for _, q := range round.Questions {
		if slices.Contains(t.mark.Keys, q.Key) {
			continue // an answer may be on its way (T34)
		}
		x.checkpoints.amendCheckpoint(func(*checkpoint) { t.mark.Keys = append(t.mark.Keys, q.Key) })
		m := jsonrpc.Message{Kind: jsonrpc.Request, ID: jsonrpc.StringID(q.Key), Method: q.Method, Params: q.Params}
		if refused := x.asking.addQuestion(m, false); refused != nil {
			return &shim.RPCError{Code: mcp.CodeInternal, Message: "the server asked for more than it may: " + refused.Message}
		}
	}
	return nil
}

// giveAnswers gives a modern server the answers to its task's questions, all of them together.
func (t *serverTask) giveAnswers(asked []pending, answers []shim.Answer, failed error) error {
	q := &t.x.asking
	if q.ctx.Err() != nil {
		return context.Cause(q.ctx) // the server learns of the call's end, or another replica goes on with it
	}
	given := make(map[string]json.RawMessage, len(asked))
	for i, p := range asked {
		if p.stage == questionWithdrawn {
			continue
		}
		result, why := inputResponse(p, answers, i, failed)
		if why != nil {
			t.x.end(why)
			return why
		}
		name, _ := jsonrpc.String(p.ID)
		given[name] = result
	}
	if len(given) == 0 {
		return nil
	}
	err := t.sendUpdate(q.ctx, given)
	if err != nil {
		t.x.end(err)
	}
	return err
}

// inputResponse is answer number i, for tasks/update.
func inputResponse(p pending, answers []shim.Answer, i int, failed error) (json.RawMessage, error) {
	if failed != nil || i >= len(answers) {
		return nil, errNotAsked
	}
	a := answers[i]
	if a.Error != nil {
		a = shim.Unanswered(shim.Question{Key: p.Key, Method: p.Method}, "the client did not answer what the server needs to know")
	}
	if a.Error != nil {
		return nil, a.Error
	}
	return a.Result, nil
}

// sendUpdate delivers answers. It may repeat them: the server takes each key once (T36).
func (t *serverTask) sendUpdate(ctx context.Context, answers map[string]json.RawMessage) error {
	ctx = forward.For(ctx, forward.Brought)
	params := reading.WithAnswers(t.withTaskID(), &shim.Retry{Answers: answers})
	for tries := 1; ; tries++ {
		m, err := t.askServer(ctx, mcp.MethodTasksUpdate, params)
		switch {
		case causeOf(ctx) != nil:
			return causeOf(ctx)
		case err == nil && m.Error == nil:
			return nil
		case err == nil:
			return t.judgeRefusal(ctx, m.Error)
		case isFinal(err) && !errors.Is(err, errIdle) || tries > lostTries:
			return publicError(err)
		}
		if err := work.Pause(ctx, backoffOf(tries)); err != nil {
			return err
		}
	}
}

// judgeRefusal decides what a refused answer means. If the task is over or gone, it returns nil: the
// goroutine that follows the task sees that. The server's text stays out, as it may quote the answer.
func (t *serverTask) judgeRefusal(ctx context.Context, rpc *jsonrpc.Error) error {
	v, err := t.askState(ctx)
	if err == nil && (v.refused != nil || v.status.Final()) {
		return nil
	}
	return protocolError("the server refused the answer to its question", fmt.Errorf("JSON-RPC error %d", rpc.Code))
}

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// SEP-1905's streaming (A9): the blocks of a result reach a client as several responses
// to one request, which this gateway pushes, or by tasks/result, with which the client
// pulls them. No block goes both ways (A10): the first pull ends a push.

// errCut: a request needs no more answer. What a client was being pushed it has, gets in
// another way now, or has to ask for.
var errCut = errors.New("the stream is over")

// streamCall answers a call with its task and then with the pieces of its result. Since
// it has a task, the request is no longer in flight: the task is cancelled by
// tasks/cancel only (L28), and goes on when the client goes.
func (e *endpoint) streamCall(ctx context.Context, q *legacyRequest, t shim.Task) (json.RawMessage, error) {
	created := e.legacyCreated(q, t)
	if !q.out.Streams() { // the rest by tasks/result
		q.land()
		return dialect.Legacy.Begun(created, e.firstSegments(q.s.ctx, q, t.ID)), nil
	}
	p, err := q.s.openPush(ctx, q.s.ctx, t.ID, q.log.stream)
	if err != nil {
		return created, nil
	}
	defer p.end()
	q.land()
	first := e.firstSegments(p.ctx, q, t.ID)
	created = dialect.Legacy.Begun(created, first)
	if first.Complete {
		return created, nil
	}
	q.log.pushes(t.ID)
	if q.respond(created) != nil {
		return nil, errCut
	}
	return nil, e.push(p, q, int64(len(first.Blocks)))
}

// firstWait is how long the first answer to a call that streams waits for something to
// go along with the task. It goes with the first piece; a task that is slower to say
// something is shown bare.
const firstWait = 50 * time.Millisecond

// firstSegments are the blocks that the first answer to a call has with its task (A9).
func (e *endpoint) firstSegments(ctx context.Context, q *legacyRequest, id shim.ID) (first dialect.Segments) {
	wait, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	tasks := []shim.Tracked{{ID: id, Show: shim.ShowSegments, From: 1}}
	some := false
	_ = e.shim.Track(wait, q.principal, e.name, tasks, func(u shim.Update) error {
		if some = u.Task == nil || u.Task.Status.Final(); some {
			return errCut // enough
		}
		return nil
	})
	if !some || ctx.Err() != nil {
		return first
	}
	all, err := e.segments(ctx, q, id, 0)
	if err != nil {
		return first // they come later
	}
	return all
}

// respond sends one of several responses. That the client has gone is an error only if
// it cannot come back.
func (q *legacyRequest) respond(result json.RawMessage) error {
	err := q.out.Send(jsonrpc.AppendResult(make([]byte, 0, len(result)+64), q.msg.ID, result))
	if err != nil && (!q.resumes() || errors.Is(err, errTaken)) {
		return err
	}
	return nil
}

// push sends the blocks after a number, as they come, up to the last response, with which
// the task ends (A13–A15), and returns errCut once there is nothing more to answer.
func (e *endpoint) push(p *push, q *legacyRequest, after int64) error {
	ctx, done, err := e.gateway.streams.enter(p.ctx)
	defer done()
	if err != nil {
		return streamLost(p.id)
	}
	defer context.AfterFunc(q.client, func() {
		if !q.resumes() {
			p.stop(errLeft)
		}
	})()
	defer e.askOnResult(ctx, q, p.id, false)()
	tasks := []shim.Tracked{{ID: p.id, Show: shim.ShowSegments, From: after + 1}}
	err = e.shim.Track(ctx, q.principal, e.name, tasks, func(u shim.Update) error {
		if u.Task == nil {
			after = u.First + int64(len(u.Pieces)) - 1
			return q.respond(dialect.Legacy.Segments(dialect.Segments{ID: p.id, First: u.First, Blocks: u.Pieces}))
		}
		if !u.Task.Status.Final() {
			return nil
		}
		end, err := e.segments(ctx, q, p.id, after)
		if err != nil {
			return err
		}
		_ = q.respond(dialect.Legacy.Segments(end)) // who has gone for good misses it
		return errCut
	})
	switch {
	case errors.Is(context.Cause(ctx), shim.ErrDraining) && !errors.Is(err, errCut):
		return streamLost(p.id)
	case ctx.Err() == nil && err != nil && !errors.Is(err, errTaken) && q.client.Err() == nil:
		return err // it ends with an error, and not as if that were all
	}
	return errCut
}

// streamLost is the last response of a stream whose replica stops, or is lost: what the
// client does not have it fetches itself (A12).
func streamLost(id shim.ID) *failure {
	return &failure{Code: mcp.CodeInternal, Message: "the replica that streamed the task " + string(id) +
		" is gone; tasks/result has the rest, with the number of the last block as lastSeqNr", Data: retryAfter(drainRetry.Milliseconds())}
}

// segments are the blocks after a number that are there (A12). Those of a task that
// failed before it had any have the reason in their place (A14).
func (e *endpoint) segments(ctx context.Context, q *legacyRequest, id shim.ID, after int64) (dialect.Segments, error) {
	blocks, t, err := e.shim.Segments(ctx, q.principal, e.name, id, after)
	if err == nil && t.Status == shim.Completed {
		blocks, t, err = e.blocks(ctx, q, id, after)
	}
	if err != nil {
		return dialect.Segments{}, err
	}
	q.op.task(string(id), t.Trace)
	s := dialect.Segments{ID: id, First: after + 1, Blocks: blocks, Complete: t.Status.Final()}
	if s.Failed = t.Status == shim.Failed || t.ToolError; s.Failed && after == 0 && len(blocks) == 0 {
		s.Reason = t.StatusMessage
	}
	return s, nil
}

// blocks are those of the result of a task that has completed, as this client gets it.
// They are the segments, in order (protocol.md 6.4.4), and what a legacy client needs
// besides of a modern server's result.
func (e *endpoint) blocks(ctx context.Context, q *legacyRequest, id shim.ID, after int64) ([]json.RawMessage, shim.Task, error) {
	t, err := e.shim.Get(ctx, q.principal, e.name, id)
	if err != nil || t.Outcome == nil {
		return nil, t, err
	}
	content, _ := jsonrpc.Get(e.legacyToolResult(ctx, q, t.Tool, t.Outcome.Result), "content")
	var blocks []json.RawMessage
	for b := range jsonrpc.Elements(content) {
		if after--; after < 0 {
			blocks = append(blocks, b)
		}
	}
	return blocks, t, nil
}

// pullWish is what a tasks/result of a client that knows segments asks for.
type pullWish struct {
	after  int64 // lastSeqNr; 0: all
	at     bool  // there is a lastSeqNr
	stream bool  // as several responses (protocol.md 6.4.7)
}

func (q *legacyRequest) pullWish() (w pullWish, err error) {
	if w.stream, err = wantsStream(q.msg); err != nil {
		return w, err
	}
	var raw json.RawMessage
	if raw, w.at = jsonrpc.Get(q.msg.Params, "lastSeqNr"); !w.at {
		return w, nil
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if errors.Is(err, strconv.ErrRange) && f > 0 {
		err = nil
	}
	if err != nil || f < 1 || f != math.Trunc(f) {
		return w, invalidParams("params.lastSeqNr must be a whole number from 1 on")
	}
	w.after = int64(min(f, 1<<53))
	return w, nil
}

// resultOfTask answers tasks/result: with the outcome, once there is one, or, where
// the client knows segments and asks for them, with those (A12).
func (e *endpoint) resultOfTask(ctx context.Context, q *legacyRequest) (json.RawMessage, error) {
	if !e.drafts(q.state).streams() {
		return e.awaitLegacyTask(ctx, q)
	}
	w, err := q.pullWish()
	if err != nil {
		return nil, err
	}
	w.stream = w.stream && q.out.Streams()
	if !w.stream && !w.at {
		return e.awaitLegacyTask(ctx, q)
	}
	id, err := q.taskID()
	if err != nil {
		return nil, err
	}
	if _, err := e.shim.Peek(ctx, q.principal, e.name, id); err != nil {
		return nil, err // nothing of it is touched (A17)
	}
	if err := q.s.pull(ctx, id); err != nil {
		return nil, err
	}
	if !w.stream {
		s, err := e.segments(ctx, q, id, w.after)
		return dialect.Legacy.Segments(s), err
	}
	p, err := q.s.openPush(ctx, ctx, id, q.log.stream)
	if err != nil {
		return nil, err
	}
	defer p.end()
	// The client waits for the head of the response.
	q.log.pushes(id)
	return nil, e.push(p, q, w.after)
}

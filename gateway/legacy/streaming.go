package legacy

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"taskgate/gateway/wire"
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
func (q *request) streamCall(ctx context.Context, t shim.Task) (json.RawMessage, error) {
	created := q.created(t)
	if !q.out.Streams() { // the rest by tasks/result
		q.land()
		return dialect.Legacy.Begun(created, q.firstSegments(q.s.ctx, t.ID)), nil
	}
	p, err := q.s.openPush(ctx, q.s.ctx, t.ID, q.log.stream)
	if err != nil {
		return created, nil
	}
	defer p.end()
	q.land()
	first := q.firstSegments(p.ctx, t.ID)
	created = dialect.Legacy.Begun(created, first)
	if first.Complete {
		return created, nil
	}
	q.log.pushes(t.ID)
	switch err := q.respond(created); {
	case errors.Is(err, errNoLog):
		return nil, streamLost(t.ID)
	case err != nil:
		return nil, errCut
	}
	return nil, q.push(p, int64(len(first.Blocks)))
}

// firstWait is how long the first answer to a call that streams waits for something to
// go along with the task. It goes with the first piece; a task that is slower to say
// something is shown bare.
const firstWait = 50 * time.Millisecond

// firstSegments are the blocks that the first answer to a call has with its task (A9).
func (q *request) firstSegments(ctx context.Context, id shim.ID) (first dialect.Segments) {
	wait, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	tasks := []shim.Tracked{{ID: id, Show: shim.ShowSegments, From: 1}}
	some := false
	_ = q.h.Shim.Track(wait, q.principal, q.h.Name, tasks, func(u shim.Update) error {
		if some = u.Task == nil || u.Task.Status.Final(); some {
			return errCut // enough
		}
		return nil
	})
	if !some || ctx.Err() != nil {
		return first
	}
	all, err := q.segments(ctx, id, 0)
	if err != nil {
		return first // they come later
	}
	return all
}

// respond sends one of several responses. That the client has gone is an error only if
// it cannot come back. If it can, a response that the log does not have is errNoLog.
func (q *request) respond(result json.RawMessage) error {
	message := jsonrpc.AppendResult(make([]byte, 0, len(result)+64), q.msg.ID, result)
	if q.resumes() {
		return q.log.send(message)
	}
	return q.out.Send(message)
}

// push sends the blocks after a number, as they come, up to the last response, with which
// the task ends (A13–A15), and returns errCut once there is nothing more to answer.
func (q *request) push(p *push, after int64) error {
	ctx, done, err := q.h.Streams.Enter(p.ctx)
	defer done()
	if err != nil {
		return streamLost(p.id)
	}
	defer context.AfterFunc(q.client, func() {
		if !q.resumes() {
			p.stop(errLeft)
			return
		}
		q.log.tells(askNote{Task: p.id, Streams: true, Gone: true})
	})()
	look, stop := q.askOnResult(ctx, true)
	defer stop()
	tasks := []shim.Tracked{{ID: p.id, Show: shim.ShowSegments, From: after + 1}}
	err = q.h.Shim.Track(ctx, q.principal, q.h.Name, tasks, func(u shim.Update) error {
		if u.Task == nil {
			after = u.First + int64(len(u.Pieces)) - 1
			return q.respond(dialect.Legacy.Segments(dialect.Segments{ID: p.id, First: u.First, Blocks: u.Pieces}))
		}
		if look(*u.Task); !u.Task.Status.Final() {
			return nil
		}
		end, err := q.segments(ctx, p.id, after)
		if err != nil {
			return err
		}
		_ = q.respond(dialect.Legacy.Segments(end)) // who has gone for good misses it
		return errCut
	})
	switch {
	case errors.Is(err, errNoLog), errors.Is(context.Cause(ctx), shim.ErrDraining) && !errors.Is(err, errCut):
		return streamLost(p.id)
	case ctx.Err() == nil && err != nil && !errors.Is(err, errTaken) && q.client.Err() == nil:
		return err // it ends with an error, and not as if that were all
	}
	return errCut
}

// streamLost is the last response of a stream whose replica stops, or is lost, or cannot
// keep what it sends: what the client does not have it fetches itself (A12).
func streamLost(id shim.ID) *wire.Failure {
	return &wire.Failure{Code: mcp.CodeInternal, Message: "the stream of the task " + string(id) +
		" is lost; tasks/result has the rest, with the number of the last block as lastSeqNr", Data: wire.RetryAfter(wire.DrainRetry.Milliseconds())}
}

// segments are the blocks after a number that are there (A12). Those of a task that
// failed before it had any have the reason in their place (A14).
func (q *request) segments(ctx context.Context, id shim.ID, after int64) (dialect.Segments, error) {
	blocks, t, err := q.h.Shim.Segments(ctx, q.principal, q.h.Name, id, after)
	if err == nil && t.Status == shim.Completed {
		blocks, t, err = q.blocks(ctx, id, after)
	}
	if err != nil {
		return dialect.Segments{}, err
	}
	q.op.Task(string(id), t.Trace)
	s := dialect.Segments{ID: id, First: after + 1, Blocks: blocks, Complete: t.Status.Final()}
	if s.Failed = t.Status == shim.Failed || t.ToolError; s.Failed && after == 0 && len(blocks) == 0 {
		s.Reason = t.StatusMessage
	}
	return s, nil
}

// blocks are those of the result of a task that has completed, as this client gets it.
// They are the segments, in order (protocol.md 6.4.4), and what a legacy client needs
// besides of a modern server's result.
func (q *request) blocks(ctx context.Context, id shim.ID, after int64) ([]json.RawMessage, shim.Task, error) {
	t, err := q.h.Shim.Get(ctx, q.principal, q.h.Name, id)
	if err != nil || t.Outcome == nil {
		return nil, t, err
	}
	content, _ := jsonrpc.Get(q.toolResult(ctx, t.Tool, t.Outcome.Result), "content")
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

func (q *request) pullWish() (w pullWish, err error) {
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
		return w, wire.InvalidParams("params.lastSeqNr must be a whole number from 1 on")
	}
	w.after = int64(min(f, 1<<53))
	return w, nil
}

// resultOfTask answers tasks/result: with the outcome, once there is one, or, where
// the client knows segments and asks for them, with those (A12).
func (q *request) resultOfTask(ctx context.Context) (json.RawMessage, error) {
	if !q.h.drafts(q.state).streams() {
		return q.awaitTask(ctx)
	}
	w, err := q.pullWish()
	if err != nil {
		return nil, err
	}
	w.stream = w.stream && q.out.Streams()
	if !w.stream && !w.at {
		return q.awaitTask(ctx)
	}
	id, err := q.taskID()
	if err != nil {
		return nil, err
	}
	if _, err := q.h.Shim.Peek(ctx, q.principal, q.h.Name, id); err != nil {
		return nil, err // nothing of it is touched (A17)
	}
	if err := q.s.pull(ctx, id); err != nil {
		return nil, err
	}
	if !w.stream {
		s, err := q.segments(ctx, id, w.after)
		return dialect.Legacy.Segments(s), err
	}
	p, err := q.s.openPush(ctx, ctx, id, q.log.stream)
	if err != nil {
		return nil, err
	}
	defer p.end()
	// The client waits for the head of the response.
	q.log.pushes(id)
	return nil, q.push(p, w.after)
}

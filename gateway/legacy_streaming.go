package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// SEP-1905's streaming (A9): the blocks of a result reach a client as several responses
// to one request, which this gateway pushes, or by tasks/result, with which the client
// pulls them. No block goes both ways (A10): the first pull ends a push.

// errCut: what a client was being pushed it gets in another way now, or has to ask for.
var errCut = errors.New("the rest of the stream has to be asked for")

// streamCall answers a call with its task and then with the pieces of its result. Since
// it has a task, the request is no longer in flight: the task is cancelled by
// tasks/cancel only (L28), and goes on when the client goes.
func (e *endpoint) streamCall(ctx context.Context, q *legacyRequest, t shim.Task) (json.RawMessage, error) {
	created := e.legacyCreated(q, t)
	if !q.out.Streams() { // the rest by tasks/result
		q.land()
		return dialect.Legacy.Begun(created, e.firstSegments(q.s.ctx, q, t.ID)), nil
	}
	p, err := q.s.openPush(ctx, q.s.ctx, t.ID)
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
	q.log.begin()
	if q.respond(created) != nil {
		return nil, errCut
	}
	q.log.answered(q.msg.ID)
	return e.push(p, q, int64(len(first.Blocks)))
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
	if err != nil && !q.resumes() {
		return err
	}
	return nil
}

// push sends the blocks after a number, as they come, and returns the last response,
// with which the task ends (A13–A15).
func (e *endpoint) push(p *push, q *legacyRequest, after int64) (json.RawMessage, error) {
	ctx, done, err := e.gateway.streams.enter(p.ctx)
	defer done()
	if err != nil {
		return nil, errCut
	}
	defer context.AfterFunc(q.client, func() {
		if !q.resumes() {
			p.stop(errLeft)
		}
	})()
	defer e.askOnResult(ctx, q, p.id, (*courier).lookLater)()
	var last json.RawMessage
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
		if err == nil {
			last = dialect.Legacy.Segments(end)
		}
		return err
	})
	switch {
	case last != nil:
		return last, nil
	case ctx.Err() == nil && err != nil && q.client.Err() == nil:
		return nil, err // it ends with an error, and not as if that were all
	}
	return nil, errCut
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
	p, err := q.s.openPush(ctx, ctx, id)
	if err != nil {
		return nil, err
	}
	defer p.end()
	q.log.begin() // the client waits for the head of the response
	return e.push(p, q, w.after)
}

// push is a stream of segments under way. The log of its name in the session says to
// all replicas that there is one.
type push struct {
	s    *session
	id   shim.ID
	name string // of this push and no other
	ctx  context.Context
	stop context.CancelCauseFunc
	over chan struct{} // closed when nothing more is sent
}

// pullWord begins the word that ends a push, wherever it is. It names the push and not
// its task: a word may come late, and more than once, and who left it gets it too, and
// may push the same task by then.
const pullWord = "pull "

// pullWait is how long the end of a push is waited for.
const pullWait = 5 * time.Second

// pushName names the log that marks the push of a task.
func pushName(id shim.ID) string { return "push-" + string(id) }

// openPush begins the push of a task, until it is ended or within ends. ctx is for the
// store.
func (s *session) openPush(ctx, within context.Context, id shim.ID) (*push, error) {
	p := &push{s: s, id: id, name: rand.Text(), over: make(chan struct{})}
	if _, err := s.table.store.Open(ctx, s.id, pushName(id), []byte(p.name)); err != nil {
		return nil, shim.ErrUnavailable
	}
	p.ctx, p.stop = context.WithCancelCause(within)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pushes == nil {
		s.pushes = make(map[shim.ID]*push)
	}
	if before := s.pushes[id]; before != nil {
		before.stop(errCut) // two began at once
	}
	s.pushes[id] = p
	return p, nil
}

// end is to be called when nothing more is sent.
func (p *push) end() {
	p.stop(nil)
	p.s.mu.Lock()
	mine := p.s.pushes[p.id] == p
	if mine {
		delete(p.s.pushes, p.id)
	}
	p.s.mu.Unlock()
	close(p.over)
	if mine {
		p.s.unmark(p.id)
	}
}

// unmark tells all replicas that a task is not pushed any more.
func (s *session) unmark(id shim.ID) {
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	_ = s.table.store.Finish(ctx, s.id, pushName(id)) // or who pulls has it done
}

// heedPull ends a push that a client of another replica asked to end.
func (s *session) heedPull(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pushes {
		if p.name == name {
			p.stop(errCut)
		}
	}
}

// cut ends the push of a task on this replica.
func (s *session) cut(id shim.ID) *push {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pushes[id]
	if p != nil {
		p.stop(errCut)
	}
	return p
}

// pull ends the push of a task, on whichever replica, before its client gets segments
// in another way (A10).
func (s *session) pull(ctx context.Context, id shim.ID) error {
	ctx, cancel := context.WithTimeout(ctx, pullWait)
	defer cancel()
	if p := s.cut(id); p != nil {
		select {
		case <-p.over:
			return nil
		case <-ctx.Done():
			return &shim.BusyError{Limit: "readers of this task's stream", RetryAfter: time.Second}
		}
	}
	name, err := s.pushed(ctx, id)
	if err != nil || name == "" {
		return err
	}
	wake, stop := s.watch(ctx)
	defer stop()
	for asked := ""; name != ""; {
		if name != asked {
			if err := s.table.store.Signal(ctx, s.id, pullWord+name); err != nil {
				return shim.ErrUnavailable
			}
			asked = name
		}
		select {
		case <-wake:
		case <-ctx.Done(): // its replica has forgotten to say that it is over
			s.unmark(id)
			return nil
		}
		if name, err = s.pushed(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// pushed is the name of the push of a task, if a replica that lives pushes it.
func (s *session) pushed(ctx context.Context, id shim.ID) (name string, err error) {
	state, note, err := s.table.stateOf(ctx, s.id, pushName(id))
	switch {
	case err != nil:
		return "", shim.ErrUnavailable
	case state != "open":
		return "", nil
	}
	return string(note), nil
}

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// A stream of segments does not end with its replica: the one that the client resumes it
// at goes on with it, on the same log, from the number that the log has come to. Who may
// is decided twice, by the log of the stream and by the mark of the push, so that of two
// replicas one does (Logs.Take), and none where the client has got the blocks in another
// way since (A10).

// pushNote is the note of a stream that pushes a task: what it takes to go on with it.
type pushNote struct {
	Task    shim.ID         `json:"task"`
	Request json.RawMessage `json:"request"`        // the id of the request that it answers
	After   int64           `json:"after"`          // the seqNr that the client named in it
	Call    bool            `json:"call,omitempty"` // it is the call itself, whose first answer is the task
}

func (n pushNote) encode() []byte {
	b, err := json.Marshal(n)
	if err != nil {
		return []byte("[]") // never: the id is JSON
	}
	return b
}

// readPushNote reads the note of a stream. False is that of any other stream.
func readPushNote(note []byte) (n pushNote, ok bool) {
	err := json.Unmarshal(note, &n)
	return n, err == nil && n.Task != ""
}

// storeAgain is after how long the store is asked again that was away.
const storeAgain = time.Second

// takeOver goes on with a stream that has lost its replica, unless another one does.
// What becomes of it shows in its log.
func (e *endpoint) takeOver(ctx context.Context, s *session, principal shim.Principal, stream string, n pushNote) {
	p := s.onlyPush(s.ctx, n.Task, stream)
	if p == nil {
		return // it is this replica's own, which was taken for lost, or about to be
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	taken, fresh, err := s.table.store.Take(ctx, s.id, stream, n.encode())
	if err != nil || !taken {
		p.end()
		return // it is looked at again
	}
	q := &legacyRequest{
		s: s, state: s.current(), principal: s.principal(principal), client: context.Background(), land: func() {},
		msg: jsonrpc.Message{Kind: jsonrpc.Request, Method: mcp.MethodTasksResult},
		log: takenLog(s, stream),
	}
	q.out = logged{q.log}
	held := s.table.pin(s.id) // it is in use as long as that takes
	end := func() {
		p.end()
		q.log.finish()
		held.release()
	}
	q.msg.ID, err = jsonrpc.ParseID(n.Request)
	switch {
	case err != nil: // never: it was written as JSON
		end()
	case !s.table.outlive(func() {
		defer end()
		e.goOn(p, q, n, fresh)
	}):
		p.leave(q)
		end()
	}
}

// goOn pushes what a stream has not had, to its end.
func (e *endpoint) goOn(p *push, q *legacyRequest, n pushNote, fresh bool) {
	ctx, done, err := e.gateway.streams.enter(p.ctx)
	defer done()
	var at reached
	for err == nil {
		if at, err = p.regain(ctx, n); err == nil {
			break
		}
		if err = nil; !rest(ctx, storeAgain) {
			err = context.Cause(ctx)
		}
	}
	switch {
	case errors.Is(err, shim.ErrDraining):
		p.leave(q)
		return
	case err != nil || !p.marked || at.over || !at.any && !fresh:
		return // the client asks for the rest
	}
	q.asked = at.asked
	if err := e.pushOn(ctx, p, q, n, at); !errors.Is(err, errCut) {
		q.fail(err)
	}
}

// pushOn sends the rest, with the task first where the client has not got that.
func (e *endpoint) pushOn(ctx context.Context, p *push, q *legacyRequest, n pushNote, at reached) error {
	if n.Call && !at.any {
		t, err := e.shim.Peek(ctx, q.principal, e.name, n.Task)
		if err != nil {
			return err
		}
		created := dialect.Legacy.Created(t, e.config.Tool(t.Tool).ImmediateResponse)
		if err := q.respond(created); err != nil {
			return errCut
		}
	}
	return e.push(p, q, at.seqNr)
}

// reached is how far a stream has come.
type reached struct {
	seqNr int64 // of the last block
	any   bool  // it has had an answer
	over  bool  // it has had its last one
	asked []string
}

// regain makes the mark of a push this replica's, if it is still that of its stream, and
// reads from the log how far that has come.
func (p *push) regain(ctx context.Context, n pushNote) (reached, error) {
	at := reached{seqNr: n.After}
	store := p.s.table.store
	if !p.marked {
		state, note, err := p.s.table.stateOf(ctx, p.s.id, pushName(n.Task))
		if err != nil || string(note) != p.name || state != "lost" {
			return at, err
		}
		if p.marked, _, err = store.Take(ctx, p.s.id, pushName(n.Task), note); err != nil || !p.marked {
			return at, err
		}
	}
	_, _, err := store.Since(ctx, p.s.id, p.name, 0, func(_ int64, message []byte) { at.read(message) })
	return at, err
}

// read takes a message of the stream into account.
func (r *reached) read(message []byte) {
	m, err := jsonrpc.Parse(message)
	if err != nil {
		return
	}
	switch m.Kind {
	case jsonrpc.Request:
		if _, key, ok := parseQuestionID(m.ID); ok {
			r.asked = append(r.asked, key)
		}
	case jsonrpc.ErrorResponse:
		r.any, r.over = true, true
	case jsonrpc.Result:
		r.any = true
		blocks, _ := jsonrpc.Get(m.Result, "partial-content")
		for b := range jsonrpc.Elements(blocks) {
			raw, _ := jsonrpc.Get(b, "seqNr")
			if no, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
				r.seqNr = max(r.seqNr, no)
			}
		}
		if complete, _ := jsonrpc.Get(m.Result, "isComplete"); string(complete) == "true" {
			r.over = true
		}
	}
}

// logged is an answer that goes into the log of its stream only, which whoever resumes
// the stream is sent.
type logged struct{ log *eventLog }

// Notify puts a notification there.
func (a logged) Notify(method string, params json.RawMessage) error {
	return a.Send(jsonrpc.AppendNotification(nil, method, params))
}

// Send puts a message there.
func (a logged) Send(message []byte) error {
	_, err := a.log.keep(message)
	return err
}

// Streams reports that there may be many.
func (a logged) Streams() bool { return true }

// Result puts the last answer there.
func (a logged) Result(id jsonrpc.ID, result json.RawMessage) {
	_ = a.Send(jsonrpc.AppendResult(nil, id, result)) // a replica that has taken it says the same
}

// Error puts an error there. Whatever the status would be, the stream has begun.
func (a logged) Error(id jsonrpc.ID, code int64, message string, data json.RawMessage, _ int) {
	e := &jsonrpc.Error{Code: code, Message: message, Data: data}
	_ = a.Send(jsonrpc.AppendError(nil, id, e))
}

// Drop leaves it without.
func (a logged) Drop() {}

var _ answer = logged{}

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// A question on the GET stream of a session may belong to no call of this replica: a
// server asks for the roots when its client has introduced itself, or in the middle of
// work of its own, or in a call that another replica runs. In the session of a legacy
// client there is somebody to ask: that client, on its own GET stream (design.md 0.16).

// Posing puts what a server asks outside of any call to the client that a session
// belongs to. The checkpoint holds all that is needed to bring the answer back: whoever
// takes it on goes on from there (HTTP.Resume), and an error says that nobody does.
// shim.ErrNoAsk: this client cannot be asked now.
type Posing func(ctx context.Context, s shim.Session, q shim.Question, checkpoint json.RawMessage) error

// OnPose says how such questions are put. Without it they are refused.
func (h *HTTP) OnPose(f Posing) { h.posing.Store(&f) }

// lone are the questions of a session that belong to no call here, from when they are
// heard until they are answered.
type lone struct {
	mu sync.Mutex
	m  map[loneKey]*loneQuestion
}

// loneKey names one of them: a server may use an id again in its next session.
type loneKey struct{ session, id string }

// loneQuestion is one of them.
type loneQuestion struct {
	withdrawn bool                    // by the server
	end       context.CancelCauseFunc // ends the asking, once that has begun
}

// hear notes one. It reports false if there are too many.
func (l *lone) hear(k loneKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.m) >= maxAside {
		return false
	}
	l.note(k)
	return true
}

// note returns the entry of a question, a new one if there is none. l.mu is held.
func (l *lone) note(k loneKey) *loneQuestion {
	if l.m == nil {
		l.m = make(map[loneKey]*loneQuestion)
	}
	if l.m[k] == nil {
		l.m[k] = &loneQuestion{}
	}
	return l.m[k]
}

// ask notes how the asking is ended, and ends it if the server has withdrawn the question
// by now.
func (l *lone) ask(k loneKey, end context.CancelCauseFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.note(k)
	if q.end = end; q.withdrawn {
		end(errWithdrawn)
	}
}

// withdraw hears that the server no longer waits for an answer.
func (l *lone) withdraw(k loneKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.m[k]
	if q == nil {
		return
	}
	if q.withdrawn = true; q.end != nil {
		q.end(errWithdrawn)
	}
}

// forget drops a question, and reports whether the server has withdrawn it.
func (l *lone) forget(k loneKey) (withdrawn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.m[k]
	delete(l.m, k)
	return q != nil && q.withdrawn
}

// place finds out whom to ask what has come on the GET stream x: the newest call here, or
// else the client of the session.
func (s *session) place(ctx context.Context, x *exchange, m jsonrpc.Message) error {
	refused := s.get.ask(m)
	if refused == nil {
		return nil
	}
	if refused.Code == mcp.CodeInternal || s.h.posing.Load() == nil || !s.from.Shared || s.from.Key == "" {
		return x.respond(ctx, jsonrpc.AppendError(nil, m.ID, refused)) // a call here asks too much, or there is nobody else
	}
	if code, ok := may(s.from, m.Method, m.Params); !ok {
		return x.respond(ctx, refusal(m.ID, code, m.Method))
	}
	k := loneKey{x.to.session, m.ID.Key()}
	if !s.get.lone.hear(k) {
		return x.respond(ctx, notPut(m.ID, "too many questions wait that belong to no call"))
	}
	p := pending{ID: []byte(m.ID.Raw()), Method: m.Method, Params: raw(m.Params), Aside: true}
	s.pin()
	if !s.h.spawn(ctx, func(ctx context.Context) {
		defer s.release()
		s.pose(ctx, x.to, k, m.ID, p)
	}) {
		s.get.lone.forget(k)
		s.release()
		return x.respond(ctx, notPut(m.ID, "the gateway is shutting down"))
	}
	return nil
}

// pose puts a question to the client of the session, or refuses it.
func (s *session) pose(ctx context.Context, to target, k loneKey, id jsonrpc.ID, p pending) {
	c := checkpoint{
		Era: to.era.String(), Version: to.version, Session: to.session, Generation: to.gen, ID: s.h.nextID(),
		Asked: 1, Alone: true,
	}
	p.Key = c.ID + "-q1"
	c.Pending = []pending{p}
	err := (*s.h.posing.Load())(ctx, s.from, questions(c.Pending)[0], c.encode())
	if err == nil || s.get.lone.forget(k) { // resumeAlone has it, or nobody waits for an answer
		return
	}
	if errors.Is(err, shim.ErrNoAsk) {
		s.h.answerAside(ctx, to, refusal(id, mcp.CodeMethodNotFound, p.Method+" outside of a call"))
		return
	}
	s.h.log.Debug("a question outside of any call was not put to its client", "err", err)
	s.h.answerAside(ctx, to, notPut(id, "the client could not be asked"))
}

// resumeAlone goes on with a question that belongs to no call: it asks, and posts the
// answer.
func (h *HTTP) resumeAlone(ctx context.Context, r shim.Request, c checkpoint, sink shim.Sink) (shim.Reply, error) {
	l := &link{gen: c.Generation, id: c.Session, version: c.Version}
	s := h.pool.adopt(r.Session, l)
	defer s.release()
	p := c.Pending[0]
	ask, withdraw := context.WithCancelCause(ctx)
	defer withdraw(nil)
	if id, err := jsonrpc.ParseID(p.ID); err == nil {
		s.claim(id)
		k := loneKey{c.Session, id.Key()}
		s.get.lone.ask(k, withdraw)
		defer s.get.lone.forget(k)
	}
	answers, err := sink.Ask(ask, questions(c.Pending)...)
	switch {
	case err != nil && detached(ctx):
		s.keep()
		return shim.Reply{}, context.Cause(ctx)
	case context.Cause(ask) == errWithdrawn:
		return shim.Reply{Result: json.RawMessage(`{}`)}, nil
	}
	if body, ok := responseTo(p, answers, 0, err); ok {
		h.answerAside(ctx, l.target(), body)
	}
	if err := ended(ctx); err != nil {
		return shim.Reply{}, err
	}
	return shim.Reply{Result: json.RawMessage(`{}`)}, nil
}

// legacyAlone reports whether a checkpoint is that of such a question.
func (c *checkpoint) legacyAlone() bool {
	return c.Alone && c.Era == mcp.Legacy.String() && len(c.Pending) == 1
}

// answerAside posts an answer that no call waits for. The server does.
func (h *HTTP) answerAside(ctx context.Context, to target, body []byte) {
	most := h.cfg.ProbeTimeout
	if ctx.Err() != nil {
		most = cancelTimeout
	}
	ctx, stop := aside(ctx, most)
	defer stop()
	if err := h.answer(ctx, ctx, to, body); err != nil {
		h.log.Debug("answer to the server was not delivered", "err", err)
	}
}

// notPut refuses a question that could not be put to its client.
func notPut(id jsonrpc.ID, why string) []byte {
	return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: mcp.CodeInternal, Message: why})
}

package upstream

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// A question on the GET stream of a session may belong to no call at all: a server asks
// for the roots when its client has introduced itself, or for something in the middle of
// work of its own. In the session of a legacy client there is somebody to ask: that
// client, on its own GET stream (design.md 0.16).

// Posing puts what a server asks outside of any call to the client that a session
// belongs to. The checkpoint holds all that is needed to bring the answer back: whoever
// takes it on goes on from there (HTTP.Resume), and an error says that nobody does.
// shim.ErrNoAsk: this client cannot be asked now.
type Posing func(ctx context.Context, s shim.Session, q shim.Question, checkpoint json.RawMessage) error

// OnPose says how such questions are put. Without it they are refused.
func (h *HTTP) OnPose(f Posing) { h.posing.Store(&f) }

// pose puts a question that no call has to the client of the session, or refuses it.
func (s *session) pose(ctx context.Context, to target, ref string, o stray, id jsonrpc.ID) {
	err := shim.ErrNoAsk
	if f := s.h.posing.Load(); f != nil && s.from.Shared && s.from.Key != "" && ctx.Err() == nil {
		c := checkpoint{
			Era: to.era.String(), Version: to.version, Session: to.session, Generation: to.gen, ID: s.h.nextID(),
			Asked: 1, Alone: true,
		}
		p := pending{ID: o.ID, Key: c.ID + "-q1", Method: o.Method, Params: o.Params, Aside: true, Offer: ref}
		c.Pending = []pending{p}
		err = (*f)(ctx, s.from, questions(c.Pending)[0], c.encode())
	}
	switch {
	case err == nil:
		if context.Cause(ctx) == errWithdrawn {
			s.h.withdraw(ctx, ref)
		}
	case errors.Is(err, shim.ErrNoAsk):
		s.h.answerAside(ctx, to, refusal(id, mcp.CodeMethodNotFound, o.Method+" outside of a call"))
	default:
		s.h.log.Debug("a question outside of any call was not put to its client", "err", err)
		s.h.answerAside(ctx, to, notPassed(id, "the client could not be asked"))
	}
}

// resumeAlone goes on with a question that belongs to no call: it asks, and posts the
// answer.
func (h *HTTP) resumeAlone(ctx context.Context, r shim.Request, c checkpoint, sink shim.Sink) (shim.Reply, error) {
	l := &link{gen: c.Generation, id: c.Session, version: c.Version}
	s := h.pool.adopt(r.Session, l)
	defer s.release()
	p := c.Pending[0]
	if id, err := jsonrpc.ParseID(p.ID); err == nil {
		s.claim(id)
	}
	ask, withdraw := context.WithCancelCause(ctx)
	defer withdraw(nil)
	h.alone.begin(p.Offer, 0, withdraw)
	defer h.alone.end(p.Offer)
	h.watchOffers(ctx)
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

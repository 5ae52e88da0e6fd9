package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// This file finds out whose the questions are that come on the GET stream of a session
// which other replicas may use as well (design.md 0.16). Whatever becomes of one, the
// server gets an answer: from whoever has it, or from here.

// strays are the questions that are put up for other replicas, by ref.
type strays struct {
	mu sync.Mutex
	m  map[string]context.CancelCauseFunc
}

// begin notes one, and how it is ended. It reports false where there are too many, if
// that is bounded.
func (p *strays) begin(ref string, most int, end context.CancelCauseFunc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if most > 0 && len(p.m) >= most {
		return false
	}
	if p.m == nil {
		p.m = make(map[string]context.CancelCauseFunc)
	}
	p.m[ref] = end
	return true
}

func (p *strays) end(ref string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, ref)
}

func (p *strays) has(ref string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[ref] != nil
}

// withdraw ends one that its server no longer waits for, and reports whether it is
// there.
func (p *strays) withdraw(ref string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.m[ref]
	if end != nil {
		end(errWithdrawn)
	}
	return end != nil
}

// passes reports whether a question in this session may be another's than that of a call
// here: the session is everybody's, a call in it was let go of for others to go on with,
// or there is a client that can be asked outside of its calls.
func (s *session) passes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.h.cfg.Offers != nil && (s.shared || s.kept) || s.from.Shared && s.h.posing.Load() != nil
}

// place asks the newest call here what has come on the GET stream x, unless another
// replica has a newer one; and puts it up for the others if there is none.
func (s *session) place(ctx context.Context, x *exchange, m jsonrpc.Message) error {
	if code, ok := may(s.from, m.Method, m.Params); !ok {
		return x.respond(ctx, refusal(m.ID, code, m.Method))
	}
	if ofTask(s.get.newest(), m.Params) != nil {
		if _, refused := s.get.ask(m, ""); refused != nil {
			return x.respond(ctx, jsonrpc.AppendError(nil, m.ID, refused))
		}
		return nil
	}
	ref := offerRef(x.to.session, m.ID)
	o := stray{Session: x.to.session, ID: []byte(m.ID.Raw()), Method: m.Method, Params: raw(m.Params)}
	call, refused := s.get.ask(m, ref)
	if call != nil {
		o.Age = max(1, time.Since(call.begun))
	}
	pass, end := context.WithCancelCause(context.Background())
	s.pin()
	begun := s.get.strays.begin(ref, maxAside, end) && s.h.spawn(ctx, func(life context.Context) {
		defer s.release()
		defer s.get.strays.end(ref)
		defer end(nil)
		defer context.AfterFunc(life, func() { end(errClosed) })()
		s.pass(pass, x.to, ref, o, refused)
	})
	if begun {
		return nil
	}
	end(nil)
	s.release()
	if call != nil {
		return nil
	}
	return x.respond(ctx, notPassed(m.ID, "too many questions wait that belong to no call here"))
}

// pass puts a question up. One that belongs to a call here needs no more than that; any
// other is refused unless somebody takes it. refused is why no call here has it: there may
// be one that asks too much already.
func (s *session) pass(ctx context.Context, to target, ref string, o stray, refused *jsonrpc.Error) {
	taken := s.putUp(ctx, ref, o)
	if context.Cause(ctx) == errWithdrawn {
		s.h.withdraw(ctx, ref)
		return
	}
	if taken || o.Age > 0 {
		return
	}
	id, err := jsonrpc.ParseID(o.ID)
	if err != nil {
		return // it was parsed before
	}
	last, stop := ctx, context.CancelFunc(func() {})
	if ctx.Err() != nil { // the leg is being closed: there is a moment left to answer
		last, stop = aside(ctx, cancelTimeout)
	}
	defer stop()
	switch mine, err := s.h.takeOffer(last, ref, s.h.nextID()); {
	case errors.Is(err, errWithdrawn):
		s.h.withdraw(ctx, ref)
	case err != nil:
		s.h.answerAside(ctx, to, notPassed(id, "it cannot be found out whom to ask"))
	case mine && refused.Code == mcp.CodeInternal:
		s.h.answerAside(ctx, to, jsonrpc.AppendError(nil, id, refused))
	case mine:
		s.pose(ctx, to, ref, o, id)
	}
}

// putUp tells the other replicas of a question, and reports whether one of them has
// taken it. It waits for that only if the question belongs to no call here.
func (s *session) putUp(ctx context.Context, ref string, o stray) (taken bool) {
	if s.h.cfg.Offers == nil {
		return false
	}
	content := o.encode()
	for until := time.Now().Add(offerFor); ; {
		open, err := s.h.cfg.Offers.Offer(ctx, ref, content, offerKept)
		if err != nil {
			s.h.log.Debug("a question was not shown to the other replicas", "err", err)
		}
		switch {
		case err == nil && !open:
			return true
		case o.Age > 0, !time.Now().Before(until), pause(ctx, offerAgain) != nil:
			return false
		}
	}
}

// withdraw tells whoever has taken a question that its server has withdrawn it.
func (h *HTTP) withdraw(ctx context.Context, ref string) {
	if h.alone.withdraw(ref) || h.cfg.Offers == nil {
		return
	}
	ctx, stop := aside(ctx, cancelTimeout)
	defer stop()
	if err := h.cfg.Offers.Withdraw(ctx, ref); err != nil {
		h.log.Debug("that a question was withdrawn was not passed on", "err", err)
	}
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

// notPassed refuses a question that could not be brought to its call.
func notPassed(id jsonrpc.ID, why string) []byte {
	return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: mcp.CodeInternal, Message: why})
}

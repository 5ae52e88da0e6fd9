package legacy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/forward"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// A legacy server may ask outside of any call (design.md 0.16). In the session of a
// legacy client that one is asked, on its GET stream, wherever that is: the question has
// a record like any other, the state of the session names it, and the stream delivers it
// as it does those of tasks.

// mostSessionQuestions is how many such questions of a session may be open at a time.
const mostSessionQuestions = 16

// errManySessionQuestions: the client has been asked enough.
var errManySessionQuestions = errors.New("too many questions of this session are open")

// AskSession asks the client of a session what its server asks outside of any call. One that
// has no GET stream open, and none that it may come back to, is not there to be asked:
// shim.ErrNoAsk.
func (h *Handler) AskSession(ctx context.Context, from shim.Session, q shim.Question, checkpoint json.RawMessage) error {
	s := h.Sessions.pinSession(from.Key)
	st, err := s.loadState(ctx)
	switch able := (shim.Session{Capabilities: translate.Answerable(st.Capabilities)}); {
	case errors.Is(err, errNoSession):
		err = shim.ErrNoAsk
	case err != nil:
	case st.Upstream != h.Name, !upstream.MayAsk(able, q.Method, q.Params):
		err = shim.ErrNoAsk
	case !s.isAttached() && !s.listen.isActive() && !s.isElsewhere(ctx):
		err = shim.ErrNoAsk
	case len(st.SessionQuestions) >= mostSessionQuestions:
		err = errManySessionQuestions
	}
	if err != nil {
		s.endUse()
		return err
	}
	life, end := context.WithCancelCause(forward.Carry(s.ctx, ctx)) // and not that of the request of the server
	c := shim.Call{
		Upstream: h.Name, Principal: s.owner(), Origin: dialect.OriginLegacy,
		Request: shim.Request{Method: q.Method, Session: s.upstreamSession(ctx)}, Asking: shim.AskStream,
	}
	id, err := h.Shim.AskSession(life, c, checkpoint, func(id shim.ID, over bool) {
		if over {
			s.settleSessionQuestion(id)
		}
		end(nil)
		s.endUse()
	})
	if err != nil {
		end(nil)
		s.endUse()
		return err
	}
	if err := s.updateState(ctx, func(st sessionState) (sessionState, error) { return st.withSessionQuestions([]shim.ID{id}, nil) }); err != nil {
		end(shim.ErrCancelled) // no stream would ask it; this answers the server
	}
	return nil
}

// withSessionQuestions returns the state with questions added, if there is room for them, and without
// those that are over. The list of the old state is not changed: others may read it.
func (st sessionState) withSessionQuestions(made, over []shim.ID) (sessionState, error) {
	ids := append(slices.Clone(st.SessionQuestions), made...)
	ids = slices.DeleteFunc(ids, func(id shim.ID) bool { return slices.Contains(over, id) })
	if len(ids) > mostSessionQuestions && len(made) > 0 {
		return st, errManySessionQuestions
	}
	st.SessionQuestions = ids
	return st, nil
}

// settleSessionQuestion forgets a question that is over.
func (s *session) settleSessionQuestion(id shim.ID) {
	if !slices.Contains(s.currentState().SessionQuestions, id) {
		return
	}
	ctx, cancel := s.table.withPatience(context.Background())
	defer cancel()
	// Where it fails, the session ends or the next stream finds that it is over.
	_ = s.updateState(ctx, func(st sessionState) (sessionState, error) { return st.withSessionQuestions(nil, []shim.ID{id}) })
}

package legacy

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"

	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/wire"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// openSession finds the session that a request names, and checks that the request fits it and that its caller
// may use it. The caller ends its use. asks says that the server itself will decide about the request, by the
// token that goes there with it.
func (h *Handler) openSession(r *http.Request, p shim.Principal, asks bool) (*session, error) {
	ids := r.Header.Values(mcp.HeaderSession)
	if len(ids) != 1 || wire.TrimOWS(ids[0]) == "" {
		return nil, wire.Refused(http.StatusBadRequest, "one "+mcp.HeaderSession+" is needed: initialize first")
	}
	var s *session
	err := h.Shim.Outlast(r.Context(), func(ctx context.Context) (err error) {
		ctx, cancel := h.Sessions.withPatience(ctx)
		defer cancel()
		s, err = h.Sessions.findSession(ctx, wire.TrimOWS(ids[0]), func(st sessionState) bool {
			return st.Upstream == h.Name && (st.belongsTo(p) || h.serverAdmits(st, p))
		})
		return err
	})
	if err != nil {
		return nil, sessionFailure(err)
	}
	entered, err := h.enterSession(r.Context(), s, p)
	switch {
	case err == nil && !entered && !asks:
		err = sessionFailure(errNoSession)
	case err == nil:
		err = checkSessionVersion(r.Header, s.currentState().Version)
	}
	if err != nil {
		s.endUse()
		return nil, err
	}
	return s, nil
}

// passingSession makes a session for one request of a client that names none. Servers that keep no sessions take
// such a request, and clients rely on that: they send no initialize, or forget the session, as the AWS DevOps Agent
// does (axiomhq/mcp #76; mcp-context-forge #5484). The session declares nothing, and ends with the request. Nobody
// learns its id, so nobody comes back to it, and the store does not know it.
func (h *Handler) passingSession(r *http.Request, p shim.Principal) (*session, error) {
	ctx := r.Context()
	st := sessionState{Owner: p.Owner(), Version: mcp.Version20250326, Legacy: true}
	if version := wire.TrimOWS(r.Header.Get(mcp.HeaderProtocolVersion)); version != "" { // X7
		st.Version = negotiateVersion(version)
	}
	if err := checkSessionVersion(r.Header, st.Version); err != nil {
		return nil, err
	}
	if err := h.Calls.Enter(p.Share()); err != nil {
		return nil, wire.TurnAway(err)
	}
	defer h.Calls.Leave(p.Share())
	s := h.Sessions.pinSession(uuid.NewString())
	s.passing, s.state = true, st
	server, err := h.Upstream.Describe(ctx, s.upstreamSession(ctx))
	if err != nil {
		s.endUse()
		return nil, err
	}
	s.state.Legacy = server.Era != mcp.Modern
	return s, nil
}

// serverAdmits reports whether the server may let a caller into the session other than its known owner: the
// server signs its callers in, and only it knows whose the session is.
func (h *Handler) serverAdmits(st sessionState, p shim.Principal) bool {
	return h.Global.AuthOf(h.Config).Passthrough != nil && p.Owner() != "" && (st.Opaque || st.Owner == "")
}

// enterSession reports whether a caller is in the session: it is the caller's own, or the server has taken the
// token. A session without an owner becomes that of the first caller who is known by more than the token.
func (h *Handler) enterSession(ctx context.Context, s *session, p shim.Principal) (bool, error) {
	st := s.currentState()
	own := st.belongsTo(p)
	switch {
	case own && !forward.Of(ctx).Doubted:
		return true, nil
	case !own && st.isNobodys() && forward.Of(ctx).Opaque:
		return true, nil // as everybody who has its id, until the server takes the token for a call
	case !own && st.isNobodys():
		if err := s.admitCaller(ctx, p, false); err != nil {
			return false, sessionFailure(err)
		}
		return true, nil
	}
	proven, err := h.Upstream.Admit(ctx, s.upstreamSession(ctx))
	switch {
	case errors.Is(err, upstream.ErrNoSession):
		return false, sessionFailure(errNoSession)
	case err != nil:
		return false, err
	case proven && !own:
		if err := s.admitCaller(ctx, p, true); err != nil {
			return false, sessionFailure(err)
		}
	}
	return proven || own, nil
}

// admitCaller notes that the session is the caller's as well. byServer is whether the server has said so.
func (s *session) admitCaller(ctx context.Context, p shim.Principal, byServer bool) error {
	var newest int64
	if byServer && s.currentState().Opaque {
		log, _, _, err := s.readLog(ctx, getStream, 0)
		if err != nil {
			return err
		}
		for _, m := range log {
			newest = m.no
		}
	}
	return s.updateState(ctx, func(st sessionState) (sessionState, error) {
		switch {
		case st.belongsTo(p):
		case byServer:
			st.Token, st.TokenFrom = p.Owner(), newest
		case st.isNobodys():
			st.Owner = p.Owner()
		default:
			return st, errNoSession // somebody else was faster
		}
		return st, nil
	})
}

// whenTaken returns a context in which the session becomes the caller's as well once the server has taken the
// token for a call: a server whose handshake is open to everybody takes any token for anything else.
func (q *request) whenTaken(ctx context.Context) context.Context {
	if q.state.belongsTo(q.principal) || !q.h.serverAdmits(q.state, q.principal) {
		return ctx
	}
	return forward.WhenTaken(ctx, func() {
		ctx, cancel := q.s.table.withPatience(context.Background())
		defer cancel()
		if err := q.s.admitCaller(ctx, q.principal, true); err != nil {
			q.h.Log.DebugContext(ctx, "a session does not know its next token", "err", err)
		}
	})
}

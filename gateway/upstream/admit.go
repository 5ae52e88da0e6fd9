package upstream

import (
	"context"
	"errors"
	"net/http"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file asks the server about the token of a caller, where the server alone can tell whose token it is.

// ErrNoSession says that the server does not know a session, or denies it to this caller.
var ErrNoSession = errors.New("the server does not know the session")

// Gate asks a server which callers it lets in.
type Gate interface {
	// Admit asks the server whether the caller of this context may enter a session that another token has
	// begun. It reports whether the answer proves anything: a server may let everybody in. The error is the
	// server's refusal, worded for the client, or ErrNoSession.
	Admit(ctx context.Context, s shim.Session) (proven bool, err error)
	// TakesToken asks the server whether it takes the token of this context's caller. It reports false where
	// the server fails, and where it lets in everybody: then it proves nothing.
	TakesToken(ctx context.Context) bool
}

// Admit implements Gate. It asks the server twice: with the caller's token, and unsigned. It does so in an
// existing session: the server would take a new one for the caller's own.
func (h *ServerClient) Admit(ctx context.Context, s shim.Session) (proven bool, err error) {
	ask, done, err := h.askAboutCaller(ctx, s)
	if err != nil {
		return false, err
	}
	defer done()
	if err := ask(forward.Unheard(ctx)); isUnknown(err) {
		return false, ErrNoSession
	} else if err != nil {
		method := mcp.MethodDiscover
		if s.Legacy {
			method = mcp.MethodPing
		}
		return false, forward.PassOn(ctx, method, publicError(err))
	}
	err = ask(forward.Unsigned(ctx))
	return isUnknown(err) || isDenied(err), nil
}

// TakesToken implements Gate. It introduces the caller twice, with the token and unsigned, in no session of the
// caller's: of a legacy server it asks for a new one, which it ends.
func (h *ServerClient) TakesToken(ctx context.Context) bool {
	v, era, err := h.settleEra(ctx, shim.Session{})
	if err != nil {
		return false
	}
	introduce := func(ctx context.Context) error {
		if era == mcp.Modern {
			_, err := h.askDiscover(ctx, v.version, shim.Session{})
			return err
		}
		l, err := newSession(h.sessions, keyOf(shim.Session{}), shim.Session{}).initializeServer(ctx)
		if err == nil {
			h.sessions.discardGeneration(ctx, l)
		}
		return err
	}
	if introduce(forward.Unheard(ctx)) != nil {
		return false
	}
	return isDenied(introduce(forward.Unsigned(ctx)))
}

// isDenied reports whether a server has let nobody in.
func isDenied(err error) bool {
	se, ok := err.(*transport.StatusError)
	return ok && (se.Status == http.StatusUnauthorized || se.Status == http.StatusForbidden)
}

// askAboutCaller returns how to ask the server about the caller of a context: by a ping, or by
// server/discover in the modern era.
func (h *ServerClient) askAboutCaller(ctx context.Context, s shim.Session) (ask func(context.Context) error, done func(), err error) {
	if !s.Legacy {
		v, err := h.findEra(ctx, s)
		if err == nil && v.era != mcp.Modern {
			err = ErrNoSession
		}
		return func(ctx context.Context) error {
			_, err := h.askDiscover(ctx, v.version, s)
			return err
		}, func() {}, err
	}
	ses := h.sessions.findSession(ctx, s)
	if ses == nil {
		return nil, nil, ErrNoSession
	}
	l := ses.currentGeneration()
	if l == nil { // another replica may have opened it
		l, err = h.sessions.findGeneration(ctx, ses)
	}
	if err == nil && l == nil {
		err = ErrNoSession
	}
	if err != nil {
		ses.releaseSession()
		return nil, nil, publicError(err)
	}
	return func(ctx context.Context) error { return ses.pingServer(ctx, l) }, ses.releaseSession, nil
}

// isUnknown reports whether the server does not know the subject of a request.
func isUnknown(err error) bool {
	se, ok := err.(*transport.StatusError)
	return ok && (se.Status == http.StatusNotFound || se.Status == http.StatusBadRequest)
}

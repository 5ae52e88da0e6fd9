package upstream

import (
	"context"
	"errors"
	"net/http"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file asks a server that signs its callers in about the token of a caller whom nobody else can name.

// ErrNoSession says that the server does not know a session, or not for this caller.
var ErrNoSession = errors.New("the server does not know the session")

// Gate asks a server whom it lets in.
type Gate interface {
	// Admit asks the server whether the caller of this context may enter a session that another token has
	// begun. It reports whether the answer proves anything: a server may let everybody in. The error is the
	// server's refusal, as the client is to see it, or ErrNoSession.
	Admit(ctx context.Context, s shim.Session) (proven bool, err error)
}

// Admit implements Gate. The server is asked twice: as the caller, and as nobody. No session is opened for
// that: the server would take it for the caller's own.
func (h *HTTP) Admit(ctx context.Context, s shim.Session) (proven bool, err error) {
	ask, done, err := h.knock(ctx, s)
	if err != nil {
		return false, err
	}
	defer done()
	if err := ask(unheard(ctx)); isUnknown(err) {
		return false, ErrNoSession
	} else if err != nil {
		return false, passOn(ctx, public(err))
	}
	f := forwardedOf(ctx)
	err = ask(carrying(ctx, unsigned{f.Credential}))
	if se, ok := err.(*statusError); ok && (isUnknown(err) || se.status == http.StatusUnauthorized || se.status == http.StatusForbidden) {
		f.Credential.Hear(authorization(ctx, f.Credential), http.StatusOK)
		return true, nil
	}
	return false, nil
}

// knock returns how the server is asked about the caller of a context: by a ping in the session, or by discover
// where servers have no sessions.
func (h *HTTP) knock(ctx context.Context, s shim.Session) (ask func(context.Context) error, done func(), err error) {
	if !s.Legacy {
		v, err := h.eras.get(ctx, s)
		if err == nil && v.era != mcp.Modern {
			err = ErrNoSession
		}
		return func(ctx context.Context) error {
			_, err := h.eras.discover(ctx, v.version, s)
			return err
		}, func() {}, err
	}
	ses := h.sessions.find(ctx, s)
	if ses == nil {
		return nil, nil, ErrNoSession
	}
	l := ses.current()
	if l == nil { // another replica has opened it
		if l, err = ses.open(ctx); err != nil {
			ses.release()
			return nil, nil, public(err)
		}
	}
	return func(ctx context.Context) error {
		ctx, cancel := h.wire.slow(ctx)
		defer cancel()
		_, err := ses.exchange(l.target(), shim.Request{Method: mcp.MethodPing, Session: s}, discard{}).run(ctx)
		return err
	}, ses.release, nil
}

// isUnknown reports whether the server does not know what it is asked about.
func isUnknown(err error) bool {
	se, ok := err.(*statusError)
	return ok && (se.status == http.StatusNotFound || se.status == http.StatusBadRequest)
}

// deaf is a credential that learns nothing from how the server answers: what the gateway asks by itself is
// no request of its client.
type deaf struct{ Credential }

func (deaf) Hear(string, int) {}

func (deaf) Challenge(_ int, values []string) []string { return values }

// unsigned signs nobody in.
type unsigned struct{ Credential }

func (unsigned) Own() string { return "" }

func (unsigned) Later() string { return "" }

func (unsigned) Brought() (authorization string, good bool) { return "", true }

func (unsigned) Challenge(_ int, values []string) []string { return values }

// unheard returns a context in which no answer of the server counts for the client's token.
func unheard(ctx context.Context) context.Context {
	if f := forwardedOf(ctx); f != nil && f.Credential != nil {
		return carrying(ctx, deaf{f.Credential})
	}
	return ctx
}

// carrying returns a context with another credential.
func carrying(ctx context.Context, c Credential) context.Context {
	f := *forwardedOf(ctx)
	f.Credential = c
	return WithForwarded(ctx, &f)
}

// passOn has an error of an unheard request count for the token after all: the client gets it as the answer to
// its own request.
func passOn(ctx context.Context, err error) error {
	var refusal *Refusal
	if f := forwardedOf(ctx); f != nil && f.Credential != nil && errors.As(err, &refusal) {
		f.Credential.Hear(authorization(ctx, f.Credential), refusal.Status)
		refusal.Challenges = f.Credential.Challenge(refusal.Status, refusal.Challenges)
	}
	return err
}

// Opaque reports whether only the server can say whose the token of a context is.
func Opaque(ctx context.Context) bool {
	f := forwardedOf(ctx)
	return f != nil && f.Opaque
}

// Doubted reports whether the server has refused the token of a context when it was last shown.
func Doubted(ctx context.Context) bool {
	f := forwardedOf(ctx)
	return f != nil && f.Doubted
}

// takenKey is the key of the context value that noteTaken reads.
type takenKey struct{}

// WhenTaken returns a context in which f is called once the server has taken the token of a tools/call.
func WhenTaken(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, takenKey{}, f)
}

// noteTaken says that the server has begun to answer a call.
func noteTaken(ctx context.Context, method string) {
	if f, ok := ctx.Value(takenKey{}).(func()); ok && method == mcp.MethodToolsCall && useOf(ctx) == first {
		f()
	}
}

package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"taskgate/shim"
)

// Forwarded is what of a client's request goes to the server with each request that is made for
// that client: with the one that the client makes, with those that the gateway needs for it
// (a handshake, a list of tools), and with those of a call that goes on without it. It is in the
// context, and so in memory only: in no log, no span and no store. Nobody changes it.
type Forwarded struct {
	// Header are the headers of the client, by canonical names. Requests with different ones
	// share no session with the server.
	Header http.Header
	// Host takes the place of the host of the URL, if it is not "". Proxy are headers about the
	// connection of the client. Neither keeps requests apart.
	Host  string
	Proxy http.Header
	// Authorization gives the header of that name, "" for none. It may be another one later,
	// when the client has a new token. Nil leaves the header to the configuration.
	Authorization func() string
	// Ready waits, where the client has left and all that it has shown has expired, until it has
	// shown something else, or returns why ctx ended. Nil never waits.
	Ready func(ctx context.Context) error
	// Challenge takes the status, 401 or 403, and the values of WWW-Authenticate of it, and returns
	// these as the client is to see them. It comes with Authorization.
	Challenge func(status int, values []string) []string
}

// Refusal is the cause of a shim.UpstreamError where the server refuses what a client has signed
// in with.
type Refusal struct {
	Status     int      // 401 or 403
	Challenges []string // the values of WWW-Authenticate for the client
}

// Error is for the log.
func (r *Refusal) Error() string { return "status " + strconv.Itoa(r.Status) }

// Refused is the HTTP status and the header WWW-Authenticate that the client gets, as long as its
// request has no answer.
func (r *Refusal) Refused() (status int, challenges []string) { return r.Status, r.Challenges }

// forwardedKey is the key of the context value that forwardedOf reads.
type forwardedKey struct{}

// WithForwarded returns a context in which requests to a server carry what f says.
func WithForwarded(ctx context.Context, f *Forwarded) context.Context {
	return context.WithValue(ctx, forwardedKey{}, f)
}

// Carry returns to with what requests carry that are made in from: for what goes on after a
// request, and does not end with it.
func Carry(to, from context.Context) context.Context {
	if f := forwardedOf(from); f != nil {
		return WithForwarded(to, f)
	}
	return to
}

// forwardedOf is what requests carry that are made in this context; nil for nothing.
func forwardedOf(ctx context.Context) *Forwarded {
	f, _ := ctx.Value(forwardedKey{}).(*Forwarded)
	return f
}

// Mark tells callers apart whose headers go to the server, for shim.Session: a hash of those of
// this context, "" for none.
func Mark(ctx context.Context) string {
	f := forwardedOf(ctx)
	if f == nil || len(f.Header) == 0 {
		return ""
	}
	h := sha256.New()
	write := func(s string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	for _, name := range slices.Sorted(maps.Keys(f.Header)) {
		write(name)
		for _, value := range f.Header[name] {
			write(value)
		}
		h.Write(make([]byte, 8)) // no value that follows is one of this header
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// tokenMark tells apart what a server has said to different tokens. It is in memory only.
func tokenMark(ctx context.Context) string {
	f := forwardedOf(ctx)
	if f == nil || f.Authorization == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(f.Authorization()))
	return string(sum[:])
}

// errUnknownHeaders: a call goes on that came with headers, and they are not here. To make a
// request without them could be to make it for somebody else.
var errUnknownHeaders = errors.New("the headers that the call came with are known to another replica only")

// represented is a context in which requests carry what belongs to a session. That is in the context of
// its client's request, and of all that follows from it; a call of another replica has only what its
// client has shown here. It is an error if that is not all.
func (w *wire) represented(ctx context.Context, s shim.Session) (context.Context, error) {
	if forwardedOf(ctx) == nil && w.cfg.Represent != nil {
		ctx = WithForwarded(ctx, w.cfg.Represent(s.Principal))
	}
	if s.Mark == "" || Mark(ctx) == s.Mark {
		return ctx, ready(ctx)
	}
	ue := fail(kindRefused, "the headers that the call came with were lost with the replica that ran it", errUnknownHeaders)
	ue.Unsent = true
	return ctx, ue
}

// ready waits until what requests carry in this context is good. A server that gets nothing from a
// client which has signed in would take it for somebody else.
func ready(ctx context.Context) error {
	if f := forwardedOf(ctx); f != nil && f.Ready != nil {
		return f.Ready(ctx)
	}
	return nil
}

// forward adds what of a client's request goes along.
func (w *wire) forward(req *http.Request) {
	f := forwardedOf(req.Context())
	if f == nil {
		return
	}
	maps.Copy(req.Header, f.Proxy)
	maps.Copy(req.Header, f.Header)
	if f.Host != "" {
		req.Host = f.Host
	}
	if f.Authorization == nil {
		return
	}
	delete(req.Header, headerAuthorization)
	if value := f.Authorization(); value != "" {
		set(req.Header, headerAuthorization, value)
	}
}

// renewed is a request once more, with a newer token than the one that the server has refused with
// 401; nil if there is none. A server that asks for another token has not begun anything.
func renewed(req *http.Request, resp *http.Response) *http.Request {
	f := forwardedOf(req.Context())
	if f == nil || f.Authorization == nil || resp == nil || resp.StatusCode != http.StatusUnauthorized {
		return nil
	}
	value := f.Authorization()
	if value == "" || value == req.Header.Get(headerAuthorization) {
		return nil
	}
	next := req.Clone(req.Context())
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil
		}
		next.Body = body
	}
	drain(resp.Body)
	resp.Body.Close()
	set(next.Header, headerAuthorization, value)
	return next
}

// refused notes what a server says to a request with the token of a client.
func (e *statusError) refused(resp *http.Response) {
	if e.status != http.StatusUnauthorized && e.status != http.StatusForbidden || resp.Request == nil {
		return
	}
	if f := forwardedOf(resp.Request.Context()); f != nil && f.Authorization != nil {
		e.token, e.challenges = true, f.Challenge(e.status, resp.Header.Values("WWW-Authenticate"))
	}
}

const headerAuthorization = "Authorization"

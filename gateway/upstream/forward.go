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
	// Credential signs the requests in; nil leaves the header Authorization to the configuration.
	Credential Credential
	// Seal returns what Credential signs in with for whichever replica runs a call, "" for nothing; nil
	// where Credential is nil.
	Seal func(call string) string
	// Token says which tokens may stand in on another replica (shim.Session.Token).
	Token string
	// Opaque says that nobody but the server knows whose the token is, Doubted that the server has refused
	// it when it was last shown.
	Opaque, Doubted bool
}

// Credential is what requests to a server are signed in with for one request of a client, and for the
// call that has begun with it.
type Credential interface {
	// Own is the value of Authorization of what the client has asked for, and of the first request
	// of its call; "" for none.
	Own() string
	// Later is that of a request that goes on with the call.
	Later() string
	// Brought is that of a request that hands on what another request of the client has brought, an
	// answer or a cancellation. It reports whether that is good, as far as is known.
	Brought() (authorization string, good bool)
	// Ready waits until there is one for the first or a later request of the call, or returns why
	// not. It does not wait as long as the client is there to be told.
	Ready(ctx context.Context, first bool) error
	// Waits reports whether Ready would ever wait.
	Waits() bool
	// Hear takes the status with which the server has answered a request with this value.
	Hear(authorization string, status int)
	// Challenge takes the status, 401 or 403, and the values of WWW-Authenticate of it, and returns
	// these as the client is to see them.
	Challenge(status int, values []string) []string
	// Bring has Brought be what Forwarded.Seal has returned for this call.
	Bring(call, token string)
}

// use says what a request is made for.
type use int

const (
	first   use = iota // what the client has asked for, or the first request of its call
	later              // going on with the call
	brought            // handing on an answer or a cancellation
)

// useKey is the key of the context value that useOf reads.
type useKey struct{}

// usedFor returns a context in which requests are made for this.
func usedFor(ctx context.Context, u use) context.Context {
	if f := forwardedOf(ctx); f == nil || f.Credential == nil {
		return ctx
	}
	return context.WithValue(ctx, useKey{}, u)
}

func useOf(ctx context.Context) use {
	u, _ := ctx.Value(useKey{}).(use)
	return u
}

// authorization is what the next request of this context signs in with.
func authorization(ctx context.Context, c Credential) string {
	switch useOf(ctx) {
	case later:
		return c.Later()
	case brought:
		value, _ := c.Brought()
		return value
	}
	return c.Own()
}

// SealToken is the token of the request of this context, for whichever replica runs a call to which it
// brings an answer or a cancellation; "" for none.
func SealToken(ctx context.Context, call string) string {
	if f := forwardedOf(ctx); f != nil && f.Seal != nil {
		return f.Seal(call)
	}
	return ""
}

// BringToken has a call that goes on in this context hand on answers and its cancellation with a token that
// SealToken has returned.
func BringToken(ctx context.Context, call, token string) {
	if f := forwardedOf(ctx); f != nil && f.Credential != nil && token != "" {
		f.Credential.Bring(call, token)
	}
}

// Token describes what a request of this context signs in with, for shim.Session.
func Token(ctx context.Context) string {
	if f := forwardedOf(ctx); f != nil {
		return f.Token
	}
	return ""
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
	if f == nil || f.Credential == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(authorization(ctx, f.Credential)))
	return string(sum[:])
}

// errUnknownHeaders: a call goes on that came with headers, and they are not here. To make a
// request without them could be to make it for somebody else.
var errUnknownHeaders = errors.New("the headers that the call came with are known to another replica only")

// represented is an error if the context of a call has not all that belongs to its session. That is in the
// context of its client's request, and of all that follows from it; a call of another replica has only
// what it is given here.
func (w *wire) represented(ctx context.Context, s shim.Session) error {
	if s.Mark == "" || Mark(ctx) == s.Mark {
		return ready(ctx)
	}
	ue := fail(kindRefused, "the headers that the call came with were lost with the replica that ran it", errUnknownHeaders)
	ue.Unsent = true
	return ue
}

// ready waits until what requests carry in this context is good. A server that gets nothing from a
// client which has signed in would take it for somebody else.
func ready(ctx context.Context) error {
	f := forwardedOf(ctx)
	if f == nil || f.Credential == nil {
		return nil
	}
	if _, good := f.Credential.Brought(); good && useOf(ctx) == brought {
		return nil
	}
	err := f.Credential.Ready(ctx, useOf(ctx) == first)
	if err == nil || ctx.Err() != nil {
		return err
	}
	ue := fail(kindRefused, "the task waited for its owner to sign in again, and its owner did not", err)
	ue.Unsent = useOf(ctx) == first
	return ue
}

// awaitsSignIn reports whether a request is to be made again once the owner of its call has another
// token: the server has not taken the one that went out, and no client is there to be told.
func awaitsSignIn(ctx context.Context, err error) bool {
	se, ok := err.(*statusError)
	f := forwardedOf(ctx)
	return ok && se.status == http.StatusUnauthorized && useOf(ctx) != first && f != nil && f.Credential != nil && f.Credential.Waits()
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
	if f.Credential == nil {
		return
	}
	delete(req.Header, headerAuthorization)
	if value := authorization(req.Context(), f.Credential); value != "" {
		set(req.Header, headerAuthorization, value)
	}
}

// noteAnswer tells a client's credential how the server has answered a request that it has signed in.
func noteAnswer(req *http.Request, resp *http.Response) {
	f, value := forwardedOf(req.Context()), req.Header.Get(headerAuthorization)
	if f != nil && f.Credential != nil && resp != nil && value != "" {
		f.Credential.Hear(value, resp.StatusCode)
	}
}

// renewed is a request once more, with the token that stands in for the one that the server has refused
// with 401; nil if there is none. A server that asks for another token has not begun anything. None
// stands in for the first request of a call.
func renewed(req *http.Request, resp *http.Response) *http.Request {
	f := forwardedOf(req.Context())
	if f == nil || f.Credential == nil || resp == nil || resp.StatusCode != http.StatusUnauthorized || useOf(req.Context()) == first {
		return nil
	}
	refused := req.Header.Get(headerAuthorization)
	value := f.Credential.Later()
	if value == "" || value == refused {
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
	if f := forwardedOf(resp.Request.Context()); f != nil && f.Credential != nil {
		e.token, e.challenges = true, f.Credential.Challenge(e.status, resp.Header.Values("WWW-Authenticate"))
	}
}

const headerAuthorization = "Authorization"

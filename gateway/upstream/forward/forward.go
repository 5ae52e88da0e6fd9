// Package forward is about what of a client's request goes to a server with the requests that are made
// for that client: headers, and what it has signed in with. The gateway puts these [Parts] into a
// context ([With]); the upstream client writes them into its requests ([Write]) and says how the server
// has answered ([Answered]). They are in memory only: in no log, no span and no store.
package forward

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Parts are what of a client's request goes to the server with each request that is made for
// that client: with the one that the client makes, with those that the gateway needs for it
// (a handshake, a list of tools), and with those of a call that goes on without it. Nobody
// changes them.
type Parts struct {
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
	// Token says which tokens may stand in on another replica, for shim.Session.Token.
	Token string
	// Opaque says that nobody but the server knows whose the token is, Doubted that the server has refused
	// it when it was last shown.
	Opaque, Doubted bool
}

// Credential is what requests to a server are signed in with for one request of a client, and for the
// call that has begun with it.
type Credential interface {
	// Own is the value of Authorization of what the client has asked for, and of the first request
	// of its call; "" for none. Each value comes with whether it is good, as far as is known.
	Own() (authorization string, good bool)
	// Later is that of a request that goes on with the call.
	Later() (authorization string, good bool)
	// Brought is that of a request that hands on what another request of the client has brought, an
	// answer or a cancellation.
	Brought() (authorization string, good bool)
	// Ready waits until the value of the next request, one of these three, is good, or returns why it is
	// not. It does not wait as long as the client is there to be told.
	Ready(ctx context.Context, next func() (authorization string, good bool)) error
	// Waits reports whether Ready would ever wait.
	Waits() bool
	// Hear takes the status with which the server has answered a request with this value.
	Hear(authorization string, status int)
	// Challenge takes the status, 401 or 403, and the values of WWW-Authenticate of it, and returns
	// these as the client is to see them.
	Challenge(status int, values []string) []string
	// Bring has Brought be what Parts.Seal has returned for this call.
	Bring(call, token string)
}

// Use says what a request is made for.
type Use int

// The uses.
const (
	First   Use = iota // what the client has asked for, or the first request of its call
	Later              // going on with the call
	Brought            // handing on an answer or a cancellation
)

// useKey is the key of the context value that useOf reads.
type useKey struct{}

// For returns a context in which requests are made for this.
func For(ctx context.Context, u Use) context.Context {
	if Of(ctx).Credential == nil {
		return ctx
	}
	return context.WithValue(ctx, useKey{}, u)
}

func useOf(ctx context.Context) Use {
	u, _ := ctx.Value(useKey{}).(Use)
	return u
}

// next is what the next request of this context signs in with.
func next(ctx context.Context, c Credential) func() (authorization string, good bool) {
	switch useOf(ctx) {
	case Later:
		return c.Later
	case Brought:
		return c.Brought
	}
	return c.Own
}

func authorization(ctx context.Context, c Credential) string {
	value, _ := next(ctx, c)()
	return value
}

// SealToken is the token of the request of this context, for whichever replica runs a call to which it
// brings an answer or a cancellation; "" for none.
func SealToken(ctx context.Context, call string) string {
	if seal := Of(ctx).Seal; seal != nil {
		return seal(call)
	}
	return ""
}

// BringToken has a call that goes on in this context hand on answers and its cancellation with a token that
// SealToken has returned.
func BringToken(ctx context.Context, call, token string) {
	if c := Of(ctx).Credential; c != nil && token != "" {
		c.Bring(call, token)
	}
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

// partsKey is the key of the context value that Of reads.
type partsKey struct{}

// With returns a context in which requests to a server carry what f says.
func With(ctx context.Context, f *Parts) context.Context {
	return context.WithValue(ctx, partsKey{}, f)
}

// Carry returns to with what requests carry that are made in from: for what goes on after a
// request, and does not end with it.
func Carry(to, from context.Context) context.Context {
	if f := Of(from); f != Nothing {
		return With(to, f)
	}
	return to
}

// Nothing is what requests carry in a context of which nobody has said what they do.
var Nothing = &Parts{}

// Of is what requests carry that are made in this context.
func Of(ctx context.Context) *Parts {
	if f, _ := ctx.Value(partsKey{}).(*Parts); f != nil {
		return f
	}
	return Nothing
}

// Mark tells callers apart whose headers go to the server, for shim.Session: a hash of those of
// this context, "" for none.
func Mark(ctx context.Context) string {
	f := Of(ctx)
	if len(f.Header) == 0 {
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

// TokenMark tells apart what a server has said to different tokens. It is in memory only.
func TokenMark(ctx context.Context) string {
	c := Of(ctx).Credential
	if c == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(authorization(ctx, c)))
	return string(sum[:])
}

// ErrUnknownHeaders is the cause of an error of Represented: a call goes on that came with headers, and
// they are not here. To make a request without them could be to make it for somebody else.
var ErrUnknownHeaders = errors.New("the headers that the call came with are known to another replica only")

// Ready waits until what requests carry in this context is good. A server that gets nothing from a
// client which has signed in would take it for somebody else.
func Ready(ctx context.Context) error {
	c := Of(ctx).Credential
	if c == nil {
		return nil
	}
	err := c.Ready(ctx, next(ctx, c))
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &shim.UpstreamError{
		Kind: shim.KindRefused, Message: "the task waited for its owner to sign in again, and its owner did not",
		Err: err, Unsent: useOf(ctx) == First,
	}
}

// Answered tells a client's credential how the server has answered a request that it has signed in.
func Answered(req *http.Request, resp *http.Response) {
	c, value := Of(req.Context()).Credential, req.Header.Get(headerAuthorization)
	if c != nil && resp != nil && value != "" {
		c.Hear(value, resp.StatusCode)
	}
}

// Renewed is a request that goes on with a call once more, with the token that stands in for the one that
// the server has refused with 401; nil if there is none. A server that asks for another token has not begun
// anything. A refused answer is its client's, like the first request of a call.
func Renewed(req *http.Request, resp *http.Response) *http.Request {
	c := Of(req.Context()).Credential
	if c == nil || resp == nil || resp.StatusCode != http.StatusUnauthorized || useOf(req.Context()) != Later {
		return nil
	}
	refused := req.Header.Get(headerAuthorization)
	value, good := c.Later()
	if !good || value == "" || value == refused {
		return nil
	}
	again := req.Clone(req.Context())
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil
		}
		again.Body = body
	}
	_, _ = io.CopyN(io.Discard, resp.Body, drained)
	resp.Body.Close()
	again.Header[headerAuthorization] = []string{value}
	return again
}

const (
	headerAuthorization = "Authorization"
	drained             = 4 << 10 // how much of a refusal is read, so that its connection can be used again
)

// Represented is an error if the context of a call has not all that belongs to its session. That is in the
// context of its client's request, and of all that follows from it; a call of another replica has only
// what it is given here.
func Represented(ctx context.Context, s shim.Session) error {
	if s.Mark == "" || Mark(ctx) == s.Mark {
		return Ready(ctx)
	}
	return &shim.UpstreamError{
		Kind: shim.KindRefused, Message: "the headers that the call came with were lost with the replica that ran it",
		Err: ErrUnknownHeaders, Unsent: true,
	}
}

// Write adds to a request what its context has.
func Write(req *http.Request) {
	f := Of(req.Context())
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
		req.Header[headerAuthorization] = []string{value}
	}
}

// deaf is a credential that learns nothing from how the server answers: what the gateway asks by itself is
// no request of its client. So a refused request is not made again: the token would be the same.
type deaf struct{ Credential }

func (deaf) Waits() bool                               { return false }
func (deaf) Hear(string, int)                          {}
func (deaf) Challenge(_ int, values []string) []string { return values }

// unsigned signs nobody in.
type unsigned struct{ Credential }

func (unsigned) Own() (authorization string, good bool)     { return "", true }
func (unsigned) Later() (authorization string, good bool)   { return "", true }
func (unsigned) Brought() (authorization string, good bool) { return "", true }
func (unsigned) Challenge(_ int, values []string) []string  { return values }

// Unheard returns a context in which no answer of the server counts for the client's token.
func Unheard(ctx context.Context) context.Context {
	if c := Of(ctx).Credential; c != nil {
		return carrying(ctx, deaf{c})
	}
	return ctx
}

// carrying returns a context with another credential.
func carrying(ctx context.Context, c Credential) context.Context {
	f := *Of(ctx)
	f.Credential = c
	return With(ctx, &f)
}

// PassOn has an error of an unheard request count for the token after all: the client gets it as the answer to
// its own request.
func PassOn(ctx context.Context, err error) error {
	var refusal *Refusal
	if c := Of(ctx).Credential; c != nil && errors.As(err, &refusal) {
		c.Hear(authorization(ctx, c), refusal.Status)
		refusal.Challenges = c.Challenge(refusal.Status, refusal.Challenges)
	}
	return err
}

// takenKey is the key of the context value that Taken reads.
type takenKey struct{}

// WhenTaken returns a context in which f is called once the server has taken the token of a tools/call.
func WhenTaken(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, takenKey{}, f)
}

// Taken says that the server has begun to answer a call.
func Taken(ctx context.Context, method string) {
	if f, ok := ctx.Value(takenKey{}).(func()); ok && method == mcp.MethodToolsCall && useOf(ctx) == First {
		f()
	}
}

// Challenge is what a server's refusal of a request, 401 or 403, says to the client whose token the
// request carried. It reports false for another status, and where that is nobody's token.
func Challenge(resp *http.Response) (challenges []string, ok bool) {
	if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden || resp.Request == nil {
		return nil, false
	}
	c := Of(resp.Request.Context()).Credential
	if c == nil {
		return nil, false
	}
	return c.Challenge(resp.StatusCode, resp.Header.Values("WWW-Authenticate")), true
}

// AwaitsSignIn reports whether a request that was refused with 401 is to be made again once the owner
// of its call has another token: no client is there to be told.
func AwaitsSignIn(ctx context.Context) bool {
	c := Of(ctx).Credential
	return useOf(ctx) != First && c != nil && c.Waits()
}

// Unsigned returns a context in which requests carry the same, but for the token of the client. Its
// answers say nothing about that; isAsked is called where they show that the server asks for one.
func Unsigned(ctx context.Context) (bare context.Context, isAsked func()) {
	c := Of(ctx).Credential
	return carrying(ctx, unsigned{c}), func() { c.Hear(authorization(ctx, c), http.StatusOK) }
}

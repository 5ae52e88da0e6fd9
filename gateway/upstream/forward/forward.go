// Package forward decides which headers and which credential of a client's request go to a server with the
// requests that are made for that client. The gateway puts these [Parts] into a context ([With]); the
// upstream client writes them into its requests ([Write]) and reports the server's answers ([Answered]). They
// are in memory only, and stay out of logs, spans and the store.
package forward

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
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Parts are the parts of a client's request that go to the server with each request made for that client: its
// own one, those that the gateway needs for it (a handshake, a list of tools), and those of a call that goes
// on after it. Parts are constant.
type Parts struct {
	// Header are the headers of the client, by canonical names. Requests with different ones have different
	// sessions with the server.
	Header http.Header
	// Host takes the place of the host of the URL, unless it is "". Proxy are headers about the connection of
	// the client. Requests that differ in these share a session.
	Host  string
	Proxy http.Header
	// Credential signs the requests in; nil leaves the header Authorization to the configuration.
	Credential Credential
	// Seal returns what Credential signs in with, sealed for the replica that runs a call; "" if that is
	// nothing. Seal is nil if Credential is.
	Seal func(call string) string
	// Token says which tokens may stand in on another replica, for shim.Session.Token.
	Token string
	// Opaque says that only the server knows whose the token is. Doubted says that the server refused the
	// token when it was last shown.
	Opaque, Doubted bool
	// Exposed takes headers of the server's answer to the client's request; nil for none.
	Exposed *Exposed
}

// Credential signs in the requests to a server for one request of a client, and for the call that began with
// it.
type Credential interface {
	// Own is the value of Authorization for the client's own request, and for the first request of its call;
	// "" if it is missing. Each value comes with whether it is good, as far as is known.
	Own() (authorization string, good bool)
	// Later is the value for a request that goes on with the call.
	Later() (authorization string, good bool)
	// Brought is the value for a request that hands on an answer or a cancellation which another request of
	// the client has brought.
	Brought() (authorization string, good bool)
	// Ready waits until next, one of these three, returns a good value, or returns why it does not. While the
	// client is there to be told, it returns at once.
	Ready(ctx context.Context, next func() (authorization string, good bool)) error
	// Waits reports whether Ready would ever wait.
	Waits() bool
	// Hear takes the status with which the server answered a request with this value, of a method, sent then.
	Hear(authorization, method string, sent time.Time, status int)
	// Challenge takes the status, 401 or 403, and its values of WWW-Authenticate, and returns the values for
	// the client.
	Challenge(status int, values []string) []string
	// Bring sets the value of Brought to a token that Parts.Seal returned for this call.
	Bring(call, token string)
}

// Use says what a request is made for.
type Use int

// The uses.
const (
	First   Use = iota // the client's own request, or the first one of its call
	Later              // going on with the call
	Brought            // handing on an answer or a cancellation
)

// useKey is the key of the context value that useOf reads.
type useKey struct{}

// For returns a context in which requests are made for this use.
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

// HandsOn reports whether requests in this context hand on what another request of the client has brought.
func HandsOn(ctx context.Context) bool { return useOf(ctx) == Brought }

// next returns the function for the credential of the next request in this context.
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

// SealToken returns the token of the request of this context, sealed for the replica that runs the call to
// which it brings an answer or a cancellation; "" if the token is missing.
func SealToken(ctx context.Context, call string) string {
	if seal := Of(ctx).Seal; seal != nil {
		return seal(call)
	}
	return ""
}

// BringToken gives a call that goes on in this context a token of SealToken, for handing on answers and its
// cancellation.
func BringToken(ctx context.Context, call, token string) {
	if c := Of(ctx).Credential; c != nil && token != "" {
		c.Bring(call, token)
	}
}

// ServerRefusal is the cause of a shim.UpstreamError if the server refuses a client's credential.
type ServerRefusal struct {
	Status     int      // 401 or 403
	Challenges []string // the values of WWW-Authenticate for the client
	Text       string   // what the server says to people; for the log
}

// Error is for the log.
func (r *ServerRefusal) Error() string {
	if r.Text == "" {
		return "status " + strconv.Itoa(r.Status)
	}
	return "status " + strconv.Itoa(r.Status) + ": " + strconv.Quote(r.Text)
}

// Refused returns the HTTP status and the values of WWW-Authenticate for the client, as long as its request
// is unanswered.
func (r *ServerRefusal) Refused() (status int, challenges []string) { return r.Status, r.Challenges }

// partsKey is the key of the context value that Of reads.
type partsKey struct{}

// With returns a context in which requests to a server carry f.
func With(ctx context.Context, f *Parts) context.Context {
	return context.WithValue(ctx, partsKey{}, f)
}

// Carry returns to with the parts of from, for work that outlives a request.
func Carry(to, from context.Context) context.Context {
	if f := Of(from); f != Nothing {
		return With(to, f)
	}
	return to
}

// Nothing is what requests carry in a context without Parts.
var Nothing = &Parts{}

// Of returns the parts that requests carry in this context.
func Of(ctx context.Context) *Parts {
	if f, _ := ctx.Value(partsKey{}).(*Parts); f != nil {
		return f
	}
	return Nothing
}

// Mark is a hash of the headers of this context that go to the server, for shim.Session: it tells callers
// apart. "" if those are missing.
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
		h.Write(make([]byte, 8)) // marks the end of this header's values
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

// ErrUnknownHeaders is the cause of an error of Represented: the headers of a call that goes on are missing
// here. A request without them could be one for another caller.
var ErrUnknownHeaders = errors.New("the headers that the call came with are known to another replica only")

// Ready waits until the credential of this context is good. Without the credential the server would take a
// signed-in client for another caller.
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

// sentKey is the key of the context value that Answered reads.
type sentKey struct{}

// sent says what a request is.
type sent struct {
	method string
	at     time.Time
}

// Sending returns the context of a request of this method that is about to be sent.
func Sending(ctx context.Context, method string) context.Context {
	if f := Of(ctx); f.Credential == nil && f.Exposed == nil {
		return ctx
	}
	return context.WithValue(ctx, sentKey{}, sent{method, time.Now()})
}

// Answered tells a client's credential how the server answered a request that it signed in, and what the client is to
// see of the answer.
func Answered(req *http.Request, resp *http.Response) {
	f, value := Of(req.Context()), req.Header.Get(headerAuthorization)
	s, _ := req.Context().Value(sentKey{}).(sent)
	if resp != nil && useOf(req.Context()) == First {
		f.Exposed.take(s.method, resp.Header)
	}
	if c := f.Credential; c != nil && resp != nil && value != "" {
		c.Hear(value, s.method, s.at, resp.StatusCode)
	}
}

// Renewed returns a second copy of a request that goes on with a call, after the server has refused its token
// with 401, with the token that stands in; nil if that is missing. A server that asks for another token has
// begun nothing. A refused answer belongs to its client, like the first request of a call.
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
	again.Header[headerAuthorization] = []string{value}
	return again
}

const headerAuthorization = "Authorization"

// Represented returns an error if the context of a call lacks parts that belong to its session. The context
// of the client's request has them, and all contexts made from it; a call of another replica has only those
// that it was given here.
func Represented(ctx context.Context, s shim.Session) error {
	if s.Mark == "" || Mark(ctx) == s.Mark {
		return Ready(ctx)
	}
	return &shim.UpstreamError{
		Kind: shim.KindRefused, Message: "the headers that the call came with were lost with the replica that ran it",
		Err: ErrUnknownHeaders, Unsent: true,
	}
}

// Write adds the parts of its context to a request.
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

// deaf is a credential that ignores the server's refusals, for requests that the gateway makes by itself. So a
// refused request is not repeated: the token would be the same.
type deaf struct{ Credential }

func (deaf) Waits() bool { return false }
func (d deaf) Hear(authorization, method string, sent time.Time, status int) {
	if status != http.StatusUnauthorized {
		d.Credential.Hear(authorization, method, sent, status)
	}
}
func (deaf) Challenge(_ int, values []string) []string { return values }

// unsigned is an empty credential.
type unsigned struct{ Credential }

func (unsigned) Own() (authorization string, good bool)     { return "", true }
func (unsigned) Later() (authorization string, good bool)   { return "", true }
func (unsigned) Brought() (authorization string, good bool) { return "", true }
func (unsigned) Challenge(_ int, values []string) []string  { return values }

// Unheard returns a context in which refusals of the server leave the client's token alone.
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

// PassOn makes an error of an unheard request of a method count for the token after all: the client gets it as
// the answer to its own request.
func PassOn(ctx context.Context, method string, err error) error {
	var refusal *ServerRefusal
	if c := Of(ctx).Credential; c != nil && errors.As(err, &refusal) {
		c.Hear(authorization(ctx, c), method, time.Now(), refusal.Status)
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

// Taken says that the server has begun to answer a call, and so has taken its token.
func Taken(ctx context.Context, method string) {
	if f, ok := ctx.Value(takenKey{}).(func()); ok && method == mcp.MethodToolsCall && useOf(ctx) == First {
		f()
	}
}

// Challenge returns the challenges, for the client, of a response that refuses its token with 401 or 403. It
// reports false for another status, and for a request without a client's token.
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

// AwaitsSignIn reports whether a request that was refused with 401 is made again once the owner of its call
// has another token, because the client has left.
func AwaitsSignIn(ctx context.Context) bool {
	c := Of(ctx).Credential
	return useOf(ctx) != First && c != nil && c.Waits()
}

// Unsigned returns a context in which requests carry the same, except the token of the client. Answers leave
// the token alone.
func Unsigned(ctx context.Context) context.Context {
	return carrying(ctx, unsigned{Of(ctx).Credential})
}

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

var (
	errIdle   = errors.New("no sign of life within idle_timeout")
	errSlow   = errors.New("no answer within start_timeout")
	errClosed = errors.New("the client of the server is closed")
	errOver   = errors.New("the session with the server is over")
)

func newError(kind, message string, err error) *shim.UpstreamError {
	return &shim.UpstreamError{Kind: kind, Message: message, Err: err}
}

func protocolError(message string, err error) *shim.UpstreamError {
	return newError(shim.KindProtocol, message, err)
}

// markUnsent marks an error that came before the request itself was written.
func markUnsent(err error) error {
	if ue, ok := errors.AsType[*shim.UpstreamError](publicError(err)); ok {
		c := *ue // it may be shared by all who waited for the same handshake
		c.Unsent = true
		return &c
	}
	return err
}

// statusError is an HTTP response that is no answer to the request it was
// posted with. It is looked for by type and never in a chain of errors: inside
// an UpstreamError it may be about another message, a resumption or an answer to
// a question, and must not be taken for proof that the call was not begun.
type statusError struct {
	status int
	// rpc is the JSON-RPC error of the body, if it is ours: its id is that of the
	// request, or absent.
	rpc        *jsonrpc.Error
	retryAfter time.Duration
	// reason says why a 2xx is no answer.
	reason string
	// session says that the request named a session.
	session bool
	// token says that the request carried the token of a client, whose the refusal is then;
	// challenges are what the server says to that.
	token      bool
	challenges []string
}

// Error is for the log. What the server says in words stays out of it: the server may
// quote what its caller has answered.
func (e *statusError) Error() string {
	text := "status " + strconv.Itoa(e.status)
	if e.reason != "" {
		text += ": " + e.reason
	}
	if e.rpc != nil {
		text += ": JSON-RPC error " + strconv.FormatInt(e.rpc.Code, 10)
	}
	return text
}

// isSessionLost reports whether the server says that it no longer knows the session
// (X6). A 404 around "method not found" is about the method.
func (e *statusError) isSessionLost() bool {
	return e.status == http.StatusNotFound && e.session && (e.rpc == nil || e.rpc.Code != mcp.CodeMethodNotFound)
}

// isRefusal reports whether this is how a server refuses a message before it looks
// at what it asks for: HTTP 400 (protocol.md 2.5). Its codes about headers and
// versions are proof only there. In a 200, or on a stream, where progress may have
// come before, they say nothing about whether a tool ran.
func (e *statusError) isRefusal() bool { return e.status == http.StatusBadRequest }

// asAnswer is the JSON-RPC error that the status carries, where it is the server's
// answer. A refusal of credentials and a plea for relief are about the hop and
// stay errors of it, whatever their body says.
func (e *statusError) asAnswer() *jsonrpc.Error {
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return nil
	}
	return e.rpc
}

// publicError turns any error of this package into one that the caller may see: an
// UpstreamError, or what ended the caller's context.
func publicError(err error) error {
	if err == nil {
		return nil
	}
	if o, ok := errors.AsType[*outOfReach](err); ok {
		return o.err
	}
	if _, ok := errors.AsType[*shim.UpstreamError](err); ok {
		return err
	}
	if errors.Is(err, errClosed) {
		return newError(shim.KindUnreachable, "the gateway is shutting down", err)
	}
	if se, ok := err.(*statusError); ok {
		return se.asUpstreamError()
	}
	if errors.Is(err, errSlow) {
		return newError(shim.KindTimeout, "the server did not answer the handshake in time", err)
	}
	return err
}

func (e *statusError) asUpstreamError() *shim.UpstreamError {
	switch s := e.status; {
	case e.token && (s == http.StatusUnauthorized || s == http.StatusForbidden):
		return newError(shim.KindRefused, fmt.Sprintf("the server refused the client's sign-in (HTTP status %d)", s), &forward.Refusal{Status: s, Challenges: e.challenges})
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		return newError(shim.KindRefused, "the gateway's credentials were refused by the server", e)
	case s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable:
		ue := newError(shim.KindOverloaded, "the server is overloaded", e)
		ue.RetryAfterMs = e.retryAfter.Milliseconds()
		return ue
	case e.isSessionLost():
		return newError(shim.KindSession, "the server ended the session", e)
	case s == http.StatusBadGateway || s == http.StatusGatewayTimeout:
		return newError(shim.KindUnreachable, fmt.Sprintf("the server could not be reached: HTTP status %d", s), e)
	case s >= 300 && s < 400:
		return protocolError(fmt.Sprintf("the server redirects to another address (HTTP status %d), which is not followed", s), e)
	case e.reason != "":
		return protocolError("the server did not answer as MCP wants: "+e.reason, e)
	}
	return protocolError(fmt.Sprintf("the server answered with HTTP status %d", e.status), e)
}

// netError words what went wrong on the connection. reached says that a
// connection had been got, so that bytes may have been written.
func netError(err error, reached bool) *shim.UpstreamError {
	var ue *shim.UpstreamError
	var te *eventstream.TooLargeError
	var ne net.Error
	switch {
	case errors.As(err, &ue):
		return ue
	case errors.As(err, &te):
		return newError(shim.KindTooLarge, fmt.Sprintf("the server sent an event of more than %d bytes", te.Limit), err)
	case errors.Is(err, errIdle):
		return newError(shim.KindTimeout, "the server was silent for too long", err)
	case !reached && errors.As(err, &ne) && ne.Timeout():
		ue = newError(shim.KindTimeout, "connecting to the server took too long", err)
	case !reached:
		ue = newError(shim.KindUnreachable, "the server cannot be reached", err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return newError(shim.KindClosed, "the server closed the connection before it answered", err)
	default:
		return newError(shim.KindClosed, "the connection to the server broke before it answered", err)
	}
	ue.Unsent = true
	return ue
}

// retryAfter reads the header Retry-After, in seconds or as a date.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(v, 10, 32); err == nil {
		return max(0, time.Duration(n)*time.Second)
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// causeOf returns why ctx ended, nil while it has not.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// isDetached reports whether the caller let go of the call without cancelling it
// (design.md 0.6).
func isDetached(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), shim.ErrDetached)
}

// outOfReach: the server answered that it has nothing to replay.
type outOfReach struct{ err *shim.UpstreamError }

func (e *outOfReach) Error() string { return e.err.Error() }
func (e *outOfReach) Unwrap() error { return e.err }

// isPassing reports whether an error is one of the connection, which leaves the task as
// it is.
func isPassing(err error) bool {
	if se, ok := err.(*statusError); ok {
		return se.status >= 500 || se.status == http.StatusTooManyRequests || se.status == http.StatusRequestTimeout
	}
	ue, ok := errors.AsType[*shim.UpstreamError](err)
	return ok && (ue.Kind == shim.KindClosed || ue.Kind == shim.KindUnreachable || ue.Kind == shim.KindOverloaded)
}

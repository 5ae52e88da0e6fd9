package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/eventstream"
	"taskgate/shim"
)

var (
	errIdle   = errors.New("no sign of life within idle_timeout")
	errSlow   = errors.New("no answer within start_timeout")
	errMute   = errors.New("no answer to server/discover")
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
		c := *ue // all callers that waited for one handshake may share it
		c.Unsent = true
		return &c
	}
	return err
}

// publicError turns any error of this package into one that the caller may see: an UpstreamError, or the
// cause that ended the caller's context.
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
	if se, ok := err.(*transport.StatusError); ok {
		return se.UpstreamError()
	}
	if errors.Is(err, errSlow) {
		return newError(shim.KindTimeout, "the server did not answer the handshake in time", err)
	}
	return err
}

// netError words a failure of the connection. reached says that there was a connection, so that bytes
// may have been written.
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

// causeOf returns why ctx ended; nil while it lasts.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// isDetached reports whether the caller has left the call to another replica, and did not cancel it
// (design.md 0.6).
func isDetached(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), shim.ErrDetached)
}

// outOfReach is the server's answer that it has nothing to replay, or has forgotten the session or the
// task.
type outOfReach struct{ err *shim.UpstreamError }

func (e *outOfReach) Error() string { return e.err.Error() }
func (e *outOfReach) Unwrap() error { return e.err }

// lastWords are the statuses with which servers refuse a message for good.
var lastWords = []int{
	http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
	http.StatusNotAcceptable, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType,
}

// isFinal reports whether an error is the server's last word about a message. An error that is neither final nor known
// to pass is not understood: something that stands before the server may have its own words. So the message is sent
// again, if that is harmless, and a bounded number of times.
func isFinal(err error) bool {
	if se, ok := err.(*transport.StatusError); ok {
		return slices.Contains(lastWords, se.Status)
	}
	if _, busy := errors.AsType[*shim.BusyError](err); busy {
		return true // of the gateway, which has cancelled the call
	}
	ue, ok := errors.AsType[*shim.UpstreamError](err)
	return ok && !isPassing(err) && ue.Kind != shim.KindProtocol
}

// isPassing reports whether an error is known to be one of the connection, which may pass: the subject of the
// message stays as it was.
func isPassing(err error) bool {
	if se, ok := err.(*transport.StatusError); ok {
		return se.Status >= 500 || se.Status == http.StatusTooManyRequests || se.Status == http.StatusRequestTimeout
	}
	ue, ok := errors.AsType[*shim.UpstreamError](err)
	return ok && (ue.Unsent || ue.Kind == shim.KindClosed || ue.Kind == shim.KindUnreachable || ue.Kind == shim.KindOverloaded)
}

// awaitsSignIn reports whether a request is made again once the owner of its call has another token: the
// server has refused the present one, and the client has left.
func awaitsSignIn(ctx context.Context, err error) bool {
	se, ok := err.(*transport.StatusError)
	return ok && se.Status == http.StatusUnauthorized && forward.AwaitsSignIn(ctx)
}

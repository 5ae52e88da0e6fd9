package upstream

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// How a stream is resumed.
const (
	// maxTries is how many attempts in a row may fail, or end without an event and
	// without the server having asked for polling.
	maxTries   = 5
	firstRetry = 500 * time.Millisecond // where the server names no time
	maxRetry   = time.Minute            // whatever the server asks for
)

// reopen goes on with a stream that ended before the answer. A legacy stream
// with event ids is picked up by GET and Last-Event-ID (X12), which starts
// nothing on the server; anything else is lost.
func (x *exchange) reopen(ctx context.Context, in *inbound, why error) (*inbound, error) {
	if err := x.final(in, why); err != nil {
		return nil, err
	}
	// A server that asks to be polled (SEP-1699) ends its streams as often as it
	// likes; one that breaks them gets a few attempts.
	if x.retry == 0 || !errors.Is(why, io.EOF) {
		x.tries++
	}
	for {
		if x.tries > maxTries {
			return nil, netError(io.ErrUnexpectedEOF, true)
		}
		if err := pause(ctx, x.delay()); err != nil {
			return nil, err
		}
		again, err := x.replay()
		if err == nil {
			x.resumed = true
			return again, nil
		}
		if err := x.refused(ctx, err); err != nil {
			return nil, err
		}
		x.tries++
	}
}

// final tells the ends that resuming cannot mend.
func (x *exchange) final(in *inbound, why error) error {
	var tooLarge *eventstream.TooLargeError
	var ue *shim.UpstreamError
	switch {
	case in != nil && in.events == nil:
		return protocolError("the server answered another request than the one it was asked", why)
	case errors.As(why, &ue), errors.As(why, &tooLarge), context.Cause(x.life) != nil:
		return why
	case !x.state.resumable():
		return netError(why, true)
	}
	return nil
}

// delay is how long to wait before the next attempt: what the server asked for,
// or half a second, doubled with each failure and spread.
func (x *exchange) delay() time.Duration {
	d := x.retry
	if d == 0 {
		d = firstRetry
	}
	if x.tries > 1 {
		d <<= x.tries - 1
		d = d/2 + rand.N(d/2+1)
	}
	return min(d, maxRetry)
}

// replay asks for what came after the last event.
func (x *exchange) replay() (*inbound, error) {
	req, err := x.h.request(x.life, http.MethodGet, x.to, nil)
	if err != nil {
		return nil, err
	}
	set(req.Header, "Accept", mcp.TypeSSE)
	set(req.Header, mcp.HeaderLastEventID, x.state.Last)
	return x.receive(req)
}

// refused decides whether another attempt makes sense: it does unless the
// server has answered, for good, that it has nothing to replay.
func (x *exchange) refused(ctx context.Context, err error) error {
	if cause := ended(ctx); cause != nil {
		return cause
	}
	if context.Cause(x.life) != nil {
		return err
	}
	var se *statusError
	if !errors.As(err, &se) {
		return nil
	}
	switch s := se.status; {
	case se.lost(), s == http.StatusUnauthorized, s == http.StatusForbidden:
		return se
	case s == http.StatusConflict, s == http.StatusTooManyRequests, s == http.StatusRequestTimeout:
		return nil // 409: the server has not noticed yet that the old stream is gone
	case s >= 500:
		return nil
	}
	return fail(kindClosed, "the server closed the stream before it answered, and cannot resume it", se)
}

// pause waits. It returns why ctx ended, if that comes first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

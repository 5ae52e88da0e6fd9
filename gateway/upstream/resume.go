package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/semconv"
	"taskgate/shim"
)

// How a stream is resumed.
const (
	// maxTries is how many attempts in a row may fail, or end without an event and
	// without the server having asked for polling.
	maxTries   = 5
	firstRetry = 500 * time.Millisecond // where the server names no time
	maxRetry   = time.Minute            // whatever the server asks for
	// A resumed stream that is silent is asked for again after this time, twice as
	// long each time: server-everything 2026.8.31 replays on it what was said
	// before, and says nothing new (protocol.md C 9).
	firstQuiet = 5 * time.Second
	maxQuiet   = 30 * time.Second
)

// Resume goes on with a call from a checkpoint, possibly one of another replica.
// Nothing is sent to the server but a request for the rest of the stream, the
// answers to open questions and, if ctx ends, the cancellation.
// shim.ErrNotSent: the call was never announced. shim.ErrNotResumable: the
// answer is out of reach, because the call had no resumable stream, or because
// the server says so.
func (h *HTTP) Resume(ctx context.Context, r shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
	if len(cp) == 0 {
		return shim.Reply{}, shim.ErrNotSent
	}
	c, ok := decodeResumable(cp)
	if !ok {
		return shim.Reply{}, shim.ErrNotResumable
	}
	if s == nil {
		s = discard{}
	}
	if c.legacyAlone() {
		return h.resumeAlone(ctx, r, c, s)
	}
	l := &link{gen: c.Generation, id: c.Session, version: c.Version}
	ses := h.pool.adopt(r.Session, l)
	defer ses.release()
	x := h.legacyExchange(ses, l.target(), r, s)
	x.id, x.state, x.asks = c.ID, c, r.Rounds
	if c.Task != nil {
		x.task = newServerTask(x, c.Task)
	}
	m, err := x.resume(ctx)
	if detached(ctx) && err != nil {
		ses.keep()
	}
	if out, ok := errors.AsType[*outOfReach](err); ok {
		ses.lose(l)
		return shim.Reply{}, fmt.Errorf("%w: %w", shim.ErrNotResumable, out.err)
	}
	if err != nil {
		return shim.Reply{}, public(err)
	}
	return plainReply(r.Method, m)
}

// outOfReach: the server answered that it has nothing to replay.
type outOfReach struct{ err *shim.UpstreamError }

func (e *outOfReach) Error() string { return e.err.Error() }
func (e *outOfReach) Unwrap() error { return e.err }

// resume is run for a call that was sent before.
func (x *exchange) resume(ctx context.Context) (m jsonrpc.Message, err error) {
	ctx = x.startSpan(ctx)
	x.span.SetAttributes(semconv.Resumed.Bool(true))
	defer func() { x.endSpan(&m, err) }()
	x.resumed = true
	for _, p := range x.state.Pending {
		if id, err := jsonrpc.ParseID(p.ID); err == nil {
			x.ses.claim(id) // asked already: a replay of it is not another question
		}
	}
	x.reached.Store(true) // by whoever sent the call
	defer x.begin(ctx)()
	if err := ended(ctx); err != nil {
		return m, err // begin tells the server of a cancellation
	}
	defer x.task.settle()
	if x.task.id() != "" {
		return x.task.goOn(ctx)
	}
	in, err := x.reconnect(ctx, 0)
	if _, ok := errors.AsType[*outOfReach](err); ok {
		return m, err
	}
	if err != nil {
		return m, x.fault(ctx, err)
	}
	defer x.attend(ctx)()
	if x.queue = x.takeOver(); len(x.queue) > 0 {
		if err := x.ask(ctx, in); err != nil {
			in.close()
			return m, x.fault(ctx, public(err))
		}
	}
	err = x.through(ctx, in, &m)
	return m, err
}

// reopen goes on with a stream that ended before the answer. A legacy stream
// with event ids is picked up by GET and Last-Event-ID (X12), which starts
// nothing on the server; anything else is lost.
func (x *exchange) reopen(ctx context.Context, in *inbound, why error) (*inbound, error) {
	if err := x.final(in, why); err != nil {
		return nil, err
	}
	if se, ok := why.(*statusError); ok { // the head of a resumed stream came late
		if err := x.refused(ctx, se); err != nil {
			return nil, err
		}
	}
	if why == errSilent {
		x.tries = 0 // the server serves, though it has nothing to say
		return x.reconnect(ctx, 0)
	}
	// A server that asks to be polled (SEP-1699) ends its streams as often as it
	// likes; one that breaks them gets a few attempts.
	if x.retry == 0 || !errors.Is(why, io.EOF) {
		x.tries++
	}
	return x.reconnect(ctx, x.delay())
}

// reconnect asks for the rest of the stream until there is one or no more hope.
func (x *exchange) reconnect(ctx context.Context, wait time.Duration) (*inbound, error) {
	for x.tries <= maxTries {
		x.idle.pause() // it is not the server that is waited for
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		x.idle.resume()
		again, err := x.replay()
		if err == nil {
			x.resumed = true
			x.listenFor(again)
			return again, nil
		}
		if err := x.refused(ctx, err); err != nil {
			return nil, err
		}
		x.tries++
		wait = x.delay()
	}
	return nil, netError(io.ErrUnexpectedEOF, true)
}

// listenFor gives a resumed stream its time.
func (x *exchange) listenFor(in *inbound) {
	if x.quiet = min(2*x.quiet, maxQuiet); x.quiet == 0 {
		x.quiet = firstQuiet
	}
	if in.events != nil {
		in.expire(x.quiet)
	}
}

// final tells the ends that resuming cannot mend.
func (x *exchange) final(in *inbound, why error) error {
	var tooLarge *eventstream.TooLargeError
	var ue *shim.UpstreamError
	switch {
	case errors.As(why, &ue), errors.As(why, &tooLarge), context.Cause(x.life) != nil:
		return why
	case x.task.moveOn(why):
		return errBeside
	case in != nil && in.events == nil && !in.late:
		return protocolError("the server answered another request than the one it was asked", why)
	case !x.state.streamed():
		return netError(why, true)
	}
	return nil
}

// delay is how long to wait before the next attempt: what the server asked for,
// or half a second, doubled with each failure and spread.
func (x *exchange) delay() time.Duration {
	if x.tries <= 1 && x.retry > 0 {
		return x.retry
	}
	return max(x.retry, backoff(x.tries))
}

// backoff is how long to wait before the n-th attempt in a row, the first being
// 1: half a second, doubled each time and spread, so that those who lost the
// same server do not come back together.
func backoff(n int) time.Duration {
	d := min(firstRetry<<min(max(n-1, 0), 10), maxRetry)
	return d/2 + rand.N(d/2+1)
}

// replay asks for what came after the last event.
func (x *exchange) replay() (*inbound, error) {
	req, err := x.h.request(x.life, http.MethodGet, x.to, nil)
	if err != nil {
		return nil, err
	}
	set(req.Header, "Accept", mcp.TypeSSE)
	if x.state.Last != "" {
		set(req.Header, mcp.HeaderLastEventID, x.state.Last)
	}
	if x.standing {
		return x.receive(req)
	}
	return x.receiveLate(req)
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
	se, ok := err.(*statusError)
	if !ok {
		return nil
	}
	switch s := se.status; {
	case se.lost():
		return &outOfReach{se.upstream()}
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return se.upstream()
	case s == http.StatusConflict, s == http.StatusTooManyRequests, s == http.StatusRequestTimeout:
		return nil // 409: the server has not noticed yet that the old stream is gone
	case s >= 500:
		return nil
	}
	return &outOfReach{fail(kindClosed, "the server closed the stream before it answered, and cannot resume it", se)}
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

package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/eventstream"
	"taskgate/internal/semconv"
	"taskgate/internal/work"
	"taskgate/shim"
)

// How a stream is resumed.
const (
	// maxTries is how many attempts in a row may fail, or end before an event, except where the
	// server asks for polling.
	maxTries = 5
	// A resumed stream that is silent is asked for again after firstQuiet, and then after twice
	// as long each time: server-everything 2026.8.31 replays old messages on it, and sends
	// nothing new (protocol.md C 9).
	firstQuiet = 5 * time.Second
	maxQuiet   = 30 * time.Second
)

// resumeCall is runRequest for a call that was sent before.
func (x *exchange) resumeCall(ctx context.Context) (err error) {
	ctx = x.startSpan(ctx)
	x.span.SetAttributes(semconv.Resumed.Bool(true))
	defer func() { x.measureRequest(ctx, err); x.endSpan(err) }()
	x.res.resumed = true
	for _, p := range x.checkpoints.state.Pending {
		if x.calls != nil {
			x.calls.claimRequest(p.requestID()) // it was asked before: a replay is the same question
		}
	}
	x.reached.Store(true) // by the replica that sent the call
	defer x.beginExchange(ctx)()
	defer x.asking.quitAsking()
	if err := causeOf(ctx); err != nil {
		return err // beginExchange tells the server of a cancellation
	}
	defer x.task.noteNamed()
	if x.checkpoints.taskID() != "" {
		x.allowQuestions(ctx)
		x.task.noteNamed()
		return x.task.awaitEnd(ctx)
	}
	in, err := x.res.reconnectUntilOver(ctx, 0)
	if _, ok := errors.AsType[*outOfReach](err); ok {
		return err
	}
	if err != nil {
		return x.judgeError(ctx, err)
	}
	return x.finishAnswer(ctx, in)
}

// resumption picks up the stream of an exchange again. It belongs to the goroutine that reads
// the stream.
type resumption struct {
	x       *exchange
	resumed bool          // the stream is a resumed one
	tries   int           // failed attempts, since the last event
	retry   time.Duration // how long the server asks to wait before the next attempt
	quiet   time.Duration // how long a resumed stream may be silent
}

// noteEvent notes an event: the server is there, and may say when to come back.
func (r *resumption) noteEvent(it *transport.Event) {
	r.tries, r.quiet = 0, 0
	if it.Retry > 0 {
		r.retry = min(it.Retry, maxRetry)
	}
}

// reopenStream goes on with a stream that ended before the answer. A legacy stream with event
// ids is picked up by GET and Last-Event-ID (X12), which starts nothing on the server. Any
// other stream is lost.
func (r *resumption) reopenStream(ctx context.Context, in transport.Stream, why error) (transport.Stream, error) {
	if err := r.finalError(in, why); err != nil {
		return nil, err
	}
	// The server sends little more until it has the answers to its questions.
	if r.x.asking.restUntilAnswered() {
		r.tries = 0
	}
	if context.Cause(r.x.life) != nil {
		return nil, why
	}
	if why == errSilent {
		r.tries = 0 // the server is alive but idle
		return r.reconnectUntilOver(ctx, 0)
	}
	// A server that asks to be polled (SEP-1699) may end its streams at any time. A server that
	// breaks them gets a few attempts.
	if r.retry == 0 || !errors.Is(why, io.EOF) {
		r.tries++
	}
	return r.reconnectUntilOver(ctx, r.nextDelay())
}

// reconnectUntilOver asks for the rest of the stream until that succeeds, is refused for good,
// or maxTries is reached.
func (r *resumption) reconnectUntilOver(ctx context.Context, wait time.Duration) (transport.Stream, error) {
	for r.tries <= maxTries {
		r.x.idle.pauseWatch() // the pause is the gateway's own
		if err := work.Pause(ctx, wait); err != nil {
			return nil, err
		}
		r.x.idle.resumeWatch()
		again, err := r.x.askForRest()
		if err == nil {
			r.x.asking.startAsking()
			r.resumed = true
			if r.quiet = min(2*r.quiet, maxQuiet); r.quiet == 0 {
				r.quiet = firstQuiet
			}
			return &watched{Stream: again, d: r.quiet}, nil
		}
		if err := r.judgeRefusal(ctx, err); err != nil {
			return nil, err
		}
		r.tries++
		wait = r.nextDelay()
	}
	return nil, netError(io.ErrUnexpectedEOF, true)
}

// finalError returns an error if resuming is useless.
func (r *resumption) finalError(in transport.Stream, why error) error {
	var tooLarge *eventstream.TooLargeError
	var ue *shim.UpstreamError
	var busy *shim.BusyError
	switch {
	case errors.As(why, &ue), errors.As(why, &busy), errors.As(why, &tooLarge), context.Cause(r.x.life) != nil:
		return why
	case r.x.checkpoints.taskID() != "" && (why == errSilent || !r.x.checkpoints.state.hasStream()):
		return errBeside
	case in.Head().Single:
		return protocolError("the server answered another request than the one it was asked", why)
	case !r.x.checkpoints.state.hasStream():
		return netError(why, true)
	}
	return nil
}

// nextDelay is the pause before the next attempt: the one that the server asked for, or half a
// second, doubled with each failure and spread.
func (r *resumption) nextDelay() time.Duration {
	if r.tries <= 1 && r.retry > 0 {
		return r.retry
	}
	return max(r.retry, backoffOf(r.tries))
}

// askForRest asks for the events after the last one.
func (x *exchange) askForRest() (transport.Stream, error) {
	ctx := forward.For(x.life, forward.Later)
	if err := x.awaitCredential(ctx); err != nil {
		return nil, err
	}
	if !x.listens {
		late := time.AfterFunc(headPatience, func() { x.asking.startAsking() })
		defer late.Stop()
	}
	m := x.newMessage("", nil)
	m.Last, m.IsHeard = x.checkpoints.state.Last, x.isHeard
	return x.noteHead(x.w.via.Listen(ctx, m))
}

// judgeRefusal returns nil if another attempt makes sense. It returns an error if the server
// has answered, for good, that it has nothing to replay.
func (r *resumption) judgeRefusal(ctx context.Context, err error) error {
	if cause := causeOf(ctx); cause != nil {
		return cause
	}
	if context.Cause(r.x.life) != nil {
		return err
	}
	se, ok := err.(*transport.StatusError)
	if !ok {
		return nil
	}
	switch s := se.Status; {
	case se.IsSessionLost():
		return &outOfReach{se.UpstreamError()}
	case awaitsSignIn(forward.For(r.x.life, forward.Later), err):
		return nil
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return se.UpstreamError()
	case s/100 != 2 && !isFinal(se):
		return nil // as 409: the server has yet to notice that the old stream is gone
	}
	return &outOfReach{newError(shim.KindClosed, "the server closed the stream before it answered, and cannot resume it", se)}
}

// errBeside says that the stream of the call is over, and the task goes on beside it.
var errBeside = newError(shim.KindClosed, "the server closed the stream of the call", errors.New("its task goes on"))

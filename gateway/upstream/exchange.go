package upstream

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// target says in which words a request is put: of which version, in which
// session.
type target struct {
	era     mcp.Era
	version string // "" before it is negotiated
	session string // legacy; "" for none
	gen     int64
}

// exchange is one request and its answer, with everything the server says in
// between. It lives in the goroutine of its caller.
type exchange struct {
	h      *HTTP
	to     target
	ses    *session // the session it belongs to; nil in the modern era
	sink   shim.Sink
	caller shim.Session
	level  string // the least severe log level to hand on, "" for none

	id     string
	method string
	name   string
	params []byte
	meta   []pair      // members of params._meta besides progress and trace
	header http.Header // modern headers of the request
	// handshake says that the request belongs to a handshake: it is not recorded, and
	// not cancelled (an initialize must not be).
	handshake bool
	progress  bool // ask for progress
	asks      bool // the sink can be asked
	limits    shim.QuestionLimits
	standing  bool // a stream to listen on: it may be silent for ever
	// hear takes the notifications of a stream to listen on.
	hear func(jsonrpc.Message)

	state    checkpoint    // guarded by mu while aside is set
	noted    time.Time     // when an event id was last handed over
	unnoted  bool          // the last event id has not been handed over yet
	resumed  bool          // the stream is one that was resumed
	tries    int           // failed attempts to resume, since the last event
	retry    time.Duration // what the server asks to wait before it is asked again
	quiet    time.Duration // how long a resumed stream may be silent
	queue    []pending     // questions to be asked next
	reached  atomic.Bool
	life     context.Context
	end      context.CancelCauseFunc
	left     sync.WaitGroup // what the caller's end has set going
	idle     idle
	response *http.Response // the latest, for its headers
	aside    *asides        // questions of the server on the session's GET stream; nil for none
	turn     chan struct{}  // holds the one who asks, where aside is set
	mu       sync.Mutex
	handing  sync.Mutex  // held while a checkpoint is handed over, so that none overtakes another
	task     *serverTask // the task that the server makes of the call; nil for none
	span     trace.Span
	trace    propagation.MapCarrier // the context to pass on, by its W3C names
}

// run sends the request and returns the answer: a result or a JSON-RPC error.
// Errors are *statusError, *shim.UpstreamError or what ended ctx.
func (x *exchange) run(ctx context.Context) (m jsonrpc.Message, err error) {
	err = x.perform(ctx, &m)
	return m, err
}

// perform is run for a call that may be parked, and there may be thousands of those. What
// is below the frame in which it waits, a goroutine keeps all the time, so frames there
// are small: messages go by pointer.
func (x *exchange) perform(ctx context.Context, m *jsonrpc.Message) (err error) {
	ctx = x.startSpan(ctx)
	defer func() { x.endSpan(m, err) }()
	body, err := x.announce(ctx)
	if err != nil {
		return err
	}
	defer x.begin(ctx)()
	defer x.attend(ctx)()
	defer x.task.settle()
	in, err := x.post(x.life, body)
	if err != nil {
		return x.fault(ctx, err)
	}
	return x.through(ctx, in, m)
}

// announce records that the call is about to be sent, and returns what is. If that
// cannot be recorded, it must not be (design.md 0.6).
func (x *exchange) announce(ctx context.Context) ([]byte, error) {
	body := x.encode()
	x.state = checkpoint{Era: x.to.era.String(), Version: x.to.version, Session: x.to.session, Generation: x.to.gen, ID: x.id}
	if x.task != nil {
		x.state.Task = x.task.mark
	}
	if err := ended(ctx); err != nil || x.handshake {
		return body, err
	}
	if err := x.sink.Checkpoint(ctx, x.state.encode()); err != nil {
		ue := fail(kindUnreachable, "the call could not be recorded and was not sent", err)
		ue.Unsent = true
		return nil, ue
	}
	return body, ended(ctx)
}

// begin ties the exchange to ctx. The request has a life of its own, so that a
// cancellation can be told to the server before the connection goes. The
// returned function ends it and leaves no goroutine behind.
func (x *exchange) begin(ctx context.Context) func() {
	x.life, x.end = context.WithCancelCause(context.WithoutCancel(ctx))
	x.life = httptrace.WithClientTrace(x.life, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { x.reached.Store(true) },
	})
	if !x.standing {
		x.idle.start(x.h.cfg.IdleTimeout, func() { x.end(errIdle) })
	}
	x.left.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer x.left.Done()
		if !detached(ctx) {
			x.cancelUpstream(ctx)
		}
		x.end(context.Cause(ctx))
	})
	return func() {
		if !stop() {
			x.left.Wait()
		}
		x.idle.stop()
		x.end(nil)
		if detached(ctx) && x.ses != nil {
			x.ses.disclaim(x.unanswered())
		}
	}
}

// cancelUpstream tells a legacy server that nobody waits for the call any more.
// A modern one sees it by the connection's end (protocol.md H6).
func (x *exchange) cancelUpstream(ctx context.Context) {
	if x.to.era != mcp.Legacy || x.handshake || !x.reached.Load() || x.task.cancel(ctx) {
		return
	}
	ctx, cancel := aside(ctx, cancelTimeout)
	defer cancel()
	params := append(append([]byte(`{"requestId":`), jsonrpc.StringID(x.state.ID).Raw()...), `,"reason":"cancelled by the gateway"}`...)
	if err := x.h.tell(ctx, x.to, jsonrpc.AppendNotification(nil, mcp.NotifyCancelled, params)); err != nil {
		x.h.log.Debug("cancellation was not delivered", "err", err)
	}
}

// cancelTimeout bounds how long a cancelled call waits for its cancellation to
// be delivered.
const cancelTimeout = 2 * time.Second

// post sends the request and looks at the head of the response.
func (x *exchange) post(ctx context.Context, body []byte) (*inbound, error) {
	req, err := x.h.request(ctx, http.MethodPost, x.to, body)
	if err != nil {
		return nil, err
	}
	for name, values := range x.header {
		req.Header[name] = values
	}
	for key, value := range x.trace { // there too, for proxies that look there
		req.Header.Set(key, value)
	}
	return x.receive(req)
}

// receive performs a request and makes its response readable.
func (x *exchange) receive(req *http.Request) (*inbound, error) {
	return x.headed(x.fetch(req))
}

// fetch is receive for whichever goroutine.
func (x *exchange) fetch(req *http.Request) head {
	resp, err := x.h.do(req)
	if err != nil {
		return head{err: err}
	}
	x.idle.touch()
	in, err := x.h.accept(resp, x)
	return head{resp: resp, in: in, err: err}
}

// headed takes the head of a response.
func (x *exchange) headed(h head) (*inbound, error) {
	if h.resp != nil {
		x.response = h.resp
	}
	return h.in, h.err
}

// fault decides what an error means: the caller's end comes first, since it is
// what breaks the connection.
func (x *exchange) fault(ctx context.Context, err error) error {
	if cause := ended(ctx); cause != nil {
		return cause
	}
	if context.Cause(x.life) == errIdle {
		x.cancelUpstream(ctx)
		err = errIdle
	}
	if se, ok := err.(*statusError); ok {
		return se
	}
	ue := netError(err, x.reached.Load())
	if ue.Kind == kindTooLarge {
		x.cancelUpstream(ctx) // it may go on sending what we do not read
	}
	return ue
}

// converse reads messages until the answer is there. From here on no error is a
// *statusError: those that stand for the answer to the request itself, and may
// prove that it was not begun, have come before.
func (x *exchange) converse(ctx context.Context, in *inbound, m *jsonrpc.Message) (err error) {
	defer func() { in.close() }()
	defer x.leave(ctx)
	for done := false; !done; {
		it := in.next()
		if it.err == nil {
			if done, err = x.take(ctx, in, it, m); err != nil {
				return x.fault(ctx, public(err))
			}
			continue
		}
		in.close()
		if cause := ended(ctx); cause != nil {
			return cause
		}
		again, err := x.reopen(ctx, in, it.err)
		if err != nil {
			return x.fault(ctx, public(err))
		}
		in = again
	}
	in.finish()
	return x.tooLate(ctx)
}

// tooLate is the caller's end, if it came before the answer: what a server still
// says to a call that was cancelled is dropped (L26). To a call that was let go
// of the answer is welcome.
func (x *exchange) tooLate(ctx context.Context) error {
	if detached(ctx) {
		return nil
	}
	return ended(ctx)
}

// take handles one event: its id, and the messages in it. done says that answer is set.
func (x *exchange) take(ctx context.Context, in *inbound, it *item, answer *jsonrpc.Message) (done bool, err error) {
	x.tries, x.quiet = 0, 0
	x.mark(it)
	for i := range it.msgs {
		switch m := &it.msgs[i]; m.Kind {
		case jsonrpc.Request:
			if err := x.request(ctx, *m); err != nil {
				return false, err
			}
		case jsonrpc.Notification:
			x.notification(*m)
		case jsonrpc.Result, jsonrpc.ErrorResponse:
			if x.answers(*m) {
				x.task.answered(ctx, *m)
				*answer = *m
				return true, nil // the first counts (JSON-RPC 2.0 section 5)
			}
		}
	}
	x.note(ctx)
	if len(x.queue) > 0 {
		return false, x.ask(ctx, in)
	}
	return false, nil
}

// answers reports whether a response is the one to our request. An error
// without an id is ours where nothing else could be meant: not on a resumed
// stream, on which some servers replay everything (protocol.md C 9).
func (x *exchange) answers(m jsonrpc.Message) bool {
	if m.ID.IsZero() {
		return m.Kind == jsonrpc.ErrorResponse && !x.resumed
	}
	return m.ID.Equal(jsonrpc.StringID(x.id))
}

// mark remembers the event id and the reconnection time that an event carries.
func (x *exchange) mark(it *item) {
	if it.hasRetry {
		x.retry = min(it.retry, maxRetry)
	}
	if it.hasID && it.eventID != x.state.Last && x.to.era == mcp.Legacy {
		x.amend(func(c *checkpoint) { c.Last = it.eventID })
		x.unnoted = true
	}
}

// note hands over a new event id that no progress carried, at most once per
// second: what is lost in between is only replayed.
func (x *exchange) note(ctx context.Context) {
	if !x.unnoted || x.handshake || time.Since(x.noted) < time.Second {
		return
	}
	x.handOver(ctx)
}

// handOver hands over where the call is now. That this fails is no reason to
// end the call: it can then only be resumed from further back.
func (x *exchange) handOver(ctx context.Context) {
	x.noted, x.unnoted = time.Now(), false
	x.save(ctx)
}

// save is handOver for whichever goroutine has changed the checkpoint.
func (x *exchange) save(ctx context.Context) {
	x.handing.Lock()
	defer x.handing.Unlock()
	x.mu.Lock()
	cp := x.state.encode()
	x.mu.Unlock()
	if err := x.sink.Checkpoint(ctx, cp); err != nil {
		x.h.log.Debug("checkpoint was not taken", "err", err)
	}
}

// amend changes the checkpoint.
func (x *exchange) amend(change func(*checkpoint)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(&x.state)
}

// leave hands over how far the stream was read, for whoever goes on with a call that
// is let go of.
func (x *exchange) leave(ctx context.Context) {
	if detached(ctx) && x.unnoted && !x.handshake {
		x.handOver(ctx)
	}
}

// encode writes the request with its _meta.
func (x *exchange) encode() []byte {
	pairs := x.meta
	if x.progress {
		pairs = append(pairs, text(mcp.MetaProgressToken, x.id))
	}
	for key, value := range x.trace {
		pairs = append(pairs, text(key, value))
	}
	params := withMeta(x.params, pairs)
	return jsonrpc.AppendRequest(make([]byte, 0, len(params)+128), jsonrpc.StringID(x.id), x.method, params)
}

// raw copies bytes that are only valid until the next read.
func raw(b []byte) json.RawMessage {
	if b == nil {
		return nil
	}
	return append(json.RawMessage(make([]byte, 0, len(b))), b...)
}

package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// hearer takes the notifications that are outside of any call: a legacy session, the memory of a modern
// server, or a subscription.
type hearer interface{ takeNotification(shim.Notification) }

// exchange is one request and its answer, with everything the server says in between. It belongs to the
// goroutine of its caller, which also reads the stream. Other goroutines use its checkpoint and its
// questions, which have locks of their own.
type exchange struct {
	w       *wire
	to      target
	calls   *sessionCalls // the calls of its session; nil in the modern era
	outside hearer        // takes the notifications outside of any call
	sink    shim.Sink
	caller  shim.Session
	level   string // the least severe log level to hand on; "" keeps all back

	id     string
	method string
	name   string
	params []byte
	meta   []reading.Pair // members of params._meta besides progress and trace
	header http.Header    // modern headers of the request
	// uncancelled says that the server is not told when the caller stops waiting (an initialize must not be
	// cancelled).
	uncancelled bool
	progress    bool // ask for progress
	asks        bool // the sink can be asked
	limits      shim.QuestionLimits
	listens     bool          // the stream may be silent for ever
	isHeard     func() bool   // whether its client is there; nil means always
	unseen      bool          // the request has no span: there are many of its kind
	patience    time.Duration // bounds the silence of the server; 0 for idle_timeout

	checkpoints checkpointer // the checkpoint for the replica that goes on with the call
	res         resumption   // resumes the stream
	reached     atomic.Bool
	mute        time.Duration // how long the server may take to answer after it was reached; 0 for unbounded
	life        context.Context
	end         context.CancelCauseFunc
	left        sync.WaitGroup // the cancellation that the caller's end has started
	idle        idle
	head        transport.Head // of the latest stream
	begun       time.Time
	told        bool                  // the server has said something beside the answer
	cork        cork                  // holds back what the server has said, until the stream is waited for
	answer      reading.Response      // once it is there
	beside      chan *transport.Event // the answer, or its loss, on the GET stream; nil outside of sessions
	asking      questions             // what the server asks of the caller
	task        *serverTask           // the task that the server makes of the call; nil if it answers at once
	span        trace.Span
	parent      context.Context        // of the span of an unseen request that fails
	trace       propagation.MapCarrier // the context to pass on, by its W3C names
}

// runRequest sends the request and returns the answer: a result or a JSON-RPC error. Errors are
// *transport.StatusError, *shim.UpstreamError, *shim.BusyError or the cause that ended ctx.
func (x *exchange) runRequest(ctx context.Context) (jsonrpc.Message, error) {
	err := x.runApart(ctx)
	return x.answer.Message, err
}

// runApart is runRequest for a call that may wait long. There may be thousands of those, and a waiting
// goroutine keeps the stack of all its callers. So these frames are small, and the answer is left in
// x.answer.
func (x *exchange) runApart(ctx context.Context) (err error) {
	ctx = x.startSpan(ctx)
	defer func() { x.measureRequest(ctx, err); x.endSpan(err) }()
	body, err := x.announceRequest(ctx)
	if err != nil {
		return err
	}
	defer x.beginExchange(ctx)()
	defer x.asking.quitAsking()
	x.allowQuestions(ctx)
	defer x.task.noteNamed()
	in, err := x.postRequest(x.life, x.method, body)
	if err != nil {
		return x.judgeError(ctx, err)
	}
	return x.finishAnswer(ctx, in)
}

// announceRequest records that the call is about to be sent, and returns its body. If recording fails, the
// call must not be sent (design.md 0.6).
func (x *exchange) announceRequest(ctx context.Context) ([]byte, error) {
	var body []byte
	budget.From(ctx).InTurn(len(x.params), func() { body = x.encodeRequest() })
	if err := causeOf(ctx); err != nil {
		return nil, err
	}
	if err := x.sink.Checkpoint(x.checkpoints.state.encodeCheckpoint())(ctx); err != nil {
		ue := newError(shim.KindUnreachable, "the call could not be recorded and was not sent", err)
		ue.Unsent = true
		return nil, ue
	}
	return body, causeOf(ctx)
}

// beginExchange ties the exchange to ctx. The request has a life of its own, so that a cancellation reaches
// the server before the connection goes. The returned function ends the exchange and waits for its
// goroutines.
func (x *exchange) beginExchange(ctx context.Context) func() {
	x.life, x.end = context.WithCancelCause(context.WithoutCancel(ctx))
	x.asking.caller = ctx
	var own *budget.Hold // for a request of the gateway's own
	if budget.From(ctx) == nil && x.w.cfg.Budget != nil {
		own = x.w.cfg.Budget.Hold()
		x.life = budget.With(x.life, own)
	}
	if !x.listens {
		x.idle.startWatch(cmp.Or(x.patience, x.w.cfg.IdleTimeout), func() { x.end(errIdle) })
	}
	// The server already has a resumed call: from now on the GET stream may bring messages for it.
	if x.calls != nil && !x.listens {
		x.beside = make(chan *transport.Event, 1)
		x.calls.followStream(x.checkpoints.state.ID, x)
	}
	x.left.Add(1)
	early := false // the cancellation came before the request went out
	stop := context.AfterFunc(ctx, func() {
		defer x.left.Done()
		if !isDetached(ctx) {
			early = !x.reached.Load()
			x.cancelUpstream(ctx)
		}
		x.end(context.Cause(ctx))
	})
	return func() {
		if !stop() {
			x.left.Wait()
		}
		if x.calls != nil && !x.listens {
			x.calls.unfollowStream(x)
		}
		if early { // the request may have gone out all the same
			x.cancelUpstream(ctx)
		}
		x.checkpoints.finishAsides()
		x.idle.stopWatch()
		x.end(nil)
		own.Release()
		if isDetached(ctx) && x.calls != nil {
			x.calls.disclaimRequest(x.checkpoints.openQuestions())
		}
	}
}

// cancelUpstream tells the server that the caller no longer waits: it cancels the server's task, or the call
// at a legacy server. A modern server sees the cancellation by the connection's end (protocol.md H6).
func (x *exchange) cancelUpstream(ctx context.Context) {
	ctx = forward.For(ctx, forward.Brought)
	if x.uncancelled || !x.reached.Load() || x.task != nil && x.task.cancelTask(ctx) || x.to.era != mcp.Legacy {
		return
	}
	reason := "cancelled by the gateway"
	if by := new(shim.CancelledError); errors.As(context.Cause(ctx), &by) && by.Reason != "" {
		reason = by.Reason
	}
	ctx, cancel := outliveCaller(ctx, cancelTimeout)
	defer cancel()
	cancelled := mcp.AppendCancelled(nil, jsonrpc.TextID(x.checkpoints.state.ID), reason)
	if err := x.w.tellServer(ctx, x.to, cancelled); err != nil {
		x.w.log.Debug("cancellation was not delivered", "err", err)
	}
}

// cancelTimeout bounds how long a cancelled call waits for its cancellation to
// be delivered.
const cancelTimeout = 2 * time.Second

// postRequest sends the request and waits until the server takes it. If the server refuses the token of a
// request that goes on with a call, it is sent again once the owner has signed in. An answer goes out with the token of
// the request that brought it, and with no other.
func (x *exchange) postRequest(ctx context.Context, method string, body []byte) (transport.Stream, error) {
	for {
		if err := x.awaitCredential(ctx); err != nil {
			return nil, err
		}
		in, err := x.noteHead(x.w.via.Request(ctx, x.newMessage(method, body)))
		if err != nil && x.isAnsweredAside(err) {
			in, err = &aside{x}, nil
		}
		if err == nil {
			forward.Taken(ctx, method)
			return in, nil
		}
		if forward.HandsOn(ctx) || !awaitsSignIn(ctx, err) {
			return nil, err
		}
	}
}

// allowQuestions lets the call be asked. If the call uses the GET stream of its session, it waits a moment
// for that to open: a question may be lost if the server asks it before.
func (x *exchange) allowQuestions(ctx context.Context) {
	if opened := x.asking.startAsking(); opened != nil {
		x.calls.stream.awaitStream(ctx, opened)
	}
}

// awaitCredential waits until the client's token is good, if the client has left. The watch over the server's
// silence pauses meanwhile.
func (x *exchange) awaitCredential(ctx context.Context) error {
	x.idle.pauseWatch()
	defer x.idle.resumeWatch()
	return forward.Ready(ctx)
}

func (x *exchange) newMessage(method string, body []byte) *transport.Outgoing {
	m := x.to.newMessage(body)
	m.ID, m.Method, m.Params = jsonrpc.TextID(x.id), method, x.params
	m.Header, m.Caller = x.header, x.caller
	if len(x.trace) > 0 { // for proxies, which look there
		m.Header = make(http.Header, len(x.header)+len(x.trace))
		maps.Copy(m.Header, x.header)
		for key, value := range x.trace {
			m.Header.Set(key, value)
		}
	}
	m.Sender, m.Hold = x, budget.From(x.life)
	return &m
}

// noteHead notes that the server has taken the request, and how its stream begins.
func (x *exchange) noteHead(in transport.Stream, err error) (transport.Stream, error) {
	switch se, refused := err.(*transport.StatusError); {
	case err == nil:
		x.idle.noteHeard()
		x.head = in.Head()
	case refused:
		x.head = transport.Head{Protocol: se.Protocol}
	}
	return in, err
}

// NoteReached is called when bytes of the request may be written from now on.
func (x *exchange) NoteReached() {
	x.reached.Store(true)
	if x.mute > 0 {
		time.AfterFunc(x.mute, func() { x.end(errMute) })
	}
}

// NoteHeard is called when the server has just been heard.
func (x *exchange) NoteHeard() { x.idle.noteHeard() }

// NoteWaiting is called when all that the server has said is read.
func (x *exchange) NoteWaiting() { x.cork.setCork(false) }

// TakeRoom waits until there is room for n bytes of what the server says. They stay taken until the caller is
// done with the answer.
func (x *exchange) TakeRoom(n int64) error {
	x.cork.setCork(false)
	x.idle.pauseWatch() // the gateway waits for room, and not for the server
	defer x.idle.resumeWatch()
	return takeRoom(x.life, n)
}

// takeRoom waits until the hold of ctx has room for n more bytes of an answer.
func takeRoom(ctx context.Context, n int64) error {
	err := budget.From(ctx).Take(ctx, n)
	if errors.Is(err, budget.ErrFull) {
		return &shim.BusyError{Key: "max_bytes_in_flight", Limit: "bytes in flight to take the answer of the server"}
	}
	return err
}

// judgeError decides what an error means. The caller's end comes first, since it breaks the connection.
func (x *exchange) judgeError(ctx context.Context, err error) error {
	if cause := causeOf(ctx); cause != nil {
		return cause
	}
	switch cause := context.Cause(x.life); {
	case cause == errIdle:
		x.cancelUpstream(ctx)
		err = errIdle
	case cause != nil: // the server refused the answer to a question, and would wait for it for ever
		err = publicError(cause)
	}
	if se, ok := err.(*transport.StatusError); ok {
		return se
	}
	if busy, ok := errors.AsType[*shim.BusyError](err); ok {
		x.cancelUpstream(ctx) // as below
		return busy
	}
	ue := netError(err, x.reached.Load())
	if ue.Kind == shim.KindTooLarge {
		x.cancelUpstream(ctx) // it may go on sending after we stop reading
	}
	return ue
}

// readUntilAnswer reads messages until the answer is there. Its errors are never *transport.StatusError:
// those stand for the answer to the request itself, may prove that it was not begun, and have come before.
func (x *exchange) readUntilAnswer(ctx context.Context, in transport.Stream) (err error) {
	done := false
	defer func() {
		x.cork.setCork(false)
		if !done {
			in.Close()
		}
		in.Finish()
	}()
	defer x.checkpoints.saveUnnoted(ctx)
	for !done {
		it := in.Next()
		if it.Err == nil {
			if done, err = x.handleEvent(ctx, it); err != nil {
				return x.judgeError(ctx, publicError(err))
			}
			continue
		}
		why := it.Err
		x.cork.setCork(false)
		in.Close()
		if cause := causeOf(ctx); cause != nil {
			return cause
		}
		again, err := x.res.reopenStream(ctx, in, why)
		if err != nil {
			return x.judgeError(ctx, publicError(err))
		}
		in = again
	}
	return x.tooLate(ctx)
}

// tooLate returns the caller's end, if it came before the answer: the answer to a cancelled call is dropped
// (L26). The answer to a detached call is welcome.
func (x *exchange) tooLate(ctx context.Context) error {
	if isDetached(ctx) {
		return nil
	}
	return causeOf(ctx)
}

// handleEvent handles one event: its id, and its message. done says that the message is the answer.
func (x *exchange) handleEvent(ctx context.Context, it *transport.Event) (done bool, err error) {
	x.res.noteEvent(it)
	m := &it.Message
	// A replica that goes on after the event of a question misses the question. So the event counts as read
	// once the checkpoint has the question: another goroutine may save it meanwhile.
	if m.Kind == jsonrpc.Request {
		x.cork.setCork(false)
		if err := x.handleRequest(ctx, *m); err != nil {
			return false, err
		}
	}
	if it.HasID && x.to.era == mcp.Legacy {
		x.checkpoints.markEvent(it.ID)
	}
	switch m.Kind {
	case jsonrpc.Notification:
		x.cork.setCork(true)
		x.passNotification(*m)
	case jsonrpc.Result, jsonrpc.ErrorResponse:
		if x.isAnswer(*m) {
			x.answer = reading.ReadAnswer(*m)
			if x.task != nil {
				x.task.takeAnswer(ctx, x.answer)
			}
			return true, nil // the first counts (JSON-RPC 2.0 section 5)
		}
	}
	if x.checkpoints.isDue() {
		x.cork.setCork(false)
		x.checkpoints.handOver(ctx)
	}
	return false, nil
}

// handleRequest takes a request of the server. A ping is answered at once; a question goes to the mailbox of
// the call, or is refused.
func (x *exchange) handleRequest(ctx context.Context, m jsonrpc.Message) error {
	if x.to.era != mcp.Legacy {
		x.w.log.Warn("modern server sent a request, which it must not", "method", m.Method)
		return nil
	}
	if m.Method == mcp.MethodPing {
		x.postAside(ctx, jsonrpc.AppendResult(nil, m.ID, nil))
		return nil
	}
	// A server without sessions may number its requests anew at any time, so every request on a first stream
	// is new.
	if !x.calls.claimRequest(m.ID) && (x.to.session != "" || x.res.resumed) {
		return nil // a replay: this call or another has been asked
	}
	if refused := x.asking.addQuestion(m, false); refused != nil {
		return x.postResponse(ctx, jsonrpc.AppendError(nil, m.ID, refused))
	}
	return nil
}

// postAside posts the response to a ping, or to a question of no call. A failure is only logged: no tool waits for the
// response, and a server that gives its client up for it ends the stream.
func (x *exchange) postAside(ctx context.Context, body []byte) {
	if err := x.postResponse(ctx, body); err != nil {
		x.w.log.Debug("a response to the server was not delivered", "err", err)
	}
}

// postResponse posts a response. The server blocks on it, so it is posted again after a broken connection:
// the server ignores a second response to an id.
func (x *exchange) postResponse(ctx context.Context, body []byte) error {
	return x.w.postAnswer(ctx, x.life, x.to, body)
}

// isAnswer reports whether a response is the one to our request. An error that lacks an id is ours, except on
// a resumed stream, on which some servers replay everything (protocol.md C 9).
func (x *exchange) isAnswer(m jsonrpc.Message) bool {
	if m.ID.IsZero() {
		return m.Kind == jsonrpc.ErrorResponse && !x.res.resumed
	}
	return m.ID.Equal(jsonrpc.TextID(x.id))
}

// encodeRequest writes the request with its _meta.
func (x *exchange) encodeRequest() []byte {
	pairs := x.meta
	if x.progress {
		pairs = append(pairs, reading.Pair{Key: mcp.MetaProgressToken, Value: json.RawMessage(jsonrpc.TextID(x.id).Raw())})
	}
	for key, value := range x.trace {
		pairs = append(pairs, reading.Text(key, value))
	}
	params := reading.WithMeta(x.params, pairs)
	return jsonrpc.AppendRequest(make([]byte, 0, len(params)+128), jsonrpc.TextID(x.id), x.method, params)
}

// discard is the Sink, and the hearer, of the gateway's own requests.
type discard struct{}

func (discard) Progress(shim.Progress)             {}
func (discard) Log(shim.Log)                       {}
func (discard) Withdraw(string)                    {}
func (discard) takeNotification(shim.Notification) {}
func (discard) RoomToAsk(int) bool                 { return true }
func (discard) Ask(context.Context, ...shim.Question) ([]shim.Answer, error) {
	return nil, shim.ErrNoAsk
}
func (discard) Checkpoint(json.RawMessage) (stored func(context.Context) error) {
	return func(context.Context) error { return nil }
}

// finishAnswer reads the answer to the request. If that is a task, it follows the task to its end.
func (x *exchange) finishAnswer(ctx context.Context, in transport.Stream) error {
	err := x.readUntilAnswer(ctx, in)
	if x.task == nil {
		return err
	}
	return x.task.followAnswer(ctx, err)
}

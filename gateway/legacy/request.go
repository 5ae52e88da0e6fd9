package legacy

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/sealed"
	"taskgate/gateway/translate"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// request is one request in a session.
type request struct {
	h         *Handler
	s         *session
	state     sessionState // as of the request's arrival
	principal shim.Principal
	msg       jsonrpc.Message
	meta      json.RawMessage // params._meta
	name      string          // of the tool or prompt, or the resource's URI
	called    string          // name as the client has spelt it, also where a tool is hidden from it
	hidden    endpoint.Hidden
	says      shim.Hints      // what the server says of the tool, for its policy
	task      json.RawMessage // params.task
	retry     json.RawMessage // params.requestState
	token     json.RawMessage // the client's progress token; nil if it wants none
	out       *wire.Exchange
	begun     time.Time
	op        *wire.Operation
	log       *answerStream // of its answer
	gone      chan struct{} // closed when its client has gone while it goes on
	// leave takes it from the calls that the limit counts; nil before enterCalls.
	leave func()
}

// methods are the methods with a handler of their own; all others are passed on. A nil entry is answered as an
// unknown method: it belongs to the modern era, and a server that knows both eras might misunderstand it.
var methods = map[string]serve{
	mcp.MethodPing:                 (*request).answerPing,
	mcp.MethodToolsCall:            inMode((*request).callTool),
	mcp.MethodSetLevel:             (*request).setLevel,
	mcp.MethodResourcesSubscribe:   (*request).answerSubscribe,
	mcp.MethodResourcesUnsubscribe: (*request).answerUnsubscribe,

	mcp.MethodTasksGet:    withTasks((*request).getTask),
	mcp.MethodTasksResult: withTasks(inMode((*request).awaitTask)),
	mcp.MethodTasksList:   withTasks((*request).listTasks),
	mcp.MethodTasksCancel: withTasks((*request).cancelTask),

	mcp.MethodTasksUpdate: nil, mcp.MethodDiscover: nil, mcp.MethodListen: nil,
}

// uncounted are the methods outside of the limit on calls in flight: they wait neither for a server nor for a
// task.
var uncounted = map[string]bool{
	mcp.MethodPing: true, mcp.MethodTasksGet: true, mcp.MethodTasksList: true, mcp.MethodTasksCancel: true,
}

// serveRequest answers a request.
func (h *Handler) serveRequest(w http.ResponseWriter, r *http.Request, s *session, p shim.Principal, msg jsonrpc.Message) {
	var q *request
	budget.From(r.Context()).InTurn(len(msg.Raw), func() { q = newLegacyRequest(h, s, p, msg) })
	logged := make(chan struct{}) // closed once q has its log: its client may leave before
	x := wire.NewExchange(w, r, wire.ExchangeOptions{
		KeepAlive: h.Global.KeepAlive, Outlives: true,
		Progress: h.KeptProgress(msg.Method, q.name, q.token), Left: func() { <-logged; q.noteGone() },
	})
	defer x.Close()
	q.log = startLog(r.Context(), q, x, h.Global.ResumeAfter)
	close(logged)
	defer q.log.finishStream()
	q.out = x
	q.answerRequest(r)
}

func newLegacyRequest(h *Handler, s *session, p shim.Principal, msg jsonrpc.Message) *request {
	q := &request{h: h, s: s, state: s.currentState(), principal: s.principalOf(p), msg: msg, begun: time.Now(), gone: make(chan struct{})}
	var params [4]json.RawMessage
	msg.Pick([]string{"_meta", mcp.NameParam(msg.Method), "task", "requestState"}, params[:])
	q.meta, q.task, q.retry = params[0], params[2], params[3]
	q.name, _ = jsonrpc.String(params[1])
	q.called = q.name
	// A token must be a string or a number, and short enough to be kept and repeated; any other one is ignored.
	token, _ := jsonrpc.Get(q.meta, mcp.MetaProgressToken)
	if id, err := jsonrpc.ParseID(token); err == nil && !id.Long() {
		q.token = token
	}
	return q
}

// enterCalls counts a request among the calls in flight, or fails if these are at their limit.
func (q *request) enterCalls() error {
	q.leave = func() {}
	if uncounted[q.msg.Method] {
		return nil
	}
	share := q.principal.Share()
	if err := q.h.Calls.Enter(share); err != nil {
		return wire.TurnAway(err)
	}
	q.leave = sync.OnceFunc(func() { q.h.Calls.Leave(share) })
	return nil
}

// answerRequest puts a request under observation and among those in flight, serves it, and answers it if its client
// still waits. If there is no room for it, or if it is a call that is in flight already, the answer is an error.
func (q *request) answerRequest(r *http.Request) {
	ctx, op := q.h.Telemetry.Start(r.Context(), r, wire.Request{
		Msg: q.msg, Meta: q.meta, Name: q.name, Version: q.state.Version, Upstream: q.h.Name, SessionID: q.s.id,
		Principal: q.principal, ClientInfo: q.state.ClientInfo,
	})
	q.op = op
	defer op.End()
	if q.leave == nil {
		if err := q.enterCalls(); err != nil {
			q.answerError(err)
			return
		}
	}
	defer q.leave()
	ctx, land, ok := q.s.beginRequest(ctx, q.principal, q.msg)
	if !ok {
		q.answerError(wire.InvalidRequest(q.msg.ID, "this call is in flight already"))
		return
	}
	defer land() // also after a panic
	wire.Begun(q.log.client)
	q.noteRights(ctx)
	result, err := q.serveMethod(ctx)
	cause := context.Cause(ctx)
	land() // before the answer: a client may use the id again as soon as it has that
	switch {
	case errors.Is(cause, shim.ErrCancelled):
		q.op.Cancelled()
		now := "it is cancelled at the server"
		if errors.Is(err, shim.ErrKept) {
			now = "it goes on for a while, and the same call made again picks it up"
		}
		q.tellLeft(now)
		q.out.Drop()
	case errors.Is(err, errLeft):
		q.op.Cancelled()
		q.log.noteLeft()
		q.out.Drop()
	case err != nil:
		q.h.LogFailure(ctx, q.msg.Method, err)
		q.answerError(err)
	default:
		q.out.Result(q.msg.ID, result)
	}
}

// noteGone is called when the connection of the client has ended, while the request goes on.
func (q *request) noteGone() {
	close(q.gone)
	switch {
	case q.s.passing: // it is cancelled
	case q.log.on.Load():
		q.tellLeft("it goes on, and its answer is kept for the client to resume the stream")
	default:
		q.tellLeft("it goes on, and its answer reaches nobody")
	}
}

// tellLeft has the log say, once, that the client has left a call that still ran, and what happens to that now. It may
// be called while the request goes on, so it takes the policy by the name alone.
func (q *request) tellLeft(now string) {
	if q.msg.Method != mcp.MethodToolsCall || q.h.ReadsTasks(q.msg.Method, q.called, q.describeCaller()) || q.log.told.Swap(true) {
		return
	}
	d := q.h.Departure(q.describeCaller(), q.called, q.h.Config.Tool(q.called, shim.Hints{}), q.token != nil, time.Since(q.begun), now)
	d.Era = mcp.Legacy.String()
	q.h.Telemetry.ClientLeft(q.log.client, d)
}

// noteRights notes what the caller is shown. The client is told to read its list of tools again, unless it does so with
// this request, when it is shown other tools than it has read: it has come with another token.
func (q *request) noteRights(ctx context.Context) {
	mark, reads := q.h.RightsMark(ctx), q.msg.Method == mcp.MethodToolsList
	if known := q.s.currentState().Rights; mark == known || known == "" && !reads {
		return
	}
	err := q.s.updateState(ctx, func(st sessionState) (sessionState, error) {
		st.Rights = mark
		return st, nil
	})
	if err == nil && !reads { // else the next request is another try
		q.s.postMessage(jsonrpc.AppendNotification(nil, mcp.NotifyToolsListChanged, nil))
	}
}

// serveMethod serves a request by its method.
func (q *request) serveMethod(ctx context.Context) (json.RawMessage, error) {
	serve, known := methods[q.msg.Method]
	switch {
	case q.strayState():
		return nil, sealed.ErrSealed
	case serve != nil:
		return serve(q, ctx)
	case known:
		return nil, wire.MethodNotFound(q.msg.Method)
	}
	return q.relayRequest(ctx)
}

// answerError answers with an error. It keeps three statuses: 400 for a wrong message, 429 and 503 for a call
// that did not begin because this replica is full or stops. The status of a server that wants its client to
// sign in is kept too. To a legacy client 404 means that its session is gone (X6), and it ignores the body of
// other errors.
func (q *request) answerError(err error) {
	q.h.Telemetry.Refused(q.log.client, err)
	f := *wire.FailureOf(q.state.Version, err)
	switch f.Status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		f.Status = http.StatusOK
	}
	q.op.Failed(f.Code)
	q.out.Error(q.msg.ID, &f)
}

// strayState reports whether a request comes with a state of a gateway. Clients of this era get none, so it
// leads to no call (design.md 0.18).
func (q *request) strayState() bool {
	state, _ := jsonrpc.String(q.retry)
	return mcp.MayRequireInput(q.msg.Method) && translate.OfGateway(state)
}

// answerPing answers a ping, which asks whether this connection works (protocol.md 7.5).
func (q *request) answerPing(context.Context) (json.RawMessage, error) {
	return json.RawMessage(`{}`), nil
}

// newLog makes the log of the answer to a request, which goes out on a stream.
func newLog(ctx context.Context, q *request, x *wire.Exchange, stream string) *answerStream {
	l := &answerStream{
		s: q.s, x: x, ctx: context.WithoutCancel(ctx), w: writer{s: q.s, name: stream}, id: q.msg.ID,
		unsent: make(map[string]bool), ended: make(chan struct{}), turn: work.NewTurn(),
	}
	l.client, l.cut = context.WithCancel(ctx)
	return l
}

// startLog makes the log of an answer, which begins to store messages after a time. The answer in a passing session
// cannot be resumed, and is never stored.
func startLog(ctx context.Context, q *request, x *wire.Exchange, after time.Duration) *answerStream {
	l := newLog(ctx, q, x, q.state.branchOf(q.principal)+rand.Text()[:16])
	if q.s.passing {
		return l
	}
	l.turn.Take() // the timer must not see a half-made log
	l.timer = time.AfterFunc(after, l.beginLog)
	l.turn.Give()
	return l
}

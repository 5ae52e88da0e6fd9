package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// legacyRequest is one request in a session.
type legacyRequest struct {
	s         *session
	state     sessionState // as of the request's arrival
	principal shim.Principal
	msg       jsonrpc.Message
	name      string          // of the tool or prompt, or the resource's URI
	token     json.RawMessage // the client's progress token; nil if it wants none
	out       answer
	op        *operation
	client    context.Context // ends when the client's connection does
	log       *eventLog       // of its answer; nil in a batch, which cannot be resumed
	// land takes the request from those in flight: before it is answered, since a
	// client may use its id again as soon as it has the answer.
	land func()
}

// answer is where the answer to a request goes: an exchange of its own, or its place in
// the batch it came in.
type answer interface {
	Notify(method string, params json.RawMessage) error
	// Send is Notify for a message that is already complete, such as a request to the
	// client.
	Send(message []byte) error
	// Streams reports whether the client takes messages ahead of the answer.
	Streams() bool
	Result(id jsonrpc.ID, result json.RawMessage)
	Error(id jsonrpc.ID, code int64, message string, data json.RawMessage, status int)
	// Drop says that there is no answer.
	Drop()
}

// legacyMethods are the methods that are not simply passed on. A nil entry does
// not exist for a legacy client: it belongs to the modern era, and a server that
// knows both might take it for something else.
var legacyMethods = map[string]legacyServe{
	mcp.MethodPing:                 (*endpoint).pong,
	mcp.MethodToolsCall:            (*endpoint).callLegacyTool,
	mcp.MethodSetLevel:             (*endpoint).setLevel,
	mcp.MethodResourcesSubscribe:   (*endpoint).subscribe,
	mcp.MethodResourcesUnsubscribe: (*endpoint).unsubscribe,

	mcp.MethodTasksGet:    withTasks((*endpoint).getLegacyTask),
	mcp.MethodTasksResult: withTasks((*endpoint).resultOfTask),
	mcp.MethodTasksList:   withTasks((*endpoint).listLegacyTasks),
	mcp.MethodTasksCancel: withTasks((*endpoint).cancelLegacyTask),

	mcp.MethodTasksUpdate: nil, mcp.MethodDiscover: nil, mcp.MethodListen: nil,
}

// serveLegacyRequest answers a request that came alone.
func (e *endpoint) serveLegacyRequest(w http.ResponseWriter, r *http.Request, s *session, p shim.Principal, msg jsonrpc.Message) {
	q := newLegacyRequest(s, p, msg)
	x := newExchange(w, r, exchangeOptions{Version: q.state.Version, KeepAlive: e.gateway.config.KeepAlive})
	defer x.Close()
	q.log = startLog(s, x, q.state.Version, e.gateway.config.ResumeAfter, msg.ID)
	defer q.log.finish()
	q.out = single{x}
	ctx, end := e.beginLegacy(r, q)
	defer end()
	if ctx != nil {
		e.answerLegacy(ctx, q)
	}
}

func newLegacyRequest(s *session, p shim.Principal, msg jsonrpc.Message) *legacyRequest {
	q := &legacyRequest{s: s, state: s.current(), principal: s.principal(p), msg: msg}
	q.name, _ = jsonrpc.GetString(msg.Params, mcp.NameParam(msg.Method))
	// A token that is neither string nor number is none.
	if token, ok := jsonrpc.Get(msg.Params, "_meta", mcp.MetaProgressToken); ok {
		if _, err := jsonrpc.ParseID(token); err == nil {
			q.token = token
		}
	}
	return q
}

// resumes reports whether the client can come back for the answer if its connection
// breaks.
func (q *legacyRequest) resumes() bool { return q.log.on.Load() }

// beginLegacy puts a request under observation and among those in flight. Where
// its id is in use it is answered at once, and the context is nil: two answers
// with one id could not be told apart.
func (e *endpoint) beginLegacy(r *http.Request, q *legacyRequest) (ctx context.Context, end func()) {
	q.client = r.Context()
	ctx, q.op = e.tel.start(r.Context(), r, request{
		msg: q.msg, name: q.name, version: q.state.Version, upstream: e.name, sessionID: q.s.id,
	})
	ctx, done, ok := q.s.begin(ctx, q.msg.ID)
	if !ok {
		q.fail(invalidRequest(q.msg.ID, "another request in flight has this id"))
		return nil, q.op.end
	}
	q.land = sync.OnceFunc(done)
	return ctx, func() {
		q.land()
		q.op.end()
	}
}

// answerLegacy serves a request and answers it, unless there is nobody who waits
// for an answer.
func (e *endpoint) answerLegacy(ctx context.Context, q *legacyRequest) {
	serve, known := legacyMethods[q.msg.Method]
	var result json.RawMessage
	var err error
	switch {
	case q.strayState():
		err = sealed.ErrSealed
	case serve != nil:
		result, err = serve(e, ctx, q)
	case known:
		err = methodNotFound(q.msg.Method)
	default:
		result, err = e.relayLegacy(ctx, q)
	}
	cause := context.Cause(ctx)
	q.land()
	switch {
	case errors.Is(err, errCut): // it has its answer
		q.out.Drop()
	case errors.Is(cause, shim.ErrCancelled), errors.Is(err, errLeft):
		q.op.cancelled()
		q.out.Drop()
	case err != nil:
		e.logFailure(ctx, q.msg.Method, err)
		q.fail(err)
	default:
		q.out.Result(q.msg.ID, result)
	}
}

// fail answers with an error. Of the statuses only 400 is kept, for what is wrong
// with the message itself: to a legacy client 404 means that its session is gone
// (X6), and of others it does not read the body.
func (q *legacyRequest) fail(err error) {
	f := failureOf(q.state.Version, err)
	status := http.StatusOK
	if f.Status == http.StatusBadRequest {
		status = f.Status
	}
	q.op.failed(f.Code)
	q.out.Error(q.msg.ID, f.Code, f.Message, f.Data, status)
}

// strayState reports whether a request comes with a state of a gateway, which nobody
// gave to a client of this era: it cannot come back to a call (design.md 0.18).
func (q *legacyRequest) strayState() bool {
	state, _ := jsonrpc.GetString(q.msg.Params, "requestState")
	return asks(q.msg.Method) && ofGateway(state)
}

// pong answers a ping: it asks whether this connection works (protocol.md 7.5).
func (e *endpoint) pong(context.Context, *legacyRequest) (json.RawMessage, error) {
	return json.RawMessage(`{}`), nil
}

// single answers a request that came alone.
type single struct{ *exchange }

// Drop ends the exchange without an answer.
func (s single) Drop() { s.exchange.drop() }

package modern

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Handler answers the requests of the modern era at one endpoint.
type Handler struct {
	*endpoint.Endpoint
	stateSaid sync.Once
}

// method says how a method is served.
type method struct {
	// serve returns the result or an error.
	serve func(q *request, ctx context.Context) (jsonrpc.Spliced, error)
	// capability is what the upstream has to advertise for the method to exist.
	capability string
	// tasks says that the method exists only if tasks are offered, and only for clients that
	// declare the extension (T6).
	tasks bool
	// uncounted says that the method is outside of the limit on calls in flight: it waits neither
	// for a server nor for a task. A call may wait for an answer that comes this way.
	uncounted bool
}

// methods are the requests of the modern era (protocol.md 2.1). Other methods of the protocol are
// unknown here, as are those that the era removed: initialize, ping, tasks/result, tasks/list
// (T12). A method of an extension is passed on.
var methods = map[string]method{
	mcp.MethodDiscover:              {serve: (*request).answerDiscover},
	mcp.MethodListen:                {serve: (*request).answerListen, uncounted: true}, // it is a stream
	mcp.MethodToolsList:             {serve: (*request).relayRequest, capability: "tools"},
	mcp.MethodToolsCall:             {serve: (*request).callTool, capability: "tools"},
	mcp.MethodPromptsList:           {serve: (*request).relayRequest, capability: "prompts"},
	mcp.MethodPromptsGet:            {serve: (*request).relayRequest, capability: "prompts"},
	mcp.MethodResourcesList:         {serve: (*request).relayRequest, capability: "resources"},
	mcp.MethodResourceTemplatesList: {serve: (*request).relayRequest, capability: "resources"},
	mcp.MethodResourcesRead:         {serve: (*request).relayRequest, capability: "resources"},
	mcp.MethodComplete:              {serve: (*request).relayRequest, capability: "completions"},
	mcp.MethodTasksGet:              {serve: (*request).getTask, tasks: true, uncounted: true},
	mcp.MethodTasksUpdate:           {serve: (*request).updateTask, tasks: true, uncounted: true},
	mcp.MethodTasksCancel:           {serve: (*request).cancelTask, tasks: true, uncounted: true},
}

// ServePOST answers a message of the modern era. Its checks are in the order of protocol.md 2.5, so
// that a client with several mistakes is told the same one as by other servers.
func (h *Handler) ServePOST(w http.ResponseWriter, r *http.Request, p shim.Principal, msg jsonrpc.Message) {
	if msg.Kind == jsonrpc.Notification {
		// A request is cancelled over HTTP by closing its stream, and a task by tasks/cancel (T42),
		// so notifications are ignored.
		w.WriteHeader(http.StatusAccepted)
		return
	}
	header := r.Header
	if wire.IsStdio(r.Context()) {
		header = nil
	}
	var q *request
	var err error
	budget.From(r.Context()).InTurn(len(msg.Raw), func() { q, err = readEnvelope(header, msg) })
	if err == nil {
		err = checkHeader(header, mcp.HeaderMethod, "method", msg.Method)
	}
	q.h, q.principal, q.host = h, p, r.Host
	m, ok := methods[msg.Method]
	if mcp.Foreign(msg.Method) {
		m, ok = method{serve: (*request).relayForeign}, true
	}
	if err == nil && (!ok || m.tasks && !h.Convertible()) {
		err = wire.MethodNotFound(msg.Method)
	}
	if err != nil {
		h.Telemetry.Refuse(w, r, wire.Request{Msg: msg, Version: q.version, Upstream: h.Name}, err)
		return
	}
	q.serveMethod(w, r, m)
}

// serveMethod serves a method that exists, under observation.
func (q *request) serveMethod(w http.ResponseWriter, r *http.Request, m method) {
	ctx, op := q.h.Telemetry.Start(r.Context(), r, wire.Request{Msg: q.msg, Meta: q.meta, Name: q.name, Version: q.version, Upstream: q.h.Name, Principal: q.principal, ClientInfo: q.clientInfo})
	defer op.End()
	q.op, q.begun = op, time.Now()
	q.x = wire.NewExchange(w, r, wire.ExchangeOptions{
		KeepAlive: q.h.Global.KeepAlive,
		Progress:  q.h.KeptProgress(q.msg.Method, q.name, q.token),
		Returns:   true,
	})
	defer q.x.Close()

	result, err := q.checkAndServe(ctx, m)
	switch {
	case ctx.Err() != nil: // the client has gone, and takes no answer (2.6)
		op.Cancelled()
		if q.msg.Method == mcp.MethodToolsCall && !q.h.ReadsTasks(q.msg.Method, q.name, q.describeCaller()) {
			now := "it is cancelled at the server"
			if errors.Is(err, shim.ErrKept) {
				now = "it goes on for a while, and the same call made again picks it up"
			}
			d := q.h.Departure(q.describeCaller(), q.name, q.policy(), q.token != nil, time.Since(q.begun), now)
			d.Era = mcp.Modern.String()
			q.h.Telemetry.ClientLeft(ctx, d)
		}
	case err != nil:
		q.h.Telemetry.Refused(ctx, err)
		q.h.LogFailure(ctx, q.msg.Method, err)
		f := wire.FailureOf(q.version, err)
		op.Failed(f.Code)
		q.x.Error(q.msg.ID, f)
	default:
		q.x.Spliced(q.msg.ID, result)
	}
}

// checkAndServe makes the checks that need the upstream or the method, then calls the method, if there is room for
// one more call.
func (q *request) checkAndServe(ctx context.Context, m method) (jsonrpc.Spliced, error) {
	if !m.uncounted {
		share := q.principal.Share()
		if err := q.h.Calls.Enter(share); err != nil {
			return nil, wire.TurnAway(err)
		}
		defer q.h.Calls.Leave(share)
	}
	if q.h.ReadsTasks(q.msg.Method, q.name, q.describeCaller()) {
		m = method{serve: (*request).taskResult}
	}
	if m.capability != "" {
		server, err := q.describeUpstream(ctx)
		if err != nil {
			if q.msg.Method == mcp.MethodToolsCall {
				q.h.Telemetry.Unreached(ctx, q.h.Name, q.name, q.begun)
			}
			return nil, err
		}
		if _, ok := jsonrpc.Get(server.Capabilities, m.capability); !ok {
			return nil, wire.MethodNotFound(q.msg.Method)
		}
		q.server = server
	}
	if err := checkNameHeader(q); err != nil {
		return nil, err
	}
	if m.tasks && !q.tasks && !q.legacyTask(ctx) {
		return nil, wire.NeedsTasks(q.msg.Method + " needs the extension " + mcp.ExtensionTasks)
	}
	if err := checkName(q); err != nil {
		return nil, err
	}
	// The call and its session at the server have copies of what the client declares.
	if n := len(q.capabilities) + len(q.clientInfo); n > budget.Free && budget.From(ctx).Take(ctx, int64(n)) != nil {
		return nil, wire.NoRoom()
	}
	return m.serve(q, ctx)
}

package gateway

import (
	"context"
	"encoding/json"
	"net/http"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// modernMethod is what the modern face does with a method.
type modernMethod struct {
	// serve answers the request with a result or an error. Neither means that it
	// has answered by itself.
	serve func(e *endpoint, ctx context.Context, q *modernRequest, x *exchange) (json.RawMessage, error)
	// capability is what the upstream has to advertise for the method to exist.
	capability string
	// tasks says that the method exists only where tasks are offered, and only for
	// clients that declare the extension (T6).
	tasks bool
}

// modernMethods are the requests of the modern era (protocol.md 2.1). What is not
// here does not exist, and that includes what the era removed: initialize, ping,
// tasks/result, tasks/list (T12).
var modernMethods = map[string]modernMethod{
	mcp.MethodDiscover:              {serve: (*endpoint).discover},
	mcp.MethodListen:                {serve: (*endpoint).listen},
	mcp.MethodToolsList:             {serve: (*endpoint).relay, capability: "tools"},
	mcp.MethodToolsCall:             {serve: (*endpoint).callTool, capability: "tools"},
	mcp.MethodPromptsList:           {serve: (*endpoint).relay, capability: "prompts"},
	mcp.MethodPromptsGet:            {serve: (*endpoint).relay, capability: "prompts"},
	mcp.MethodResourcesList:         {serve: (*endpoint).relay, capability: "resources"},
	mcp.MethodResourceTemplatesList: {serve: (*endpoint).relay, capability: "resources"},
	mcp.MethodResourcesRead:         {serve: (*endpoint).relay, capability: "resources"},
	mcp.MethodComplete:              {serve: (*endpoint).relay, capability: "completions"},
	mcp.MethodTasksGet:              {serve: (*endpoint).getTask, tasks: true},
	mcp.MethodTasksUpdate:           {serve: (*endpoint).updateTask, tasks: true},
	mcp.MethodTasksCancel:           {serve: (*endpoint).cancelTask, tasks: true},
}

// serveModernPOST answers a message of the modern era. The order of its checks is
// that of protocol.md 2.5, so that a client with several mistakes is told of the
// same one as by other servers.
func (e *endpoint) serveModernPOST(w http.ResponseWriter, r *http.Request, p shim.Principal, msg jsonrpc.Message) {
	if msg.Kind == jsonrpc.Notification {
		// None has a meaning over HTTP: a request is cancelled by closing its
		// stream, and a task by tasks/cancel (T42).
		w.WriteHeader(http.StatusAccepted)
		return
	}
	q, err := readEnvelope(r.Header, msg)
	if err == nil {
		err = checkMethodHeader(r.Header, msg.Method)
	}
	q.principal = p
	method, ok := modernMethods[msg.Method]
	if err == nil && (!ok || method.tasks && !e.convertible()) {
		err = methodNotFound(msg.Method)
	}
	if err != nil {
		e.refuse(w, r, q.version, msg, err)
		return
	}
	e.serveModern(w, r, q, method)
}

// refuse answers a request that is not served for what its envelope, its headers
// or its method say. It is a request all the same, and is observed.
func (e *endpoint) refuse(w http.ResponseWriter, r *http.Request, version string, msg jsonrpc.Message, err error) {
	f := *failureOf(version, err)
	if msg.Kind == jsonrpc.Request {
		f.ID = msg.ID
		_, op := e.tel.start(r.Context(), r, request{msg: msg, version: version, upstream: e.name})
		op.failed(f.Code)
		defer op.end()
	}
	writeFailure(w, version, &f)
}

// serveModern serves a method that exists, under observation.
func (e *endpoint) serveModern(w http.ResponseWriter, r *http.Request, q *modernRequest, m modernMethod) {
	ctx, broken, release := requestContext(r)
	defer release()
	ctx, op := e.tel.start(ctx, r, request{msg: q.msg, meta: metaCarrier(q.meta), name: q.name, version: q.version, upstream: e.name})
	defer op.end()
	q.op = op
	x := newExchange(w, r, exchangeOptions{
		Version: q.version, KeepAlive: e.gateway.config.KeepAlive, Broken: broken, Op: op,
	})
	defer x.Close()

	result, err := e.answerModern(ctx, q, m, x)
	switch {
	case ctx.Err() != nil: // the client has gone, and takes no answer (2.6)
		op.cancelled()
	case err != nil:
		e.logFailure(ctx, q.msg.Method, err)
		x.Fail(q.msg.ID, err)
	case result != nil:
		x.Result(q.msg.ID, result)
	}
}

// answerModern makes the checks that need the upstream or the method, then calls
// the method.
func (e *endpoint) answerModern(ctx context.Context, q *modernRequest, m modernMethod, x *exchange) (json.RawMessage, error) {
	if e.readsTasks(q.msg.Method, q.name) {
		m = modernMethod{serve: (*endpoint).modernTaskResult}
	}
	if m.capability != "" {
		server, err := e.describe(ctx, q)
		if err != nil {
			return nil, err
		}
		if _, ok := jsonrpc.Get(server.Capabilities, m.capability); !ok {
			return nil, methodNotFound(q.msg.Method)
		}
		q.server = server
	}
	if err := checkNameHeader(q); err != nil {
		return nil, err
	}
	if m.tasks && !q.tasks && !e.legacyTask(ctx, q) {
		return nil, needsTasks(q.msg.Method + " needs the extension " + mcp.ExtensionTasks)
	}
	if err := checkName(q); err != nil {
		return nil, err
	}
	return m.serve(e, ctx, q, x)
}

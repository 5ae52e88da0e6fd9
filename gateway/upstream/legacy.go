package upstream

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

func (c *call) attemptLegacy(ctx context.Context, v *verdict) (shim.Reply, error) {
	ses := c.h.sessions.acquireSession(c.r.Session)
	defer ses.releaseSession()
	x, l, err := c.enterSession(ctx, v, ses)
	if err != nil {
		return shim.Reply{}, err
	}
	err = x.runApart(ctx)
	return c.inLegacy(ctx, v, ses, l, x, err)
}

// enterSession opens the session and words the call for it.
func (c *call) enterSession(ctx context.Context, v *verdict, ses *session) (*exchange, *generation, error) {
	l, err := ses.openGeneration(ctx)
	if err != nil {
		if c.h.memory.doubtHandshake(v, err) {
			return nil, nil, &notBegun{why: otherEra, v: v, err: markUnsent(handshakeError(err))}
		}
		return nil, nil, markUnsent(err)
	}
	v.shaken.Store(true)
	ses.awaitRoots(ctx)
	ses.get.noteUse(ctx)
	l.lowerLevel(ctx, ses, c.r.LogLevel)
	x := ses.newExchange(l.target, c.r, c.sink)
	x.asks = c.r.Rounds
	c.noteExchange(x)
	c.asTask(ctx, x, l)
	return x, l, nil
}

// inLegacy makes a reply of the outcome of a call in a session.
func (c *call) inLegacy(ctx context.Context, v *verdict, ses *session, l *generation, x *exchange, err error) (shim.Reply, error) {
	if err != nil && isDetached(ctx) && x.reached.Load() {
		ses.retainSession()
	}
	if err == nil && x.answer.Error == nil {
		c.noteAgreed(ctx, ses, l)
		ses.lists.noteList(ctx, c.r.Method, c.r.Params, x.answer.Result)
	}
	refused := isRefused(err)
	reply, err := c.legacyReply(ctx, v, ses, l, x, err)
	if err == nil || refused {
		ses.doubt.noteOutcome(ctx, l, refused || reply.Error != nil || reply.IsError)
	}
	if reply.Error != nil && reply.Error.Code == mcp.CodeMethodNotFound && c.r.Method == mcp.MethodToolsCall {
		c.h.memory.forgetTools(c.r.Session) // the tool may need a task by now, or take none (L4)
	}
	if err == nil && reply.Error != nil && c.r.Rounds {
		reply.Round = reading.OpenFirst(c.r.Session, reply.Error)
	}
	return reply, err
}

// isRefused reports whether the server has refused a message in a session that it may know.
func isRefused(err error) bool {
	se, refused := err.(*transport.StatusError)
	return refused && !se.IsSessionLost()
}

// noteAgreed notes what the server has agreed to and a later generation may have to be told again.
func (c *call) noteAgreed(ctx context.Context, ses *session, l *generation) {
	switch c.r.Method {
	case mcp.MethodSetLevel:
		if level, ok := jsonrpc.GetString(c.r.Params, "level"); ok {
			ses.noteLevel(ctx, level)
		}
	case mcp.MethodResourcesSubscribe:
		if uri, ok := jsonrpc.GetString(c.r.Params, "uri"); ok {
			ses.subs.noteSubscribed(ctx, uri, l)
		}
	case mcp.MethodResourcesUnsubscribe:
		if uri, ok := jsonrpc.GetString(c.r.Params, "uri"); ok {
			ses.subs.noteSubscribed(ctx, uri, nil)
		}
	}
}

// legacyReply reads the answer, or the news about the session in its place.
func (c *call) legacyReply(ctx context.Context, v *verdict, ses *session, l *generation, x *exchange, err error) (shim.Reply, error) {
	if contradictsLegacy(err) {
		return shim.Reply{}, &notBegun{why: otherEra, v: v, ses: ses, generation: l, err: err}
	}
	if se, ok := err.(*transport.StatusError); ok {
		switch {
		case se.IsSessionLost():
			return shim.Reply{}, &notBegun{why: lostSession, ses: ses, generation: l, err: err}
		case se.Status == http.StatusBadRequest || se.Status == http.StatusNotFound:
			// The refusal may be about the request, or about the session. It is no proof, so
			// the request is not repeated. But if the session is lost, the next request begins
			// with a handshake.
			_ = ses.verifyGeneration(ctx, l)
		}
		if rpc := se.Answer(); rpc != nil {
			return shim.Reply{Error: reading.ErrorOf(rpc)}, nil
		}
		if se.Status == http.StatusBadRequest && mcp.Foreign(c.r.Method) {
			// The Go SDK 1.8.0 refuses an unknown method with a text.
			return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeMethodNotFound, Message: "the server does not know the method " + c.r.Method}}, nil
		}
	}
	if err != nil {
		return shim.Reply{}, err
	}
	return reading.SessionReply(c.r.Method, x.answer)
}

// asTask has the server run the call as a task, if the tool wants to be called so (L4). If that
// stays unknown, the call goes as it is.
func (c *call) asTask(ctx context.Context, x *exchange, l *generation) {
	if c.r.Method != mcp.MethodToolsCall || c.h.wire.cfg.Tasks == TasksNever || l.version != mcp.Version20251125 {
		return
	}
	// The capabilities are unknown if a checkpoint names the session: then the tools list alone decides.
	if !l.server.hasCapability("tasks", "requests", "tools", "call") { // L1
		return
	}
	tool, _ := c.findTool(ctx) // a call in a session is never made again with answers
	support := tool.taskSupport
	if support != "required" && !(support == "optional" && c.h.wire.cfg.Tasks == TasksAlways) {
		return
	}
	params, err := jsonrpc.Set(x.params, taskParams(c.r.Within), "task")
	if err != nil { // the server rejects such params
		return
	}
	x.task = newServerTask(x, &taskMark{})
	x.params = params
}

// taskParams are params.task. The requested ttl is the longest time that the
// call may take: with a shorter one the task could end while it runs (H9).
func taskParams(within time.Duration) []byte {
	if within <= 0 {
		return []byte("{}")
	}
	return append(strconv.AppendInt([]byte(`{"ttl":`), within.Milliseconds(), 10), '}')
}

package upstream

import (
	"context"
	"net/http"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// exchange puts a request in the words of one generation of the session.
func (s *session) exchange(to target, r shim.Request, sink shim.Sink) *exchange {
	x := s.t.wire.exchange(to, r, sink)
	x.ses, x.outside = s, s
	return x
}

// exchange is what both eras have in common.
func (w *wire) exchange(to target, r shim.Request, sink shim.Sink) *exchange {
	x := &exchange{
		w: w, outside: discard{}, to: to, sink: sink, caller: r.Session, level: r.LogLevel,
		id: w.nextID(), method: r.Method, name: r.Name, params: r.Params,
		progress: r.Progress || r.Method == mcp.MethodToolsCall, limits: r.Limits,
	}
	x.rec.sink, x.rec.log = sink, w.log
	x.asking.x, x.res.x = x, x
	return x
}

// legacy makes one attempt at a call in the session that it belongs to.
func (c *call) legacy(ctx context.Context, v *verdict) (shim.Reply, error) {
	ses := c.h.sessions.acquire(c.r.Session)
	defer ses.release()
	x, l, err := c.enter(ctx, v, ses)
	if err != nil {
		return shim.Reply{}, err
	}
	err = x.perform(ctx)
	return c.inLegacy(ctx, v, x, l, err)
}

// enter opens the session and words the call for it.
func (c *call) enter(ctx context.Context, v *verdict, ses *session) (*exchange, *link, error) {
	l, err := ses.open(ctx)
	if err != nil {
		if c.h.eras.doubtHandshake(v, err) {
			return nil, nil, &notBegun{why: otherEra, v: v, err: unsent(handshakeError(err))}
		}
		return nil, nil, unsent(err)
	}
	v.shaken.Store(true)
	x := ses.exchange(l.target(), c.r, c.sink)
	x.asks = c.r.Rounds
	c.asTask(ctx, x, l)
	return x, l, nil
}

// inLegacy makes a reply of how a call in a session ended.
func (c *call) inLegacy(ctx context.Context, v *verdict, x *exchange, l *link, err error) (shim.Reply, error) {
	if err != nil && detached(ctx) && x.reached.Load() {
		x.ses.retain()
	}
	if err == nil && x.answer.Error == nil && c.r.Method == mcp.MethodSetLevel {
		if level, ok := jsonrpc.GetString(c.r.Params, "level"); ok {
			x.ses.noteLevel(ctx, level)
		}
	}
	reply, err := c.legacyReply(ctx, x, l, v, err)
	if reply.Error != nil && reply.Error.Code == mcp.CodeMethodNotFound && c.r.Method == mcp.MethodToolsCall {
		c.h.tools.forget(c.r.Session) // the tool may by now need a task, or take none (L4)
	}
	if err == nil && reply.Error != nil && c.r.Rounds {
		reply.Round = openFirst(c.r.Session, reply.Error)
	}
	return reply, err
}

// legacyReply reads the answer, or what it says about the session.
func (c *call) legacyReply(ctx context.Context, x *exchange, l *link, v *verdict, err error) (shim.Reply, error) {
	if contradicts(err) {
		return shim.Reply{}, &notBegun{why: otherEra, v: v, ses: x.ses, link: l, err: err}
	}
	if se, ok := err.(*statusError); ok {
		switch {
		case se.lost():
			return shim.Reply{}, &notBegun{why: lostSession, ses: x.ses, link: l, err: err}
		case se.status == http.StatusBadRequest || se.status == http.StatusNotFound:
			// That may be about the request, or about the session. It proves nothing, so
			// the request is not repeated; but if the session is lost, the next one begins
			// with a handshake.
			_ = x.ses.verify(ctx, l)
		}
		if rpc := se.answer(); rpc != nil {
			return shim.Reply{Error: rpcError(rpc)}, nil
		}
		if se.status == http.StatusBadRequest && mcp.Foreign(c.r.Method) {
			// The Go SDK 1.8.0 refuses a method that it does not know with a text.
			return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeMethodNotFound, Message: "the server does not know the method " + c.r.Method}}, nil
		}
	}
	if err != nil {
		return shim.Reply{}, err
	}
	return sessionReply(c.r.Method, x.answer)
}

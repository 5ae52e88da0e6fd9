package upstream

import (
	"context"
	"encoding/json"
	"net/http"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// legacyExchange puts a request in the words of a legacy session.
func (h *HTTP) legacyExchange(s *session, to target, r shim.Request, sink shim.Sink) *exchange {
	x := h.exchange(to, r, sink)
	x.ses = s
	return x
}

// exchange is what both eras have in common.
func (h *HTTP) exchange(to target, r shim.Request, sink shim.Sink) *exchange {
	return &exchange{
		h: h, to: to, sink: sink, caller: r.Session, level: levelOf(r),
		id: h.nextID(), method: r.Method, name: r.Name, params: r.Params,
		progress: r.Progress || r.Method == mcp.MethodToolsCall, limits: r.Limits,
	}
}

// legacy makes one attempt at a call in the session that it belongs to.
func (c *call) legacy(ctx context.Context, v *verdict) (shim.Reply, error) {
	ses := c.h.pool.acquire(c.r.Session)
	defer ses.release()
	x, l, err := c.enter(ctx, v, ses)
	if err != nil {
		return shim.Reply{}, err
	}
	var m jsonrpc.Message
	err = x.perform(ctx, &m)
	return c.inLegacy(ctx, v, x, l, &m, err)
}

// enter opens the session and words the call for it.
func (c *call) enter(ctx context.Context, v *verdict, ses *session) (*exchange, *link, error) {
	l, err := ses.open(ctx)
	if err != nil {
		if c.h.doubts(v, err) {
			return nil, nil, &notBegun{why: otherEra, forget: func() {}, err: unsent(handshakeError(err))}
		}
		return nil, nil, unsent(err)
	}
	v.shaken.Store(true)
	if level := levelFor(c.r); level != "" {
		c.h.raiseLevel(ctx, ses, l, level)
	}
	x := c.h.legacyExchange(ses, l.target(), c.r, c.sink)
	x.asks = c.r.Rounds
	c.asTask(ctx, x, l)
	return x, l, nil
}

// inLegacy makes a reply of how a call in a session ended.
func (c *call) inLegacy(ctx context.Context, v *verdict, x *exchange, l *link, m *jsonrpc.Message, err error) (shim.Reply, error) {
	if err != nil && detached(ctx) && x.reached.Load() {
		x.ses.keep()
	}
	if err == nil && m.Error == nil && c.r.Method == mcp.MethodSetLevel {
		if level, ok := jsonrpc.GetString(c.r.Params, "level"); ok {
			x.ses.noteLevel(ctx, level)
		}
	}
	reply, err := c.h.legacyReply(x.ses, l, v, c.r.Method, *m, err)
	if reply.Error != nil && reply.Error.Code == mcp.CodeMethodNotFound && c.r.Method == mcp.MethodToolsCall {
		c.h.tools.forget(c.r.Session) // the tool may by now need a task, or take none (L4)
	}
	if err == nil && reply.Error != nil && c.r.Rounds {
		reply.Round = openFirst(c.r.Session, reply.Error)
	}
	return reply, err
}

// legacyReply reads the answer, or what it says about the session.
func (h *HTTP) legacyReply(ses *session, l *link, v *verdict, method string, m jsonrpc.Message, err error) (shim.Reply, error) {
	if contradicts(err) {
		return shim.Reply{}, &notBegun{why: otherEra, forget: func() { h.changedEra(v) }, err: err}
	}
	if se, ok := err.(*statusError); ok {
		switch {
		case se.lost():
			return shim.Reply{}, &notBegun{why: lostSession, forget: func() { ses.lose(l) }, err: err}
		case se.status == http.StatusBadRequest || se.status == http.StatusNotFound:
			// Some servers say 400 for a session they have lost (the TypeScript
			// examples do), or for not being legacy any more. That proves nothing, so
			// the request is not repeated; but the next one begins with a handshake.
			ses.lose(l)
		}
		if rpc := se.answer(); rpc != nil {
			return shim.Reply{Error: rpcError(rpc)}, nil
		}
	}
	if err != nil {
		return shim.Reply{}, err
	}
	return plainReply(method, m)
}

// changedEra forgets what was known of a server that has become another.
func (h *HTTP) changedEra(v *verdict) {
	h.eras.forget(v)
	h.seen.forget()
}

// raiseLevel makes the server at least as talkative as level, where it logs at
// all. A server without a session could only be told for everybody, and is not.
// That this fails costs log messages, never the call.
func (h *HTTP) raiseLevel(ctx context.Context, ses *session, l *link, level string) {
	want := len(mcp.LogLevels) - mcp.LogSeverity(level) // larger is more talkative
	if l.id == "" || mcp.LogSeverity(level) < 0 || !l.server.declares("logging") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.level >= want {
		return
	}
	params := json.RawMessage(append(jsonrpc.AppendString([]byte(`{"level":`), level), '}'))
	ctx, cancel := h.slow(ctx)
	defer cancel()
	x := h.legacyExchange(ses, l.target(), shim.Request{Method: mcp.MethodSetLevel, Params: params}, discard{})
	m, err := x.run(ctx)
	if err != nil || m.Error != nil {
		h.log.Debug("log level was not set", "err", err, "answer", m.Error)
	}
	l.level = want
}

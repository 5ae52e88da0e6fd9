package stdio

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
)

// inFlight is a request in flight, or a text that is none.
type inFlight struct {
	c      *Conn
	id     jsonrpc.ID // zero for such a text
	method string
	modern bool // it is of 2026 and outside of sessions
	ctx    context.Context
	cancel context.CancelCauseFunc
	land   func() // takes it from those in flight: a client may use an answered id again

	answered bool        // only its own goroutine uses it
	dead     atomic.Bool // the client has cancelled it
}

// answerRequest has a request answered, and returns when the next message may be taken.
func (c *Conn) answerRequest(ctx context.Context, m jsonrpc.Message, text []byte) {
	x, refused := c.beginExchange(m)
	if refused != nil {
		_ = c.out.sendLineWithin(ctx, spellError(m.ID, refused))
		return
	}
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	if x.modern { // a cancellation ends it directly
		begin()
		c.out.begin() // its client is no script that has yet to open a session
	}
	first, before := m.Method == mcp.MethodInitialize && !x.modern, c.latest
	c.running.Go(func() {
		defer begin()
		defer x.endExchange()
		_ = work.PauseFor(x.ctx, before, maxBehind)
		if first {
			x.openSession(text, m.Params)
			return
		}
		x.askGateway(wire.OverStdio(x.ctx, begin), text)
	})
	select {
	case <-begun:
	case <-ctx.Done():
	}
}

// beginExchange notes a request as in flight, or returns why it is refused.
func (c *Conn) beginExchange(m jsonrpc.Message) (*inFlight, *jsonrpc.Error) {
	_, modern := jsonrpc.Get(m.Params, "_meta", mcp.MetaProtocolVersion)
	x := &inFlight{c: c, id: m.ID, method: m.Method, modern: modern}
	key := m.ID.Key()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case key != "" && c.asked[key] != nil:
		return nil, &jsonrpc.Error{Code: mcp.CodeInvalidRequest, Message: "another request in flight has this id"}
	case c.o.MaxRequests > 0 && c.open >= c.o.MaxRequests:
		return nil, &jsonrpc.Error{Code: mcp.CodeInternal, Message: fmt.Sprintf("there are already %d requests in flight (max_calls)", c.o.MaxRequests)}
	}
	x.ctx, x.cancel = context.WithCancelCause(c.ctx)
	if key != "" {
		c.asked[key] = x
	}
	c.open++
	if x.isListen() {
		c.listening++
	}
	x.land = sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asked, key)
	})
	return x, nil
}

// isListen reports whether the request lasts until one side ends it.
func (x *inFlight) isListen() bool { return x.modern && x.method == mcp.MethodListen }

// endExchange is called when everything is over.
func (x *inFlight) endExchange() {
	x.land()
	x.cancel(nil)
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if x.isListen() {
		c.listening--
	}
	work.Signal(c.ended)
}

// cancelRequest takes the cancellation of a request. It returns false if the gateway has to hear of it:
// over HTTP a request of 2026 is cancelled by the end of its connection, and a request of a session
// by the notification (protocol.md 2.6, X3).
func (c *Conn) cancelRequest(m jsonrpc.Message) bool {
	raw, _ := jsonrpc.Get(m.Params, "requestId")
	id, err := jsonrpc.ParseID(raw)
	if err != nil {
		return true // its id is invalid
	}
	c.mu.Lock()
	x := c.asked[id.Key()]
	c.mu.Unlock()
	if x == nil {
		return true // it has its answer
	}
	x.dead.Store(true)
	if x.modern {
		reason, _ := jsonrpc.GetString(m.Params, "reason")
		x.cancel(wire.Cancelled(reason))
	}
	return x.modern
}

// askGateway has the gateway answer. If the session was lost, it opens another one, once: a request that
// the gateway refuses for its session has not begun.
func (x *inFlight) askGateway(ctx context.Context, text []byte) {
	id := ""
	if !x.modern {
		id = x.c.session.currentID()
	}
	w, err := x.c.serveHTTP(ctx, http.MethodPost, id, text, x.emitMessage)
	if err == nil && id != "" && w.status == http.StatusNotFound {
		if id, renewed := x.c.renewSession(ctx, id); renewed == nil {
			w, err = x.c.serveHTTP(ctx, http.MethodPost, id, text, x.emitMessage)
		}
	}
	x.finishAnswer(w, err)
}

// emitMessage hands out a message that belongs to the request.
func (x *inFlight) emitMessage(message []byte) error {
	if _, call := jsonrpc.Get(message, "method"); !call {
		x.answered = true
		x.land()
		if x.isListen() && !x.dead.Load() { // the gateway ends it: both, the result last (protocol.md 1.3)
			_ = x.c.out.sendLine(mcp.AppendCancelled(nil, x.id, ""))
		}
	}
	if x.modern && x.dead.Load() {
		return errClosed // a cancelled request gets no more messages
	}
	return x.c.out.sendLine(message)
}

// finishAnswer hands out an answer in JSON, and makes sure that there is an answer.
func (x *inFlight) finishAnswer(w *response, err error) {
	switch {
	case err != nil:
	case len(w.body) > 0 && w.status < http.StatusBadRequest:
		_ = x.emitMessage(w.body) // if that fails, the client has gone
	case w.status >= http.StatusBadRequest:
		_ = x.emitMessage(x.spellRefusal(w))
	}
	if !x.answered && !x.id.IsZero() && !x.dead.Load() && x.c.ctx.Err() == nil {
		_ = x.emitMessage(jsonrpc.AppendError(nil, x.id, &jsonrpc.Error{Code: mcp.CodeInternal, Message: "internal error"}))
	}
}

// spellRefusal is an answer with an HTTP status, as a message. It has the id of the request, which HTTP
// may leave out, or null.
func (x *inFlight) spellRefusal(w *response) []byte {
	m, err := jsonrpc.ParseLenient(w.body)
	switch {
	case err != nil || m.Kind != jsonrpc.ErrorResponse:
		m.Error = &jsonrpc.Error{Code: mcp.CodeInternal, Message: fmt.Sprintf("the gateway has refused the message (%d)", w.status)}
	case !m.ID.IsZero():
		return w.body
	}
	return spellError(x.id, m.Error)
}

// spellError is an error with the id of the message that it is about, or with null (JSON-RPC 2.0 section 5).
func spellError(id jsonrpc.ID, e *jsonrpc.Error) []byte {
	if id.IsZero() {
		return jsonrpc.AppendErrorNullID(nil, e)
	}
	return jsonrpc.AppendError(nil, id, e)
}

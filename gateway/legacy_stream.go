package gateway

import (
	"context"
	"net/http"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// serveLegacyGET opens the stream on which a session hears what belongs to no
// request (X4). There is one per session: a second opener is refused with 409, as
// the official SDKs' servers do. Taking the stream over instead would set two
// clients that share a session to taking it from each other for ever; a client
// whose connection broke is let in as soon as that is noticed, at the next
// keep-alive at the latest.
//
// Events have no ids, since there is nothing to resume from: an id would make
// clients come back with Last-Event-ID (X8, protocol.md C 7). What arrives between
// two streams is kept for the next one, within the bounds of the outbox.
func (e *endpoint) serveLegacyGET(w http.ResponseWriter, r *http.Request, p shim.Principal) {
	if !acceptOf(r.Header).stream {
		e.refuseLegacy(w, jsonrpc.ID{}, refused(http.StatusNotAcceptable, "Accept must list "+mcp.TypeSSE))
		return
	}
	s, err := e.openSession(r, p)
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, err)
		return
	}
	defer s.release()
	if stream, no, ok := parseEventID(r.Header.Get(mcp.HeaderLastEventID)); ok {
		e.serveResume(w, r, s, stream, no)
		return
	}
	if !s.attach() {
		e.refuseLegacy(w, jsonrpc.ID{}, refused(http.StatusConflict, "the session has a stream already"))
		return
	}
	defer s.listen.rest()
	defer s.detach()
	ctx, done, err := e.gateway.streams.enter(r.Context())
	defer done()
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, &failure{Code: mcp.CodeInternal, Message: err.Error(), Status: http.StatusServiceUnavailable})
		return
	}
	s.listen.stay()
	s.follow(ctx, e.leg)
	defer e.tellTasks(ctx, s, p)()
	e.pour(ctx, w, r, s)
}

// pour writes what waits in the session's outbox to the client, until the client
// goes, the session ends, or the gateway closes.
func (e *endpoint) pour(ctx context.Context, w http.ResponseWriter, r *http.Request, s *session) {
	interval := e.gateway.config.KeepAlive
	stream, err := eventstream.NewWriter(w, r, eventstream.Options{WriteTimeout: writeTimeout, KeepAlive: interval})
	if err != nil {
		e.log.ErrorContext(ctx, "no event stream can be written", "err", err)
		e.refuseLegacy(w, jsonrpc.ID{}, &failure{Code: mcp.CodeInternal, Message: "streams are not available", Status: http.StatusInternalServerError})
		return
	}
	defer stream.Close()
	// The client waits for the head of the response.
	if stream.Comment("open") != nil {
		return
	}
	// A connection that broke silently shows at a keep-alive.
	check := time.NewTicker(interval)
	defer check.Stop()
	for drain(s.out, stream) == nil {
		select {
		case <-s.out.ready:
		case <-check.C:
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// drain sends all that waits. A message that could not be sent waits for the next
// stream.
func drain(o *outbox, stream *eventstream.Writer) error {
	for {
		msg, ok := o.take()
		if !ok {
			return stream.Err()
		}
		if err := stream.Send("", msg); err != nil {
			o.giveBack(msg)
			return err
		}
	}
}

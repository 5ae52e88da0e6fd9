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
// Events have ids once the stream has been open for resume_after: an id makes clients
// come back with Last-Event-ID (X8, protocol.md C 7), which they may do at any replica,
// and take the stream along. What arrives between two streams is kept for the next
// one, within the bounds of the outbox.
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
	stream, no, resumes := parseEventID(r.Header.Get(mcp.HeaderLastEventID))
	if resumes && stream != standingStream {
		e.serveResume(w, r, s, p, stream, no)
		return
	}
	if !s.attach() && !(resumes && s.takeOver(r.Context())) {
		e.refuseLegacy(w, jsonrpc.ID{}, refused(http.StatusConflict, errMoved.Error()))
		return
	}
	defer s.listen.rest()
	defer s.detach()
	g, err := s.claim(r.Context(), no, resumes, e.drafts(s.current()).partials)
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, refused(http.StatusConflict, err.Error()))
		return
	}
	defer g.leave()
	if g.past != nil {
		g.replay = e.newReplay(s.principal(p))
	}
	ctx, done, err := e.gateway.streams.enter(r.Context())
	defer done()
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, &failure{Code: mcp.CodeInternal, Message: err.Error(), Status: http.StatusServiceUnavailable})
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	s.mayEnd(end)
	s.listen.stay()
	s.follow(ctx, e.leg)
	defer e.askPosed(ctx, g, p)()
	defer e.tellTasks(ctx, g, p, end)()
	e.pour(ctx, w, r, g)
}

// pour writes what waits for the session's client, until that goes, the session ends,
// another replica takes the stream, or the gateway closes.
func (e *endpoint) pour(ctx context.Context, w http.ResponseWriter, r *http.Request, g *standing) {
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
	g.out = stream
	wake, stop := g.s.watch(ctx)
	defer stop()
	// A connection that broke silently shows at a keep-alive.
	check := time.NewTicker(interval)
	defer check.Stop()
	long := time.NewTimer(e.gateway.config.ResumeAfter)
	defer long.Stop()
	for g.flush(ctx) == nil {
		select {
		case <-g.s.out.ready:
		case <-wake:
			g.behind = true
		case <-check.C:
			g.behind = true
		case <-long.C:
			g.keep(mcp.LookupVersion(g.s.current().Version).Priming)
		case <-ctx.Done():
			return
		case <-g.s.ctx.Done():
			return
		}
	}
}

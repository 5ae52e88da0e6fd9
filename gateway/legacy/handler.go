// Package legacy answers requests of the versions before 2026, in the sessions that these need. [Handler]
// serves POST, GET and DELETE at one endpoint: a JSON-RPC message comes in with its session's id and its
// principal. It also takes what the server asks on its own. Calls go to the shim, everything else to the
// upstream. An answer goes out over HTTP, or as events that outlive their stream. A store of [Sessions] keeps
// the state of a session.
//
// The files session*.go and replay.go have the sessions and their streams. The other files have the requests,
// and use them.
package legacy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Handler answers the requests of sessions of the initialize era, at one endpoint.
type Handler struct {
	*endpoint.Endpoint
	Sessions *Table // shared by all endpoints
}

// ServePOST answers a message of the initialize era.
func (h *Handler) ServePOST(w http.ResponseWriter, r *http.Request, p shim.Principal, msg jsonrpc.Message) {
	if msg.Kind == jsonrpc.Request && msg.Method == mcp.MethodInitialize {
		// A session id beside it is of a session that the client has given up.
		h.initializeSession(w, r, p, msg)
		return
	}
	var s *session
	var err error
	switch nameless := wire.TrimOWS(strings.Join(r.Header.Values(mcp.HeaderSession), "")) == ""; {
	case nameless && msg.Kind == jsonrpc.Notification:
		w.WriteHeader(http.StatusAccepted) // nothing keeps it: see passingSession
		return
	case nameless && msg.Kind == jsonrpc.Request:
		s, err = h.passingSession(r, p)
	default:
		s, err = h.openSession(r, p, msg.Kind == jsonrpc.Request)
	}
	if err != nil {
		if msg.Kind != jsonrpc.Request {
			msg.ID = jsonrpc.ID{} // a response's id was made by the gateway
		}
		h.refuseRequest(w, msg.ID, err)
		return
	}
	defer s.endUse()
	if s.passing { // its client cannot come back, or cancel otherwise
		defer context.AfterFunc(r.Context(), func() { s.cancel(shim.ErrCancelled) })()
	}
	if msg.Method != mcp.NotifyInitialized {
		h.Sessions.noteUse(r.Context(), s, 0)
	}
	switch msg.Kind {
	case jsonrpc.Request:
		h.serveRequest(w, r, s, p, msg)
		return
	case jsonrpc.Notification:
		if err = h.takeNotification(r.Context(), s, p, msg); err != nil && !wire.FailureOf("", err).Refuses() {
			err = nil // it is logged
		}
	default:
		err = h.answerQuestion(r.Context(), s, p, msg)
	}
	if err != nil {
		h.refuseRequest(w, jsonrpc.ID{}, err)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// ServeDELETE ends a session at its client's wish (X6). It answers 200, as the official SDKs' servers do: the
// language server of Copilot takes any other status for a failure.
func (h *Handler) ServeDELETE(w http.ResponseWriter, r *http.Request, p shim.Principal) {
	s, err := h.openSession(r, p, false)
	if err != nil {
		h.refuseRequest(w, jsonrpc.ID{}, err)
		return
	}
	defer s.endUse()
	if err := h.Sessions.endSession(r.Context(), s.id, s.currentState()); err != nil {
		h.refuseRequest(w, jsonrpc.ID{}, sessionFailure(err))
		return
	}
	w.WriteHeader(http.StatusOK)
}

// checkSessionVersion refuses a version of another era (X7) with 400. A session keeps the version that it has
// negotiated, so the header may be absent; three SDKs send another version of the same era.
func checkSessionVersion(h http.Header, version string) error {
	for _, v := range h.Values(mcp.HeaderProtocolVersion) {
		if mcp.EraOf(wire.TrimOWS(v)) != mcp.Legacy {
			return wire.Refused(http.StatusBadRequest, mcp.HeaderProtocolVersion+" must be that of the session, "+version)
		}
	}
	return nil
}

// sessionFailure is an error of the session table as a client sees it. 404 makes a client initialize anew (X6),
// so a failed look-up is answered 503. Some clients look for the code beside it, as servers of the TypeScript SDK have
// it (toolhive #4425).
func sessionFailure(err error) *wire.Failure {
	var busy *shim.BusyError
	switch {
	case errors.Is(err, errNoSession):
		return &wire.Failure{Code: mcp.CodeSessionNotFound, Message: "Session not found", Status: http.StatusNotFound}
	case errors.As(err, &busy):
		return wire.FailureOf("", wire.TurnAway(busy))
	}
	return &wire.Failure{Code: mcp.CodeInternal, Message: "sessions are not available", Status: http.StatusServiceUnavailable}
}

// refuseRequest answers a request that failed before it was served in its session.
func (h *Handler) refuseRequest(w http.ResponseWriter, id jsonrpc.ID, err error) {
	h.Telemetry.Refused(context.Background(), err)
	f := *wire.FailureOf("", err)
	f.ID = id
	wire.WriteFailure(w, &f)
}

// takeNotification takes a notification of the client. A failure is only logged, unless the client has to sign
// in.
func (h *Handler) takeNotification(ctx context.Context, s *session, p shim.Principal, msg jsonrpc.Message) (err error) {
	if msg.Method == mcp.NotifyCancelled {
		// The id is that of a request of this client; any other id is ignored.
		raw, _ := jsonrpc.Get(msg.Params, "requestId")
		if id, perr := jsonrpc.ParseID(raw); perr == nil && !id.Long() {
			reason, _ := jsonrpc.GetString(msg.Params, "reason")
			err = s.abortRequest(ctx, p, id, reason)
		}
	} else {
		err = h.forwardNotification(ctx, s, msg)
	}
	if err != nil {
		h.Log.DebugContext(ctx, "notification of a client is lost", "method", msg.Method, "err", err)
	}
	return err
}

// forwardNotification passes a notification on to a legacy upstream: roots/list_changed, and unknown ones. A
// modern server takes none, over HTTP at least (protocol.md 7.5). Notifications of tasks are dropped: they
// would be about tasks of the gateway's.
func (h *Handler) forwardNotification(ctx context.Context, s *session, msg jsonrpc.Message) error {
	if strings.HasPrefix(msg.Method, mcp.NotifyTask+"/") {
		return nil
	}
	server, err := h.Upstream.Describe(ctx, s.upstreamSession(ctx))
	if err != nil || server.Era == mcp.Modern {
		return err
	}
	return h.Upstream.Notify(ctx, s.upstreamSession(ctx), shim.Notification{Method: msg.Method, Params: msg.Params})
}

// ServeGET opens the stream on which a session hears what is outside of its requests (X4). A session has one. A
// second opener is refused with 409, as the official SDKs' servers do: if it took the stream over, two clients
// that share a session would take it from each other for ever. A stream is taken over if it gives no sign of
// life within holderPatience, because its replica was killed or its client has stopped reading: the TypeScript
// SDKs try again for 2.5 s only.
//
// Events have ids once the stream has been open for resume_after. An id makes clients come back with
// Last-Event-ID (X8, protocol.md C 7), to any replica, which then becomes the holder of the stream. Some clients name
// the last event of any stream there (swift-sdk #281, Anubis, the Kotlin SDK). If they have the whole of an answer, they
// get the GET stream. If the session has one, they are told by 204 to come no more (as an EventSource is). The TypeScript
// SDK 1.32.2 comes, since an error is no answer to it, and takes an empty stream for a broken one.
// docs/design/sessions.md has the cases.
func (h *Handler) ServeGET(w http.ResponseWriter, r *http.Request, p shim.Principal) {
	if !wire.AcceptsStream(r.Header) {
		h.refuseRequest(w, jsonrpc.ID{}, wire.Refused(http.StatusNotAcceptable, "Accept must list "+mcp.TypeSSE))
		return
	}
	s, err := h.openSession(r, p, false)
	if err != nil {
		h.refuseRequest(w, jsonrpc.ID{}, err)
		return
	}
	defer s.endUse()
	h.Sessions.noteUse(r.Context(), s, 0)
	stream, no, resumes := parseEventID(r.Header.Get(mcp.HeaderLastEventID))
	heard := false
	if resumes && stream != getStream {
		if heard = !s.currentState().keepsStream(p, stream) || h.serveResume(w, r, s, p, stream, no); !heard {
			return
		}
		no, resumes = 0, false
	}
	if st := s.currentState(); resumes && st.branchOf(p) != "" {
		no = max(no, st.TokenFrom)
	}
	ctx, done, err := h.Streams.Open(r.Context(), p.Share())
	defer done()
	if err != nil {
		h.refuseRequest(w, jsonrpc.ID{}, err)
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	hold, err := s.attachGET(ctx, end, resumes), errMoved
	var g *writer
	if hold != nil {
		defer s.detachGET(hold)
		g, err = s.openGET(ctx, no, resumes, h.takesPartials(s.currentState()))
	}
	switch {
	case err == nil:
	case heard:
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		h.refuseRequest(w, jsonrpc.ID{}, wire.Refused(http.StatusConflict, err.Error()))
		return
	}
	defer g.leaveStream()
	h.writeGET(ctx, w, g, hold, p)
}

// writeGET writes the stream until its client goes, the session ends, another replica takes it, or the gateway
// closes.
func (h *Handler) writeGET(ctx context.Context, w http.ResponseWriter, g *writer, hold *getHold, p shim.Principal) {
	s := g.s
	out := eventstream.NewWriter(w, h.Global.KeepAlive)
	defer out.Close()
	g.out = out
	s.noteBegun(hold, g)
	_, _ = s.listen.startListening(ctx, h.Upstream) // it is tried again
	// The client waits for the head of the response.
	if out.Comment("open") != nil {
		return
	}
	g.resumeAt, g.replay = time.Now().Add(h.Global.ResumeAfter), newReplay(h.Endpoint, s, p)
	t := newTaskNotifier(h.Endpoint, g, p, h.readsTasks(s.currentState()), hold.end)
	defer t.startFollowing(ctx)()
	// A connection that broke silently shows at a keep-alive, whose failure ends the request.
	_ = g.writeUntilEnd(ctx, 0, func(state string, _ []byte) bool {
		if (g.state == withoutLog || state == "") && g.reopenLog(ctx) { // the store was away, or has lost it
			return true
		}
		t.readRecord(ctx)
		return false
	})
}

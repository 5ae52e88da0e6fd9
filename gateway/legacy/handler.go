// Package legacy answers requests of the versions before 2026, in the sessions that these
// need. In comes a JSON-RPC message with its session's id and its
// principal, at one endpoint: [Handler] serves POST, GET and DELETE, and takes what the server
// asks on its own. Out go calls to the shim, everything else to the upstream, one answer over
// HTTP or as events that outlive their stream, and what a session keeps, to a store of
// [Sessions].
//
// Requests and sessions are one package: a request is answered on a stream of its session, and
// the two use far more than 40 names of each other. The files session*.go have the sessions,
// the others what is done with requests.
package legacy

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Handler answers what belongs to sessions of the initialize era, at one endpoint.
type Handler struct {
	*endpoint.Endpoint
	Sessions *Table // shared by all endpoints
	Modes    Modes  // nil where response modes are switched off
}

// ServePOST answers a message of the initialize era.
func (h *Handler) ServePOST(w http.ResponseWriter, r *http.Request, p shim.Principal, msg jsonrpc.Message) {
	if msg.Kind == jsonrpc.Request && msg.Method == mcp.MethodInitialize {
		// A session id beside it is of a session the client has given up.
		h.initializeSession(w, r, p, msg)
		return
	}
	s, err := h.openSession(r, p, msg.Kind == jsonrpc.Request)
	if err != nil {
		if msg.Kind != jsonrpc.Request {
			msg.ID = jsonrpc.ID{} // a response's id is not the client's to be answered under
		}
		h.refuseRequest(w, msg.ID, err)
		return
	}
	defer s.endUse()
	switch msg.Kind {
	case jsonrpc.Request:
		h.serveRequest(w, r, s, p, msg)
	case jsonrpc.Notification:
		if err := h.takeNotification(r.Context(), s, msg); err != nil && wire.FailureOf("", err).Refuses() {
			h.refuseRequest(w, jsonrpc.ID{}, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	case jsonrpc.Result, jsonrpc.ErrorResponse:
		if err := h.answerQuestion(r.Context(), s, p, msg); err != nil {
			h.refuseRequest(w, jsonrpc.ID{}, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

// ServeDELETE ends a session at its client's wish (X6).
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
	w.WriteHeader(http.StatusNoContent)
}

// checkSessionVersion refuses a version that sessions do not have (X7). The negotiated one counts,
// which a session says: its absence is no mistake, and three SDKs take another one of its era.
func checkSessionVersion(h http.Header, version string) error {
	for _, v := range h.Values(mcp.HeaderProtocolVersion) {
		if mcp.EraOf(wire.TrimOWS(v)) != mcp.Legacy {
			return wire.Refused(http.StatusBadRequest, mcp.HeaderProtocolVersion+" must be that of the session, "+version)
		}
	}
	return nil
}

// sessionFailure is an error of the session table as a client gets to see it.
// 404 makes a client initialize anew (X6), so it must not be said of a session
// that only cannot be looked up just now.
func sessionFailure(err error) *wire.Failure {
	var busy *shim.BusyError
	switch {
	case errors.Is(err, errNoSession):
		return wire.Refused(http.StatusNotFound, errNoSession.Error())
	case errors.As(err, &busy):
		return wire.FailureOf("", wire.TurnAway(busy))
	}
	return &wire.Failure{Code: mcp.CodeInternal, Message: "sessions are not available", Status: http.StatusServiceUnavailable}
}

// refuseRequest answers a request that got no further than its session.
func (h *Handler) refuseRequest(w http.ResponseWriter, id jsonrpc.ID, err error) {
	h.Telemetry.Refused(context.Background(), err)
	f := *wire.FailureOf("", err)
	f.ID = id
	wire.WriteFailure(w, "", &f)
}

// takeNotification takes a notification of the client. It has no answer, so what goes wrong
// with it is logged; only that its client is to sign in is an answer.
func (h *Handler) takeNotification(ctx context.Context, s *session, msg jsonrpc.Message) (err error) {
	switch msg.Method {
	case mcp.NotifyCancelled:
		// The id is that of the client's own request; another one names nothing.
		if raw, ok := jsonrpc.Get(msg.Params, "requestId"); ok {
			if id, perr := jsonrpc.ParseID(raw); perr == nil && !id.Long() {
				err = s.abortRequest(ctx, id)
			}
		}
	default:
		err = h.forwardNotification(ctx, s, msg)
	}
	if err != nil {
		h.Log.DebugContext(ctx, "notification of a client is lost", "method", msg.Method, "err", err)
	}
	return err
}

// forwardNotification passes a notification on to a legacy upstream: roots/list_changed, and
// what nobody here knows. A modern one has no place for any, over HTTP at least
// (protocol.md 7.5). Those of tasks would be about tasks of the gateway's.
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

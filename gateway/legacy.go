package gateway

import (
	"errors"
	"net/http"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// serveLegacyPOST answers a message of the initialize era. Of a batch, msg is zero
// and body is the array.
func (e *endpoint) serveLegacyPOST(w http.ResponseWriter, r *http.Request, p shim.Principal, body []byte, msg jsonrpc.Message) {
	if msg.Kind == jsonrpc.Request && msg.Method == mcp.MethodInitialize {
		// A session id beside it is of a session the client has given up.
		e.initialize(w, r, p, msg)
		return
	}
	s, err := e.openSession(r, p)
	if err != nil {
		if msg.Kind != jsonrpc.Request {
			msg.ID = jsonrpc.ID{} // a response's id is not the client's to be answered under
		}
		e.refuseLegacy(w, msg.ID, err)
		return
	}
	defer s.release()
	switch msg.Kind {
	case jsonrpc.Request:
		e.serveLegacyRequest(w, r, s, p, msg)
	case jsonrpc.Notification:
		e.heed(r.Context(), s, msg)
		w.WriteHeader(http.StatusAccepted)
	case jsonrpc.Result, jsonrpc.ErrorResponse:
		if err := e.answerQuestion(r.Context(), s, p, msg); err != nil {
			e.refuseLegacy(w, jsonrpc.ID{}, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	default:
		e.serveBatch(w, r, s, p, body)
	}
}

// serveLegacyDELETE ends a session at its client's wish (X6).
func (e *endpoint) serveLegacyDELETE(w http.ResponseWriter, r *http.Request, p shim.Principal) {
	s, err := e.openSession(r, p)
	if err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, err)
		return
	}
	defer s.release()
	if err := e.gateway.sessions.end(r.Context(), s.id); err != nil {
		e.refuseLegacy(w, jsonrpc.ID{}, sessionFailure(err))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// openSession finds the session that a request names, and checks that the request
// fits it. The caller releases it. The error is a *failure.
func (e *endpoint) openSession(r *http.Request, p shim.Principal) (*session, error) {
	ids := r.Header.Values(mcp.HeaderSession)
	if len(ids) != 1 || trimOWS(ids[0]) == "" {
		return nil, refused(http.StatusBadRequest, "one "+mcp.HeaderSession+" is needed: initialize first")
	}
	s, err := e.gateway.sessions.open(r.Context(), trimOWS(ids[0]), e.name, p)
	if err != nil {
		return nil, sessionFailure(err)
	}
	if err := checkSessionVersion(r.Header, s.current().Version); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// checkSessionVersion holds the header against the negotiated version (X7). Its
// absence is no mistake: clients of 2025-03-26 do not know it, and a session says
// all that it would.
func checkSessionVersion(h http.Header, version string) error {
	for _, v := range h.Values(mcp.HeaderProtocolVersion) {
		if trimOWS(v) != version {
			return refused(http.StatusBadRequest, mcp.HeaderProtocolVersion+" must be that of the session, "+version)
		}
	}
	return nil
}

// sessionFailure is an error of the session table as a client gets to see it.
// 404 makes a client initialize anew (X6), so it must not be said of a session
// that only cannot be looked up just now.
func sessionFailure(err error) *failure {
	var busy *shim.BusyError
	switch {
	case errors.Is(err, errNoSession):
		return refused(http.StatusNotFound, errNoSession.Error())
	case errors.As(err, &busy):
		return &failure{Code: mcp.CodeInternal, Message: busy.Error(), Status: http.StatusServiceUnavailable,
			Data: retryAfter(busy.RetryAfter.Milliseconds())}
	}
	return &failure{Code: mcp.CodeInternal, Message: "sessions are not available", Status: http.StatusServiceUnavailable}
}

// refuseLegacy answers a request that got no further than its session.
func (e *endpoint) refuseLegacy(w http.ResponseWriter, id jsonrpc.ID, err error) {
	f := *failureOf("", err)
	f.ID = id
	writeFailure(w, "", &f)
}

package legacy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// legacyVersions are the versions that clients can have here, newest first (design.md 0.1). 2024-11-05 knows
// another transport over HTTP, but the TypeScript SDK 1.10 wishes it over Streamable HTTP, and takes no other
// version (mcp-remote #66).
var legacyVersions = []string{mcp.Version20251125, mcp.Version20250618, mcp.Version20250326, mcp.Version20241105}

// negotiateVersion returns the version that a client wishes if it can have that, and the newest of
// legacyVersions otherwise (X7).
func negotiateVersion(wish string) string {
	if slices.Contains(legacyVersions, wish) {
		return wish
	}
	return legacyVersions[0]
}

// initializeSession makes a session, and one for it upstream, and answers with a description of
// that server.
func (h *Handler) initializeSession(w http.ResponseWriter, r *http.Request, p shim.Principal, msg jsonrpc.Message) {
	var st sessionState
	var info json.RawMessage
	var err error
	budget.From(r.Context()).InTurn(len(msg.Raw), func() { st, info, err = h.readIntroduction(p, msg.Params) })
	if err != nil {
		h.refuseRequest(w, msg.ID, err)
		return
	}
	st.Opaque = forward.Of(r.Context()).Opaque
	if err := h.Calls.Enter(p.Share()); err != nil {
		h.refuseRequest(w, msg.ID, wire.TurnAway(err))
		return
	}
	defer h.Calls.Leave(p.Share())
	s, err := h.Sessions.createSession(r.Context(), p.Share(), st)
	if err != nil {
		if _, full := errors.AsType[*shim.BusyError](err); !full { // a metric counts these, and a client can cause any number of them
			h.Log.WarnContext(r.Context(), "no session could be made", "err", err)
		}
		h.refuseRequest(w, msg.ID, sessionFailure(err))
		return
	}
	defer s.endUse()
	ctx, op := h.Telemetry.Start(r.Context(), r, wire.Request{Msg: msg, Version: st.Version, Upstream: h.Name, SessionID: s.id, Principal: p, ClientInfo: st.ClientInfo})
	defer op.End()
	// Keep-alive is off: a stream that has begun sends the headers, and with them the session's id,
	// before it is known that there is a session.
	x := wire.NewExchange(w, r, wire.ExchangeOptions{})
	defer x.Close()
	session := s.upstreamSession(ctx)
	session.ClientInfo = info
	server, err := h.Upstream.Describe(ctx, session)
	if err == nil && server.Era == mcp.Modern {
		err = s.updateState(ctx, func(st sessionState) (sessionState, error) {
			st.Legacy = false
			return st, nil
		})
	}
	if err != nil {
		f := wire.FailureOf(st.Version, err)
		if !f.Refuses() { // signing in begins this way
			h.Log.WarnContext(ctx, "initialize failed upstream", "err", err)
		}
		_ = h.Sessions.endSession(context.WithoutCancel(ctx), s.id, sessionState{}) // the client never gets its id; idle time ends it otherwise
		op.Failed(f.Code)
		x.Error(msg.ID, f)
		return
	}
	own := h.ownTasks(st)
	if p.NoTasks {
		own = nil
	}
	w.Header().Set(mcp.HeaderSession, s.id)
	x.Result(msg.ID, h.WithInstructions(clientOf(st, p), translate.InitializeResult(st.Version, h.Offered(server), h.Identity(), own)))
}

// What is kept of a client for as long as its session is bounded, in bytes.
const (
	maxCapabilities = 16 << 10
	maxBriefInfo    = 4 << 10
)

// readIntroduction reads what a client says of itself. Only the version must be there: missing
// capabilities or clientInfo count as empty. info is all of the clientInfo, for the server; the
// state has the brief one.
func (h *Handler) readIntroduction(p shim.Principal, params json.RawMessage) (st sessionState, info json.RawMessage, err error) {
	wish, ok := jsonrpc.GetString(params, "protocolVersion")
	if !ok {
		return st, nil, wire.InvalidParams("params.protocolVersion must be a string")
	}
	st = sessionState{Upstream: h.Name, Owner: p.Owner(), Version: negotiateVersion(wish), Legacy: true, Since: time.Now().Unix(), Maker: h.Sessions.name}
	for name, field := range map[string]*json.RawMessage{"capabilities": &st.Capabilities, "clientInfo": &st.ClientInfo} {
		value, ok := jsonrpc.Get(params, name)
		if ok && !jsonrpc.IsObject(value) {
			return st, nil, wire.InvalidParams("params.%s must be an object", name)
		}
		*field = value
	}
	info = st.ClientInfo
	brief := upstream.BriefInfo(info)
	switch {
	case len(st.Capabilities) > maxCapabilities:
		return st, nil, wire.InvalidParams("params.capabilities has more than %d bytes", maxCapabilities)
	case len(brief) > maxBriefInfo:
		return st, nil, wire.InvalidParams("name, title and version in params.clientInfo have more than %d bytes", maxBriefInfo)
	}
	st.Capabilities, st.ClientInfo = slices.Clone(st.Capabilities), slices.Clone(brief) // the request's buffer is not kept
	return st, info, nil
}

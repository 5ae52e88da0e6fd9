package gateway

import (
	"context"
	"encoding/json"
	"net/http"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// legacyVersions are those that clients can have here, newest first (design.md
// 0.1). 2024-11-05 is not among them: its transport is another.
var legacyVersions = []string{mcp.Version20251125, mcp.Version20250618, mcp.Version20250326}

// negotiate answers the version a client wishes: the same, or the latest of its
// era, and never a modern one (X7).
func negotiate(wish string) string {
	for _, v := range legacyVersions {
		if v == wish {
			return v
		}
	}
	return legacyVersions[0]
}

// initialize makes a session, and one for it upstream, and answers with what that
// server is.
func (e *endpoint) initialize(w http.ResponseWriter, r *http.Request, p shim.Principal, msg jsonrpc.Message) {
	st, err := e.introduction(p, msg.Params)
	if err != nil {
		e.refuseLegacy(w, msg.ID, err)
		return
	}
	s, err := e.gateway.sessions.create(r.Context(), st)
	if err != nil {
		e.log.WarnContext(r.Context(), "no session could be made", "err", err)
		e.refuseLegacy(w, msg.ID, sessionFailure(err))
		return
	}
	defer s.release()
	ctx, op := e.tel.start(r.Context(), r, request{msg: msg, version: st.Version, upstream: e.name, sessionID: s.id})
	defer op.end()
	// No keep-alive: once a stream has begun, the headers, and with them the
	// session's id, would be out before it is known that there is a session.
	x := newExchange(w, r, exchangeOptions{Version: st.Version, Op: op})
	defer x.Close()
	server, err := e.leg.Describe(ctx, s.upstream())
	if err != nil {
		e.log.WarnContext(ctx, "initialize failed upstream", "err", err)
		_ = e.gateway.sessions.end(context.WithoutCancel(ctx), s.id) // nobody has its id; idle time ends it otherwise
		x.Fail(msg.ID, err)
		return
	}
	w.Header().Set(mcp.HeaderSession, s.id)
	x.Result(msg.ID, initializeResult(st.Version, server, *e.identity.Load(), e.ownTasks(st.Version)))
}

// introduction reads what a client says of itself. Of what it must say, only the
// version is needed here: capabilities and clientInfo that are missing mean none.
func (e *endpoint) introduction(p shim.Principal, params json.RawMessage) (sessionState, error) {
	wish, ok := jsonrpc.GetString(params, "protocolVersion")
	if !ok {
		return sessionState{}, invalidParams("params.protocolVersion must be a string")
	}
	st := sessionState{Upstream: e.name, Owner: p.Owner(), Version: negotiate(wish)}
	for name, field := range map[string]*json.RawMessage{"capabilities": &st.Capabilities, "clientInfo": &st.ClientInfo} {
		value, ok := jsonrpc.Get(params, name)
		if ok && !jsonrpc.IsObject(value) {
			return st, invalidParams("params.%s must be an object", name)
		}
		*field = append(json.RawMessage(nil), value...) // the request's buffer is not kept
	}
	return st, nil
}

// initializeResult introduces the upstream to a legacy client: its own words as
// far as it is legacy itself, and its discovery's otherwise (protocol.md 7.1).
// tasks is the gateway's own capability, nil for none.
func initializeResult(version string, s Server, own, tasks json.RawMessage) json.RawMessage {
	modern := s.Era == mcp.Modern
	result := json.RawMessage(`{}`)
	if !modern && jsonrpc.IsObject(s.Raw) {
		result = s.Raw
	}
	result = with(result, jsonrpc.AppendString(nil, version), "protocolVersion")
	result = with(result, legacyCapabilities(s.Capabilities, modern, tasks), "capabilities")
	if jsonrpc.IsObject(s.Info) {
		own = s.Info
	}
	result = withDefault(result, own, "serverInfo")
	if text, ok := jsonrpc.Get(s.Raw, "instructions"); ok {
		result = withDefault(result, text, "instructions")
	}
	return result
}

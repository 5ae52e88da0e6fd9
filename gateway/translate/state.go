package translate

import (
	"encoding/json"
	"strings"

	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
)

// The requestState of a modern server goes to the client and back as the server wrote it
// (protocol.md 2.7). If the server is a gateway like this one, its states begin like ours: they get
// a mark on the way out, which is taken off on the way back. So every state that comes back with
// our own beginning is ours (design.md 0.18).

// foreignMark begins a state of a gateway behind this one; there is one for each gateway in front
// of it.
const foreignMark = "up."

// OfGateway reports whether a state is that of a gateway, behind any number of others.
func OfGateway(state string) bool {
	for strings.HasPrefix(state, foreignMark) {
		state = state[len(foreignMark):]
	}
	return sealed.Ours(state)
}

// wrapState is the state of a server, JSON, as a client gets it.
func wrapState(state json.RawMessage) json.RawMessage {
	if text, ok := jsonrpc.GetString(state); ok && OfGateway(text) {
		return append([]byte(`"`+foreignMark), state[1:]...)
	}
	return state
}

// unwrapState gives params with the state as the server wrote it.
func unwrapState(params json.RawMessage, state string) json.RawMessage {
	if inner, marked := strings.CutPrefix(state, foreignMark); marked && OfGateway(inner) {
		return jsonrpc.With(params, jsonrpc.AppendString(nil, inner), "requestState")
	}
	return params
}

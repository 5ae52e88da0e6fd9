package legacy

import (
	"encoding/json"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// takesPartials reports whether the client of a session takes partial results (SEP-2679, P8),
// and the upstream offers tasks.
func (h *Handler) takesPartials(st sessionState) bool {
	partial, _ := jsonrpc.Get(st.Capabilities, "tasks", "streaming", "partial")
	return jsonrpc.IsObject(partial) && h.offersTasks(st.Version)
}

// clientOf is what decides how a slow call of the client of a session is answered.
func clientOf(st sessionState, p shim.Principal) endpoint.Client {
	_, declares := jsonrpc.Get(st.Capabilities, "tasks")
	return endpoint.Client{Info: st.ClientInfo, Tasks: declares || p.NoTasks}
}

// ownTasks is the capability of a gateway that makes tasks (L1), with partial results (P8), and
// response modes where it offers them; nil where sessions of this version can make no tasks.
func (h *Handler) ownTasks(version string) json.RawMessage {
	if !h.offersTasks(version) {
		return nil
	}
	own := json.RawMessage(`{"list":{},"cancel":{},"requests":{"tools":{"call":{}}},"streaming":{"partial":{}}}`)
	if h.Modes != nil {
		own = h.Modes.Declare(own)
	}
	return own
}

// showsPartials reports whether calls of a tool, as tasks, may have partial results
// (P9).
func (h *Handler) showsPartials(tool string) bool {
	return h.MayBeTask(tool) && h.Config.Tool(tool).Progress != config.ProgressOff
}

package legacy

import (
	"encoding/json"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/modes"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// takesPartials reports whether the client of a session takes partial results (SEP-2679, P8),
// and the upstream offers tasks.
func (h *Handler) takesPartials(st sessionState) bool {
	partial, _ := jsonrpc.Get(st.Capabilities, "tasks", "streaming", "partial")
	return jsonrpc.IsObject(partial) && h.offersTasks(st)
}

// clientOf returns what decides how a slow call of the session's client is answered.
func clientOf(st sessionState, p shim.Principal) endpoint.Client {
	_, declares := jsonrpc.Get(st.Capabilities, "tasks")
	return endpoint.Client{Info: st.ClientInfo, Tasks: declares && endpoint.ServesTasks(st.ClientInfo) || p.NoTasks}
}

// ownTasks is the task capability of a gateway that makes tasks (L1), with partial results (P8)
// and, if it offers them, response modes; nil if the session can make no tasks.
func (h *Handler) ownTasks(st sessionState) json.RawMessage {
	if !h.offersTasks(st) {
		return nil
	}
	own := json.RawMessage(`{"list":{},"cancel":{},"requests":{"tools":{"call":{}}},"streaming":{"partial":{}}}`)
	if h.hasModes() {
		own = modes.Declare(own)
	}
	return own
}

// showsPartials reports whether calls of a tool may have partial results as tasks (P9).
func (h *Handler) showsPartials(tool json.RawMessage) bool {
	policy := h.ListedPolicy(tool)
	return policy.Tasks != config.TasksNever && policy.Progress != config.ProgressOff
}

package legacy

import (
	"encoding/json"
	"slices"

	"taskgate/gateway/config"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Two drafts go beyond the tasks of 2025-11-25: the response modes of SEP-1905 and the
// partial results of SEP-2679 (protocol.md section 6). A client opts in to each at
// initialize. To all others nothing of them shows but the capabilities.

// The response modes (A1), in the order in which one is picked (A3).
const (
	modeImmediate = "immediate"
	modeStreaming = "streaming"
	modeTask      = "task"
)

// drafts is what a session has agreed to with its client.
type drafts struct {
	partials bool     // notifications/tasks/partial (P8)
	modes    []string // response modes; nil where there are none to choose from (A1)
}

// streams reports whether the client knows segments of a result.
func (d drafts) streams() bool { return slices.Contains(d.modes, modeStreaming) }

// offersModes reports whether calls can be answered in several ways.
func (h *Handler) offersModes() bool {
	return h.Config.ResponseModes == config.On && h.Convertible()
}

// drafts are those that the client of a session has opted in to, as far as they are
// offered.
func (h *Handler) drafts(st sessionState) drafts {
	var d drafts
	if !h.offersTasks(st.Version) {
		return d
	}
	if h.OffersPartials() {
		partial, _ := jsonrpc.Get(st.Capabilities, "tasks", "streaming", "partial")
		d.partials = jsonrpc.IsObject(partial)
	}
	if h.offersModes() {
		declared, _ := jsonrpc.Get(st.Capabilities, "tasks", "responses", "modes")
		if jsonrpc.IsArray(declared) {
			d.modes = []string{}
		}
		for v := range jsonrpc.Elements(declared) {
			if mode, ok := jsonrpc.String(v); ok {
				d.modes = append(d.modes, mode)
			}
		}
	}
	return d
}

// ownTasks is the capability of a gateway that makes tasks (L1), with the drafts that
// it offers (A1, P8); nil where sessions of this version can make none.
func (h *Handler) ownTasks(version string) json.RawMessage {
	if !h.offersTasks(version) {
		return nil
	}
	own := json.RawMessage(`{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`)
	if h.OffersPartials() {
		own = jsonrpc.With(own, json.RawMessage(`{"partial":{}}`), "streaming")
	}
	if h.offersModes() {
		own = jsonrpc.With(own, json.RawMessage(`{"modes":["task","immediate","streaming"]}`), "responses")
	}
	return own
}

// showsPartials reports whether calls of a tool, as tasks, may have partial results
// (P9).
func (h *Handler) showsPartials(tool string) bool {
	return h.MayBeTask(tool) && h.Config.Tool(tool).Progress != config.ProgressOff
}

// responseMode is how a call that is to be a task is answered.
type responseMode struct {
	immediate bool // with its result, if that is there in the grace of the tool (A6)
	streaming bool // with the pieces of its result, as they come (A9)
	unlisted  bool // a mere task is not among what the client listed (A5)
	stream    bool // stream:{} said so (protocol.md 6.4.7)
}

// responseMode picks the mode of a call that is to be a task: of those that the client
// lists and both sides have declared, the first in the order of A3. Where the client
// has declared none, what the call says of modes means nothing.
func (q *request) responseMode() (responseMode, error) {
	var m responseMode
	declared := q.h.drafts(q.state).modes
	if declared == nil {
		return m, nil
	}
	var err error
	if m.stream, err = wantsStream(q.msg); err != nil {
		return m, err
	}
	list, listed := jsonrpc.Get(q.msg.Params, "task", "responseModes")
	if !listed && !m.stream {
		return m, nil // A4
	}
	if listed && !jsonrpc.IsArray(list) {
		return m, errModes
	}
	var common []string
	for v := range jsonrpc.Elements(list) {
		mode, ok := jsonrpc.String(v)
		if !ok {
			return m, errModes
		}
		common = append(common, mode)
	}
	if !listed {
		common = []string{modeStreaming}
	}
	common = slices.DeleteFunc(common, func(mode string) bool { return !slices.Contains(declared, mode) })
	m.immediate = slices.Contains(common, modeImmediate)
	content := q.h.Config.Tool(q.name).Progress == config.ProgressContent
	m.streaming = slices.Contains(common, modeStreaming) && (content || !m.immediate) // A7
	m.unlisted = !m.streaming && !slices.Contains(common, modeTask)
	return m, nil
}

var errModes = wire.InvalidParams("params.task.responseModes must be an array of strings")

// wantsStream reads stream:{}, which may be in the params, within their task, or beside
// them (protocol.md 6.4.7).
func wantsStream(msg jsonrpc.Message) (bool, error) {
	for _, in := range []struct {
		text json.RawMessage
		path []string
	}{{msg.Params, []string{"stream"}}, {msg.Params, []string{"task", "stream"}}, {msg.Raw, []string{"stream"}}} {
		if v, ok := jsonrpc.Get(in.text, in.path...); ok {
			if !jsonrpc.IsObject(v) {
				return false, wire.InvalidParams("stream must be an object")
			}
			return true, nil
		}
	}
	return false, nil
}

// fellBack warns a client that it gets a task although it listed none (A5).
func fellBack(created json.RawMessage) json.RawMessage {
	return jsonrpc.With(created, json.RawMessage(`"`+modeTask+`"`), "_meta", mcp.MetaFallbackMode)
}

// modeCall is a call as its mode and what its client takes have it. For an immediate
// answer it races the grace of its tool, as a call that may become a task does.
func (q *request) modeCall(m responseMode, c shim.Call) shim.Call {
	if m.immediate {
		c.Demand, c.Handle = false, true
	}
	if m.stream {
		c.Request.Params = jsonrpc.Without(c.Request.Params, "stream")
	}
	c.Streaming = m.streaming
	c.Partials = (c.Demand || c.Handle) && !m.streaming && q.h.drafts(q.state).partials // A10
	return c
}

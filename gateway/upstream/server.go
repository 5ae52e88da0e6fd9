package upstream

import (
	"bytes"
	"encoding/json"
	"sync/atomic"

	"taskgate/gateway/upstream/reading"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

// Description is what a server says of itself.
type Description struct {
	// Era is that of Version, the agreed version.
	Era     mcp.Era
	Version string
	// Capabilities and Info are the ServerCapabilities and the Implementation object as received;
	// nil if missing.
	Capabilities json.RawMessage
	Info         json.RawMessage
	Instructions string
	// Raw is the whole InitializeResult or DiscoverResult.
	Raw json.RawMessage
}

// StandIn describes a server in place of one that is not asked. It gives the instructions, and has all
// capabilities, so that clients hear why each request is refused.
func StandIn(instructions string) Description {
	raw := jsonrpc.With(json.RawMessage(`{}`), jsonrpc.AppendString(nil, instructions), "instructions")
	all := json.RawMessage(`{"completions":{},"prompts":{},"resources":{},"tools":{}}`)
	return Description{Era: mcp.Legacy, Raw: raw, Capabilities: all, Instructions: instructions}
}

// isLike reports whether two answers may come from one server.
func (s Description) isLike(other Description) bool {
	return s.Version == other.Version && s.Instructions == other.Instructions &&
		reading.FingerprintOf(s.Capabilities) == reading.FingerprintOf(other.Capabilities) && reading.FingerprintOf(s.Info) == reading.FingerprintOf(other.Info)
}

// serverOf reads an InitializeResult or a DiscoverResult; info is the path of the Implementation
// object, in which the two differ.
func serverOf(era mcp.Era, version string, result json.RawMessage, info ...string) Description {
	srv := Description{Era: era, Version: version, Raw: bytes.Clone(result)}
	srv.Capabilities, _ = jsonrpc.Get(srv.Raw, "capabilities")
	srv.Info, _ = jsonrpc.Get(srv.Raw, info...)
	srv.Instructions, _ = jsonrpc.GetString(srv.Raw, "instructions")
	return srv
}

// hasCapability reports whether the server has a capability. The capabilities of a session from
// another replica may be unknown; then every one is tried.
func (s Description) hasCapability(path ...string) bool {
	if s.Raw == nil {
		return true
	}
	v, ok := jsonrpc.Get(s.Capabilities, path...)
	return ok && string(v) != "null" && string(v) != "false"
}

// Tool is one entry of a server's tools list.
type Tool struct {
	// OutputSchema is nil for none. Only the type at its root is kept: a list may be large.
	OutputSchema json.RawMessage
	// Params are the arguments that a modern call mirrors in headers.
	Params []mcpheader.Param
	// Invalid says why an HTTP client must drop this tool from a modern server's list (protocol.md
	// 2.4); nil for a valid tool.
	Invalid error
	// Says is what the annotations say.
	Says shim.Hints
	// taskSupport is that of a server of 2025-11-25 (L4); "" for none.
	taskSupport string
	// needsTask says whether the server has refused the tool to a caller that takes no tasks (T5),
	// since it was listed; nil for an unlisted tool.
	needsTask *atomic.Bool
}

func readTool(raw json.RawMessage) (string, Tool) {
	name, _ := jsonrpc.GetString(raw, "name")
	schema, _ := jsonrpc.Get(raw, "inputSchema")
	output, _ := jsonrpc.Get(raw, "outputSchema")
	support, _ := jsonrpc.GetString(raw, "execution", "taskSupport")
	t := Tool{taskSupport: support, needsTask: new(atomic.Bool), Says: reading.HintsOf(raw)}
	switch typ, _ := jsonrpc.GetString(output, "type"); {
	case typ == "object":
		t.OutputSchema = json.RawMessage(`{"type":"object"}`)
	case output != nil:
		t.OutputSchema = json.RawMessage(`{}`)
	}
	t.Params, t.Invalid = mcpheader.Params(schema)
	return name, t
}

// learnRequired notes that the tool needs a caller that takes tasks.
func (t Tool) learnRequired() {
	if t.needsTask != nil {
		t.needsTask.Store(true)
	}
}

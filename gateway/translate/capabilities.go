package translate

import (
	"encoding/json"
	"slices"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// This file decides which capabilities of a client its server is told of, and which of a server its
// client. All of them pass, byte for byte and between any eras, so that both can agree on features
// that are new to the gateway. All exceptions, with their reasons, are here and in design.md 0.26:
//
//   - tasks, and the extensions in ownExtensions: they hold for one connection, and there are
//     two of them. The gateway makes the tasks (T1, L1, L40), and a server must not hand its
//     client a task of its own (protocol.md C 5).
//   - elicitation, sampling and roots of a client that questions cannot reach.
//   - roots.listChanged of a modern client before a legacy server: its era has no notification
//     of that, and the server would wait for it.
//   - one of the kinds above, a mode of theirs, or extensions, if it is no object: a server could
//     take for a yes what the gateway takes for a no.

// ownExtensions are those that hold between the gateway and each of its two peers. Credentials are
// presented to the gateway, and by the gateway (Z1), so the two sides authorize separately.
var ownExtensions = []string{
	mcp.ExtensionTasks, mcp.ExtensionPartials,
	mcp.ExtensionClientCredentials, mcp.ExtensionEnterpriseAuthorization,
}

// ClientView decides how a client looks to its server.
type ClientView struct {
	// Asked says that the client can be brought the server's questions.
	Asked bool
	// RootsChange says that the server can be told when the client's roots change.
	RootsChange bool
}

// ClientCapabilities are a client's capabilities as its server is told of them; nil for none. They
// may share memory with caps.
func ClientCapabilities(caps json.RawMessage, v ClientView) json.RawMessage {
	left := false
	caps = jsonrpc.Edit(caps, func(name string, value json.RawMessage) json.RawMessage {
		switch name {
		case "tasks":
			value = nil
		case "extensions":
			value = withoutOwn(value)
		case "elicitation":
			value = question(value, v.Asked, "form", "url")
		case "sampling":
			value = question(value, v.Asked, "context", "tools")
		case "roots":
			value = question(value, v.Asked)
			if value != nil && !v.RootsChange {
				value = jsonrpc.Without(value, "listChanged")
			}
		}
		left = left || value != nil
		return value
	})
	if !left {
		return nil
	}
	return caps
}

// question is the capability to be asked one kind of question; nil for none.
func question(value json.RawMessage, asked bool, modes ...string) json.RawMessage {
	if !asked || !jsonrpc.IsObject(value) {
		return nil
	}
	return jsonrpc.Edit(value, func(name string, mode json.RawMessage) json.RawMessage {
		if slices.Contains(modes, name) && !jsonrpc.IsObject(mode) {
			return nil
		}
		return mode
	})
}

// withoutOwn removes the gateway's own extensions; nil if only those were there.
func withoutOwn(extensions json.RawMessage) json.RawMessage {
	rest, removed, left := removeMembers(extensions, func(name string) bool { return slices.Contains(ownExtensions, name) })
	if !jsonrpc.IsObject(extensions) || removed && !left {
		return nil
	}
	return rest
}

// removeMembers removes members of an object, and reports whether there were any, and whether others are
// left.
func removeMembers(obj json.RawMessage, which func(name string) bool) (rest json.RawMessage, removed, left bool) {
	rest = jsonrpc.Edit(obj, func(name string, value json.RawMessage) json.RawMessage {
		if which(name) {
			removed = true
			return nil
		}
		left = true
		return value
	})
	return rest, removed, left
}

// modernCapabilities are a server's capabilities as modern clients see them: the legacy tasks are
// removed (T10), and the extensions of the gateway added if it offers them. Their value is always
// {} (T1): clients read any other as no tasks (Appendix C.1).
func modernCapabilities(s upstream.Description, tasks bool) json.RawMessage {
	caps := serverCapabilities(s.Capabilities)
	if tasks {
		caps = jsonrpc.With(caps, json.RawMessage(`{}`), "extensions", mcp.ExtensionTasks)
		caps = jsonrpc.With(caps, json.RawMessage(`{}`), "extensions", mcp.ExtensionPartials)
	}
	return caps
}

// legacyCapabilities are a server's capabilities as legacy clients see them, with the gateway's own
// tasks; nil for none.
func legacyCapabilities(s upstream.Description, tasks json.RawMessage) json.RawMessage {
	return jsonrpc.With(serverCapabilities(s.Capabilities), tasks, "tasks") // nil adds none
}

// serverCapabilities are the capabilities of a server that its clients are told of.
func serverCapabilities(caps json.RawMessage) json.RawMessage {
	if !jsonrpc.IsObject(caps) {
		return json.RawMessage(`{}`)
	}
	return jsonrpc.Edit(caps, func(name string, value json.RawMessage) json.RawMessage {
		switch name {
		case "tasks":
			return nil
		case "extensions":
			return withoutOwn(value)
		}
		return value
	})
}

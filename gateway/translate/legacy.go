package translate

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// This file turns the answer of a server of either era into what a client of the versions up to
// 2025-11-25 knows (protocol.md 7.1, 7.2). Every function is a pure splice: other members stay byte
// for byte. A text of an unexpected shape is the server's business, and stays as it is.

// LegacyView decides how a result looks to a legacy client.
type LegacyView struct {
	Modern  bool // the server speaks the modern era
	Wrapped bool // the output schema of the called tool was wrapped (see wrapSchema)
	// Tasks reports, by their entries in the list, the tools that may be called as tasks; nil if the session can make none.
	Tasks func(tool json.RawMessage) bool
	// Requires says that the client knows tools that require a task: it declares tasks itself.
	Requires bool
	// Partials reports the tools that have partial results; nil if the client takes none.
	Partials func(tool json.RawMessage) bool
	// Dropped is told of the tools of a modern server that are left out (see LegacyResult).
	Dropped func(name string, reason error)
}

// LegacyResult translates a result. A modern server's tool with an invalid x-mcp-header is left out
// of a list, as for modern clients: the server has to refuse its calls (2.4).
func LegacyResult(method string, result []byte, v LegacyView) []byte {
	if v.Modern {
		result = withoutModernMembers(result)
	}
	switch method {
	case mcp.MethodToolsList:
		result = EachTool(result, func(tool json.RawMessage) json.RawMessage {
			if v.Modern && unsound(tool, v.Dropped) {
				return nil
			}
			return legacyTool(tool, v)
		})
	case mcp.MethodToolsCall:
		if v.Modern {
			result = legacyStructured(result, v.Wrapped)
		}
	}
	return result
}

// withoutModernMembers removes the members of modern results (2.1, 2.3, 2.9), which a strict reader
// of the older schemas may refuse. It also removes the mark of a task of the server's own (H14).
func withoutModernMembers(result []byte) []byte {
	return jsonrpc.Edit(result, func(name string, value json.RawMessage) json.RawMessage {
		switch name {
		case "resultType", "ttlMs", "cacheScope":
			return nil
		case "_meta":
			return withoutModernMeta(value)
		}
		return value
	})
}

// withoutModernMeta does the same for _meta; nil if that empties it.
func withoutModernMeta(meta json.RawMessage) json.RawMessage {
	rest, _, left := removeMembers(meta, func(name string) bool { return name == mcp.MetaServerInfo || name == mcp.MetaRelatedTask })
	if !left && jsonrpc.IsObject(meta) {
		return nil
	}
	return rest
}

// legacyTool translates one entry of tools/list. An output schema that can be neither shown nor wrapped is left
// out.
func legacyTool(tool []byte, v LegacyView) []byte {
	tool = legacyStreamPartial(legacyTaskSupport(tool, v), v.Partials)
	schema, ok := jsonrpc.Get(tool, "outputSchema")
	if !v.Modern || !ok || !NeedsWrap(schema) {
		return tool
	}
	if wrapped := wrapSchema(schema); wrapped != nil {
		return jsonrpc.With(tool, wrapped, "outputSchema")
	}
	return jsonrpc.Without(tool, "outputSchema")
}

// legacyTaskSupport says of a tool whether the gateway makes tasks of its calls, in place of what
// its server says of its own. The client chooses: the TypeScript SDK refuses a plain call of a tool
// that requires a task (L5). Only a client that declares tasks, or is known to run them,
// hears that a tool requires one: some use tasks only where they must. Any other mark that asks for a task is removed, for other tools
// and in other sessions: its absence means "forbidden" (L4).
func legacyTaskSupport(tool []byte, v LegacyView) []byte {
	support, _ := jsonrpc.GetString(tool, "execution", "taskSupport")
	switch {
	case v.Tasks != nil && v.Tasks(tool):
		if support == "optional" || support == "required" && v.Requires {
			return tool
		}
		return jsonrpc.With(tool, []byte(`"optional"`), "execution", "taskSupport")
	case support == "optional" || support == "required":
		return jsonrpc.WithoutEmpty(jsonrpc.Without(tool, "execution", "taskSupport"), "execution")
	}
	return tool
}

// legacyStructured makes structuredContent an object, as it had to be before 2026: any other value
// v becomes {"result": v}, and so does an object that the client expects wrapped. For clients that
// ignore structured content, such another value also goes into a text block, if the tool wrote
// none. (The TypeScript SDK's server does the same for its own tools.)
func legacyStructured(result []byte, wrapped bool) []byte {
	value, ok := jsonrpc.Get(result, "structuredContent")
	if !ok {
		return result
	}
	object := jsonrpc.IsObject(value)
	if object && !wrapped {
		return result
	}
	if !object {
		result = withText(result, value)
	}
	return jsonrpc.With(result, concat(`{"result":`, value, `}`), "structuredContent")
}

// withText appends the JSON text of a value to a result's content, if that lacks a text block.
func withText(result, value []byte) []byte {
	content, ok := jsonrpc.Get(result, "content")
	if ok && (len(content) == 0 || content[0] != '[') {
		return result
	}
	comma := ""
	for block := range jsonrpc.Elements(content) {
		if t, _ := jsonrpc.GetString(block, "type"); t == "text" {
			return result
		}
		comma = ","
	}
	block := concat(`{"type":"text","text":`, jsonrpc.AppendString(nil, string(value)), `}`)
	if !ok {
		return jsonrpc.With(result, concat(`[`, block, `]`), "content")
	}
	return jsonrpc.With(result, concat(string(content[:len(content)-1])+comma, block, `]`), "content")
}

func concat(before string, middle []byte, after string) []byte {
	return append(append([]byte(before), middle...), after...)
}

// legacyStreamPartial says of a tool whether it has partial results, to a client that takes them
// (P9), in place of what its server says of its own tasks, which stay hidden.
func legacyStreamPartial(tool []byte, shows func(json.RawMessage) bool) []byte {
	if shows != nil && shows(tool) {
		return jsonrpc.With(tool, json.RawMessage("true"), "execution", "streamPartial")
	}
	if _, ok := jsonrpc.Get(tool, "execution", "streamPartial"); ok {
		return jsonrpc.WithoutEmpty(jsonrpc.Without(tool, "execution", "streamPartial"), "execution")
	}
	return tool
}

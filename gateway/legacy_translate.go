package gateway

import (
	"bytes"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// This file turns what a server of either era answered into what a client of the
// versions up to 2025-11-25 knows (protocol.md 7.1, 7.2). Every function is a
// pure splice: what it does not name stays byte for byte. A text that is not
// shaped as expected is left alone, since it is the server's business.

// legacyResult translates a result. modern says that the server speaks the modern
// era; wrapped that the tool called has an output schema that was wrapped (see
// wrapSchema).
func legacyResult(method string, result []byte, modern, wrapped bool) []byte {
	if modern {
		result = withoutModernMembers(result)
	}
	switch method {
	case mcp.MethodToolsList:
		result = eachTool(result, func(tool []byte) []byte { return legacyTool(tool, modern) })
	case mcp.MethodToolsCall:
		if modern {
			result = legacyStructured(result, wrapped)
		}
	}
	return result
}

// withoutModernMembers takes out what only modern results carry (2.1, 2.3, 2.9).
// They would do no harm, but a strict reader of the older schemas has no place
// for them.
func withoutModernMembers(result []byte) []byte {
	for _, name := range []string{"resultType", "ttlMs", "cacheScope"} {
		result = without(result, name)
	}
	result = without(result, "_meta", mcp.MetaServerInfo)
	return withoutEmpty(result, "_meta")
}

// legacyTool translates one entry of tools/list.
//
// While no tasks are offered to legacy clients, execution.taskSupport is void
// (L4); it is taken out where it would ask for a task, because a client would
// otherwise refuse to call a tool that "requires" one.
func legacyTool(tool []byte, modern bool) []byte {
	if s, _ := jsonrpc.GetString(tool, "execution", "taskSupport"); s == "optional" || s == "required" {
		tool = withoutEmpty(without(tool, "execution", "taskSupport"), "execution")
	}
	if schema, ok := jsonrpc.Get(tool, "outputSchema"); modern && ok && needsWrap(schema) {
		tool = with(tool, wrapSchema(schema), "outputSchema")
	}
	return tool
}

// legacyStructured makes structuredContent an object, as it had to be before
// 2026: any other value v becomes {"result": v}, and so does an object that the
// client expects wrapped. A client that does not look at structured content
// finds a value that is not an object in a text block, unless the tool wrote
// one itself. (The TypeScript SDK's server does the same for its own tools.)
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
	return with(result, concat(`{"result":`, value, `}`), "structuredContent")
}

// withText appends the JSON text of a value to a result's content as a text
// block, where the content has none.
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
		return with(result, concat(`[`, block, `]`), "content")
	}
	return with(result, concat(string(content[:len(content)-1])+comma, block, `]`), "content")
}

// legacyCapabilities turns a server's capabilities into what works for a legacy
// client of the gateway: tasks are not relayed, and no extension is
// (T9; extensions of a modern server are negotiated per request, which such a
// client cannot do).
func legacyCapabilities(caps []byte, modern bool) []byte {
	if !jsonrpc.IsObject(caps) {
		return []byte(`{}`)
	}
	caps = without(caps, "tasks")
	if modern {
		return without(caps, "extensions")
	}
	return withoutEmpty(without(caps, "extensions", mcp.ExtensionTasks), "extensions")
}

// eachTool applies f to the entries of a tools/list result.
func eachTool(result []byte, f func([]byte) []byte) []byte {
	tools, ok := jsonrpc.Get(result, "tools")
	if !ok {
		return result
	}
	out, changed := []byte{'['}, false
	for tool := range jsonrpc.Elements(tools) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		t := f(tool)
		changed = changed || !bytes.Equal(t, tool)
		out = append(out, t...)
	}
	if !changed {
		return result
	}
	return with(result, append(out, ']'), "tools")
}

// withoutEmpty removes a member that is an object without members: what remains
// of one that was emptied.
func withoutEmpty(obj []byte, name string) []byte {
	value, ok := jsonrpc.Get(obj, name)
	if !ok || !jsonrpc.IsObject(value) {
		return obj
	}
	for range jsonrpc.Members(value) {
		return obj
	}
	return without(obj, name)
}

func concat(before string, middle []byte, after string) []byte {
	return append(append([]byte(before), middle...), after...)
}

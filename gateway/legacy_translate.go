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

// legacyView is what decides how a result looks to a legacy client.
type legacyView struct {
	modern  bool // the server speaks the modern era
	wrapped bool // the tool called has an output schema that was wrapped (see wrapSchema)
	// tasks reports the tools that may be called as tasks; nil where the session
	// can make none.
	tasks func(tool string) bool
	// partials reports the tools that have partial results; nil where the client takes
	// none.
	partials func(tool string) bool
}

// legacyResult translates a result.
func legacyResult(method string, result []byte, v legacyView) []byte {
	if v.modern {
		result = withoutModernMembers(result)
	}
	switch method {
	case mcp.MethodToolsList:
		result = eachTool(result, func(tool []byte) []byte { return legacyTool(tool, v) })
	case mcp.MethodToolsCall:
		if v.modern {
			result = legacyStructured(result, v.wrapped)
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
func legacyTool(tool []byte, v legacyView) []byte {
	tool = legacyStreamPartial(legacyTaskSupport(tool, v.tasks), v.partials)
	if schema, ok := jsonrpc.Get(tool, "outputSchema"); v.modern && ok && needsWrap(schema) {
		tool = with(tool, wrapSchema(schema), "outputSchema")
	}
	return tool
}

// legacyTaskSupport says of a tool whether the gateway makes tasks of its calls,
// in place of what its server says of its own. It is always the client's choice:
// the TypeScript SDK refuses to call a tool plainly that requires a task (L5). Of
// other tools, and to other sessions, nothing is said that would ask for a task;
// that means the same as "forbidden" (L4).
func legacyTaskSupport(tool []byte, tasks func(string) bool) []byte {
	name, _ := jsonrpc.GetString(tool, "name")
	support, _ := jsonrpc.GetString(tool, "execution", "taskSupport")
	switch {
	case tasks != nil && tasks(name):
		if support == "optional" {
			return tool
		}
		return with(tool, []byte(`"optional"`), "execution", "taskSupport")
	case support == "optional" || support == "required":
		return withoutEmpty(without(tool, "execution", "taskSupport"), "execution")
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
// client of the gateway: no extension is relayed (T9; those of a modern server are
// negotiated per request, which such a client cannot do), and tasks are the
// gateway's own or none.
func legacyCapabilities(caps []byte, modern bool, tasks []byte) []byte {
	if !jsonrpc.IsObject(caps) {
		caps = []byte(`{}`)
	}
	caps = without(caps, "tasks")
	if modern {
		caps = without(caps, "extensions")
	} else {
		caps = withoutEmpty(without(caps, "extensions", mcp.ExtensionTasks), "extensions")
	}
	if tasks != nil {
		caps = with(caps, tasks, "tasks")
	}
	return caps
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

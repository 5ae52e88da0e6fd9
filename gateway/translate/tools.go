package translate

import (
	"bytes"
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
)

// EachTool is a tools/list result with f applied to each of its tools. A tool for which f returns nil is
// left out. The tools in more are appended. Any other result stays as it is. The order is the upstream's:
// pages pass one by one, and the gateway never has the whole list.
func EachTool(result json.RawMessage, f func(tool json.RawMessage) json.RawMessage, more ...json.RawMessage) json.RawMessage {
	tools, ok := jsonrpc.Get(result, "tools")
	if !ok || !jsonrpc.IsArray(tools) {
		return result
	}
	changed := len(more) > 0
	var kept []json.RawMessage
	for tool := range jsonrpc.Elements(tools) {
		t := f(tool)
		changed = changed || !bytes.Equal(t, tool)
		if t != nil {
			kept = append(kept, t)
		}
	}
	if !changed {
		return result
	}
	return jsonrpc.With(result, jsonrpc.Array(append(kept, more...)), "tools")
}

// ModernTools is a tools/list result for a modern client (protocol.md 7.1). A modern upstream's tool with
// an invalid x-mcp-header is dropped, as every HTTP client has to do (2.4): the gateway would have to
// refuse every call of it.
func ModernTools(result json.RawMessage, upstream mcp.Era, dropped func(name string, reason error)) json.RawMessage {
	return EachTool(result, func(tool json.RawMessage) json.RawMessage {
		if upstream == mcp.Modern && unsound(tool, dropped) {
			return nil
		}
		return modernTool(tool, upstream)
	})
}

// unsound reports whether a tool has an invalid x-mcp-header, and if so, tells dropped.
func unsound(tool json.RawMessage, dropped func(name string, reason error)) bool {
	_, err := mcpheader.Params(schemaOf(tool))
	if err != nil && dropped != nil {
		name, _ := jsonrpc.GetString(tool, "name")
		dropped(name, err)
	}
	return err != nil
}

// modernTool is one tool. Execution is of the legacy era only. In the schema of a legacy server
// x-mcp-header is a word like any other; a modern client would send headers for it (H12).
func modernTool(tool json.RawMessage, upstream mcp.Era) json.RawMessage {
	tool = jsonrpc.Without(tool, "execution")
	if upstream == mcp.Modern {
		return tool
	}
	schema := schemaOf(tool)
	if stripped := mcpheader.Strip(schema); len(stripped) != len(schema) {
		return jsonrpc.With(tool, stripped, "inputSchema")
	}
	return tool
}

func schemaOf(tool json.RawMessage) json.RawMessage {
	schema, _ := jsonrpc.Get(tool, "inputSchema")
	return schema
}

package gateway

import (
	"bytes"
	"context"
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
)

// droppedTool is a tool that modern clients do not get to see.
type droppedTool struct {
	name   string
	reason error
}

// modernTools is a tools/list result for a modern client (protocol.md 7.1). The
// order of the tools stays the upstream's: pages are passed through one by one,
// so nobody here could sort the whole. A modern upstream's tool with an invalid
// x-mcp-header is dropped, as every HTTP client has to do (2.4); the gateway
// would have to refuse every call of it.
func modernTools(result json.RawMessage, upstream mcp.Era) (json.RawMessage, []droppedTool) {
	tools, ok := jsonrpc.Get(result, "tools")
	if !ok {
		return result, nil
	}
	var dropped []droppedTool
	out := make([]byte, 0, len(tools)+2)
	for tool := range jsonrpc.Elements(tools) {
		if upstream == mcp.Modern {
			if _, err := mcpheader.Params(schemaOf(tool)); err != nil {
				name, _ := jsonrpc.GetString(tool, "name")
				dropped = append(dropped, droppedTool{name, err})
				continue
			}
		}
		out = append(append(out, ','), modernTool(tool, upstream)...)
	}
	if len(out) == 0 {
		out = append(out, ',')
	}
	out[0] = '['
	if out = append(out, ']'); !bytes.Equal(out, tools) {
		result = with(result, out, "tools")
	}
	return result, dropped
}

// modernTool is one tool. Execution does not exist in this era. To a legacy server
// x-mcp-header is a word like any other; shown to a modern client it would make
// it send headers that nobody has agreed on (H12).
func modernTool(tool json.RawMessage, upstream mcp.Era) json.RawMessage {
	tool = without(tool, "execution")
	if upstream == mcp.Modern {
		return tool
	}
	schema := schemaOf(tool)
	if stripped := mcpheader.Strip(schema); len(stripped) != len(schema) {
		return with(tool, stripped, "inputSchema")
	}
	return tool
}

func schemaOf(tool json.RawMessage) json.RawMessage {
	schema, _ := jsonrpc.Get(tool, "inputSchema")
	return schema
}

// logDropped says once for each tool that it is not offered, and why.
func (e *endpoint) logDropped(ctx context.Context, dropped []droppedTool) {
	for _, d := range dropped {
		if _, again := e.dropped.LoadOrStore(d.name, true); !again {
			e.log.WarnContext(ctx, "tool is not offered to clients", "tool", d.name, "reason", d.reason)
		}
	}
}

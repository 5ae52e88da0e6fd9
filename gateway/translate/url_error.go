package translate

import (
	"encoding/json"
	"strings"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// A server of 2025-11-25 may refuse to begin a request until its user has opened a page (-32042,
// URLElicitationRequired). Its own clients know what to do. A modern client that declared
// elicitation by URL is asked, and the request made again (shim.Round.Again). All other clients are
// told in words (protocol.md 7.4).

// URLRequired rewrites error -32042 for a client to which the code is unknown: for a tools/call as
// a tool's error that a model can read.
func URLRequired(method string, e *shim.RPCError) shim.Reply {
	text := urlText(e)
	if method != mcp.MethodToolsCall {
		return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeInternal, Message: text}}
	}
	return shim.Reply{Result: ToolText(text, true), IsError: true}
}

// urlText says what is needed. It leaves out the addresses: they are for the user only, and a model
// that reads the result might open them.
func urlText(e *shim.RPCError) string {
	var b strings.Builder
	b.WriteString("The server has not begun this: its user has to open a page in a browser first")
	pages, _ := jsonrpc.Get(e.Data, "elicitations")
	mark := ": "
	for page := range jsonrpc.Elements(pages) {
		if message, ok := jsonrpc.GetString(page, "message"); ok && message != "" {
			b.WriteString(mark + message)
			mark = "; "
		}
	}
	if mark == ": " && e.Message != "" {
		b.WriteString(mark + e.Message)
	}
	b.WriteString(". It needs a client that declares elicitation by URL.")
	return b.String()
}

// ToolText is a CallToolResult of one text.
func ToolText(text string, isError bool) json.RawMessage {
	b := append([]byte(`{"content":[{"type":"text","text":`), jsonrpc.AppendString(nil, text)...)
	b = append(b, `}]`...)
	if isError {
		b = append(b, `,"isError":true`...)
	}
	return append(b, '}')
}

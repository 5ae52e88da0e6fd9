package dialect

import (
	"encoding/json"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// ErrorObject spells a JSON-RPC error object {code, message, data?} without
// touching data.
func ErrorObject(code int64, message string, data json.RawMessage) json.RawMessage {
	o := newObject(64 + len(message) + len(data))
	o.num("code", code)
	o.str("message", message)
	if data != nil {
		o.raw("data", data)
	}
	return o.done()
}

// modernError is an upstream's error object as a modern client may see it: a
// legacy -32002 becomes -32602, and a code that only the specification may define
// becomes -32603 with the original in data (protocol.md 7.5).
func modernError(e json.RawMessage) []byte {
	raw, ok := jsonrpc.Get(e, "code")
	if !ok {
		return e
	}
	code, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return e
	}
	switch {
	case code == mcp.CodeResourceNotFound:
		if out, err := jsonrpc.Set(e, strconv.AppendInt(nil, mcp.CodeInvalidParams, 10), "code"); err == nil {
			return out
		}
	case mcp.Reserved(code):
		message, _ := jsonrpc.GetString(e, "message")
		o := newObject(len(e) + 16)
		o.raw("original", e)
		return ErrorObject(mcp.CodeInternal, message, o.done())
	}
	return e
}

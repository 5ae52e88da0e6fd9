package dialect

import (
	"encoding/json"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// ErrorCode returns the code that a client of this version sees for an upstream's own error code
// (protocol.md 7.5). If wrap is true, the original error goes into data.original, because its code
// would mislead the client, or is not for it to know:
//
//   - errors between the gateway and the upstream are out of the client's hands;
//   - a modern client must not get a legacy -32002, nor any code that only the
//     specification may define.
func ErrorCode(version string, code int64) (spelt int64, wrap bool) {
	switch code {
	case mcp.CodeHeaderMismatch, mcp.CodeMissingCapability, mcp.CodeUnsupportedVersion:
		return mcp.CodeInternal, true
	}
	switch {
	case mcp.EraOf(version) != mcp.Modern:
		return code, false
	case code == mcp.CodeResourceNotFound: // data.uri stays
		return mcp.CodeInvalidParams, false
	case mcp.Reserved(code):
		return mcp.CodeInternal, true
	}
	return code, false
}

// Original is the data of an error that replaces another one.
func Original(e json.RawMessage) json.RawMessage {
	o := newObject(len(e) + 16)
	o.raw("original", e)
	return o.done()
}

// errorFor returns an upstream's error object as a client of this version may see it.
func errorFor(version string, e json.RawMessage) []byte {
	raw, ok := jsonrpc.Get(e, "code")
	if !ok {
		return e
	}
	code, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return e
	}
	spelt, wrap := ErrorCode(version, code)
	switch {
	case wrap:
		message, _ := jsonrpc.GetString(e, "message")
		return (&shim.RPCError{Code: spelt, Message: message, Data: Original(e)}).Object()
	case spelt != code:
		return jsonrpc.With(e, strconv.AppendInt(nil, spelt, 10), "code")
	}
	return e
}

package gateway

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
)

// The edits that both faces make to payloads. What is not an object cannot take
// an edit and stays as it is: it is the server's business.

// with is obj with a member at path.
func with(obj, value json.RawMessage, path ...string) json.RawMessage {
	if out, err := jsonrpc.Set(obj, value, path...); err == nil {
		return out
	}
	return obj
}

// withDefault is obj with a member at path, where it has none.
func withDefault(obj, value json.RawMessage, path ...string) json.RawMessage {
	if _, ok := jsonrpc.Get(obj, path...); ok {
		return obj
	}
	return with(obj, value, path...)
}

// without is obj without the member at path. The usual case, that there is none,
// costs no copy.
func without(obj json.RawMessage, path ...string) json.RawMessage {
	if _, ok := jsonrpc.Get(obj, path...); !ok {
		return obj
	}
	if out, err := jsonrpc.Delete(obj, path...); err == nil {
		return out
	}
	return obj
}

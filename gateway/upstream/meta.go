package upstream

import (
	"bytes"
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// pair is one member to put into params._meta; the value is JSON.
type pair struct {
	key   string
	value []byte
}

func text(key, value string) pair { return pair{key, jsonrpc.AppendString(nil, value)} }

// withMeta returns params with these members in _meta, in place of others of
// the same names. All other bytes stay as they are. Params that are no object
// (an array: no method of MCP has such) are left alone.
func withMeta(params []byte, pairs []pair) []byte {
	if len(pairs) == 0 {
		return params
	}
	old, _ := jsonrpc.Get(params, "_meta")
	meta := mergeMeta(old, pairs)
	if len(params) == 0 {
		params = []byte("{}")
	}
	out, err := jsonrpc.Set(params, meta, "_meta")
	if err != nil {
		return params
	}
	return out
}

func mergeMeta(old []byte, pairs []pair) []byte {
	meta := append(make([]byte, 0, len(old)+64*len(pairs)), '{')
	add := func(key string, value []byte) {
		if len(meta) > 1 {
			meta = append(meta, ',')
		}
		meta = append(append(jsonrpc.AppendString(meta, key), ':'), value...)
	}
	for key, value := range jsonrpc.Members(old) {
		if !named(pairs, key) {
			add(key, value)
		}
	}
	for _, p := range pairs {
		add(p.key, p.value)
	}
	return append(meta, '}')
}

func named(pairs []pair, key string) bool {
	for _, p := range pairs {
		if p.key == key {
			return true
		}
	}
	return false
}

// declared are the capabilities to declare for a session: those of the client
// without tasks of either dialect. The gateway makes tasks itself, and a client
// behind it must not be handed one that it did not make (protocol.md C 5).
func declared(caps json.RawMessage) json.RawMessage {
	if !jsonrpc.IsObject(caps) {
		return json.RawMessage("{}")
	}
	if !bytes.Contains(caps, []byte("tasks")) {
		return caps
	}
	for _, path := range [][]string{{"tasks"}, {"extensions", mcp.ExtensionTasks}} {
		if out, err := jsonrpc.Delete(caps, path...); err == nil {
			caps = out
		}
	}
	return caps
}

// fingerprint is a spelling that equal capabilities share.
func fingerprint(caps json.RawMessage) string {
	if len(caps) == 0 {
		return "{}"
	}
	var v any
	if err := json.Unmarshal(declared(caps), &v); err != nil {
		return string(caps)
	}
	b, err := json.Marshal(v) // sorts the names
	if err != nil {
		return string(caps)
	}
	return string(b)
}

// MayAsk reports whether the client behind a session declared that it can be asked
// this (protocol.md 7.4).
func MayAsk(s shim.Session, method string, params []byte) bool {
	_, ok := may(s, method, params)
	return ok
}

// may reports whether the client behind a session declared that it can be asked
// this, and otherwise the error code that the server gets (protocol.md 7.4).
func may(s shim.Session, method string, params []byte) (code int64, ok bool) {
	has := func(path ...string) bool {
		v, ok := jsonrpc.Get(s.Capabilities, path...)
		return ok && string(v) != "null"
	}
	switch method {
	case mcp.MethodCreateMessage:
		return mcp.CodeMethodNotFound, has("sampling")
	case mcp.MethodRootsList:
		return mcp.CodeMethodNotFound, has("roots")
	case mcp.MethodElicit:
		if !has("elicitation") {
			return mcp.CodeMethodNotFound, false
		}
		if mode, _ := jsonrpc.GetString(params, "mode"); mode == "url" {
			return mcp.CodeInvalidParams, has("elicitation", "url")
		}
		// An empty object means form alone (protocol.md 2.2).
		return mcp.CodeInvalidParams, has("elicitation", "form") || !has("elicitation", "url")
	}
	return mcp.CodeMethodNotFound, false
}

package reading

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Pair is one member to put into params._meta; the value is JSON.
type Pair struct {
	Key   string
	Value []byte
}

// Text returns a Pair whose value is a string.
func Text(key, value string) Pair { return Pair{key, jsonrpc.AppendString(nil, value)} }

// WithMeta returns params with these members in _meta, in place of others of the same names. All other
// bytes stay as they are. Params that are no object (an array: no method of MCP has such) are left
// alone.
func WithMeta(params []byte, pairs []Pair) []byte {
	if len(pairs) == 0 {
		return params
	}
	old, _ := jsonrpc.Get(params, "_meta")
	if !jsonrpc.IsObject(old) {
		old = []byte("{}")
	}
	meta := jsonrpc.Splice(old, func(name string, value json.RawMessage) json.RawMessage {
		if slices.ContainsFunc(pairs, func(p Pair) bool { return p.Key == name }) {
			return nil
		}
		return value
	}, func() []byte {
		members := make([]byte, 0, 64*len(pairs))
		for _, p := range pairs {
			members = append(append(append(jsonrpc.AppendString(members, p.Key), ':'), p.Value...), ',')
		}
		return members[:len(members)-1]
	})
	if len(params) == 0 {
		params = []byte("{}")
	}
	return jsonrpc.With(params, meta.Text(), "_meta")
}

// DeclaredCapabilities are the capabilities of a session as the server reads them.
// translate.ClientCapabilities has decided which of a client's it gets.
func DeclaredCapabilities(caps json.RawMessage) json.RawMessage {
	if !jsonrpc.IsObject(caps) {
		return json.RawMessage("{}")
	}
	return caps
}

// maxSorted is how long capabilities are whose spelling does not count, in bytes: those of known clients are shorter.
const maxSorted = 4 << 10

// FingerprintOf is short, and the same for capabilities that say the same, however they are spelt.
// Numbers are compared as they are written, so two numbers that a server could tell apart stay
// different. Long ones count as they are spelt: to sort them for each request would cost more than the rest of it.
func FingerprintOf(caps json.RawMessage) string {
	caps = DeclaredCapabilities(caps)
	if string(caps) == "{}" {
		return "{}"
	}
	text := jsontext.Value(caps)
	if len(caps) <= maxSorted {
		text = bytes.Clone(text)
		_ = text.Format(jsontext.ReorderRawObjects(true)) // unreadable text stays as it is
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// MayAsk reports whether the client behind a session declared that it can be asked this (protocol.md
// 7.4).
func MayAsk(s shim.Session, method string, params []byte) bool {
	_, ok := CheckAsked(s, method, params)
	return ok
}

// abilityFor is the capability that a client has to declare to be asked this; nil if the method is no
// question of the protocol.
func abilityFor(method string, params []byte) []string {
	switch method {
	case mcp.MethodCreateMessage:
		return []string{"sampling"}
	case mcp.MethodRootsList:
		return []string{"roots"}
	case mcp.MethodElicit:
		if mode, _ := jsonrpc.GetString(params, "mode"); mode == "url" {
			return []string{"elicitation", "url"}
		}
		return []string{"elicitation", "form"}
	}
	return nil
}

// CheckAsked reports whether the client behind a session declared that it can be asked
// this, and otherwise the error code that the server gets (protocol.md 7.4).
func CheckAsked(s shim.Session, method string, params []byte) (code int64, ok bool) {
	has := func(path ...string) bool {
		v, ok := jsonrpc.Get(s.Capabilities, path...)
		return ok && string(v) != "null"
	}
	ability := abilityFor(method, params)
	switch {
	case ability == nil || !has(ability[0]):
		return mcp.CodeMethodNotFound, false
	case has(ability...):
		return mcp.CodeInvalidParams, true
	}
	// An empty object means form alone (protocol.md 2.2).
	return mcp.CodeInvalidParams, ability[1] == "form" && !has("elicitation", "url")
}

package translate

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
)

// Answerable are only the kinds of questions that a client declared it answers; nil for none.
func Answerable(capabilities json.RawMessage) json.RawMessage {
	var out json.RawMessage
	for _, kind := range []struct {
		name  string
		modes []string
	}{{"elicitation", []string{"form", "url"}}, {"roots", nil}, {"sampling", []string{"context", "tools"}}} {
		declared, _ := jsonrpc.Get(capabilities, kind.name)
		if !jsonrpc.IsObject(declared) {
			continue
		}
		if out == nil {
			out = json.RawMessage(`{}`)
		}
		out = jsonrpc.With(out, json.RawMessage(`{}`), kind.name)
		for _, mode := range kind.modes {
			if v, _ := jsonrpc.Get(declared, mode); jsonrpc.IsObject(v) {
				out = jsonrpc.With(out, json.RawMessage(`{}`), kind.name, mode)
			}
		}
	}
	return out
}

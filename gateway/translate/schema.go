package translate

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"taskgate/internal/jsonrpc"
)

// NeedsWrap reports whether a legacy client needs an output schema wrapped: up to 2025-11-25 its
// root has to say "type": "object" (protocol.md 2.9, 7.1).
func NeedsWrap(schema []byte) bool {
	t, _ := jsonrpc.GetString(schema, "type")
	return t != "object"
}

// wrapSchema makes a schema for {"result": v} out of a schema for v. The dialect ($schema) moves to
// the new root, the only place where it may stand, and so do the definitions, where references find
// them. It returns nil for a schema that refers to any other place in itself, such as its root: that
// would be the new root.
func wrapSchema(schema []byte) []byte {
	id, _ := jsonrpc.GetString(schema, "$id")
	document := id != "" && id[0] != '#' // it refers to itself wherever it is; a fragment is an anchor of draft-07
	if !document && slices.ContainsFunc(pointer.FindAll(schema, -1), isElsewhere) {
		return nil
	}
	out := []byte{'{'}
	rest := jsonrpc.Edit(schema, func(name string, value json.RawMessage) json.RawMessage {
		if name == "$schema" || !document && (name == "$defs" || name == "definitions") {
			out = append(append(append(append(out, '"'), name...), `":`...), value...)
			out = append(out, ',')
			return nil
		}
		return value
	})
	out = append(out, `"type":"object","properties":{"result":`...)
	return append(append(out, rest...), `},"required":["result"]}`...)
}

// pointer matches a string that may be a pointer into the schema.
var pointer = regexp.MustCompile(`"(?:#|\\u0023)(?:\\?/[^"]*)?"`)

// isElsewhere reports whether a pointer leads to no definition.
func isElsewhere(ref []byte) bool {
	at, _ := jsonrpc.GetString(ref)
	return !strings.HasPrefix(at, "#/$defs/") && !strings.HasPrefix(at, "#/definitions/")
}

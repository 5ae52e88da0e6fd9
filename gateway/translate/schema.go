package translate

import (
	"bytes"
	"strings"

	"taskgate/internal/jsonrpc"
)

// NeedsWrap reports whether a legacy client needs an output schema wrapped: up to 2025-11-25 its
// root has to say "type": "object" (protocol.md 2.9, 7.1).
func NeedsWrap(schema []byte) bool {
	t, _ := jsonrpc.GetString(schema, "type")
	return t != "object"
}

// wrappedAt is where wrapSchema puts the schema, as a JSON pointer.
const wrappedAt = "/properties/result"

// wrapSchema makes a schema for {"result": v} out of a schema for v. The dialect ($schema) moves to
// the new root, the only place where it may stand, and references to the old root follow that to
// its new place.
func wrapSchema(schema []byte) []byte {
	out := []byte{'{'}
	if dialect, ok := jsonrpc.Get(schema, "$schema"); ok {
		out = append(append(append(out, `"$schema":`...), dialect...), ',')
		schema = jsonrpc.Without(schema, "$schema")
	}
	out = append(out, `"type":"object","properties":{"result":`...)
	out = appendRebased(out, schema, false)
	return append(out, `},"required":["result"]}`...)
}

// Keywords whose values are data, and keywords whose values map names to schemas.
var (
	dataKeywords = map[string]bool{"const": true, "enum": true, "default": true, "examples": true}
	nameKeywords = map[string]bool{
		"properties": true, "patternProperties": true, "$defs": true, "definitions": true,
		"dependentSchemas": true, "dependencies": true,
	}
)

// appendRebased appends a schema, or with names a map of schemas, in which pointers to the root of
// the document name its new place. A subschema with an $id is a document of its own, and refers to
// itself.
func appendRebased(dst, v []byte, names bool) []byte {
	switch {
	case !mayRefer(v) || !names && hasBase(v):
		return append(dst, v...)
	case v[0] == '[':
		return appendRebasedArray(dst, v)
	case v[0] != '{':
		return append(dst, v...)
	}
	dst = append(dst, '{')
	comma := ""
	for name, value := range jsonrpc.Members(v) {
		dst = append(jsonrpc.AppendString(append(dst, comma...), name), ':')
		comma = ","
		switch {
		case !names && dataKeywords[name]:
			dst = append(dst, value...)
		case !names && (name == "$ref" || name == "$dynamicRef"):
			dst = appendRef(dst, value)
		default:
			dst = appendRebased(dst, value, !names && nameKeywords[name])
		}
	}
	return append(dst, '}')
}

func appendRebasedArray(dst, v []byte) []byte {
	dst = append(dst, '[')
	comma := ""
	for e := range jsonrpc.Elements(v) {
		dst = appendRebased(append(dst, comma...), e, false)
		comma = ","
	}
	return append(dst, ']')
}

// appendRef appends a reference. Only a JSON pointer into this document moves; anchors (#name) and
// other documents stay.
func appendRef(dst, value []byte) []byte {
	ref, ok := jsonrpc.GetString(value)
	if pointer, local := strings.CutPrefix(ref, "#"); ok && local && (pointer == "" || pointer[0] == '/') {
		return jsonrpc.AppendString(dst, "#"+wrappedAt+pointer)
	}
	return append(dst, value...)
}

// mayRefer spares schemas without references the walk.
func mayRefer(v []byte) bool {
	return bytes.Contains(v, []byte(`$ref`)) || bytes.Contains(v, []byte(`$dynamicRef`)) || bytes.Contains(v, []byte(`\u00`))
}

// hasBase reports whether a schema has an $id that makes it a document of its own; an $id that is
// only a fragment is the draft-07 way to write an anchor.
func hasBase(schema []byte) bool {
	id, ok := jsonrpc.GetString(schema, "$id")
	return ok && !strings.HasPrefix(id, "#")
}

package mcpheader

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
)

// Strip returns an input schema without its annotations, wherever they stand. It is for tools of
// servers to which the word means nothing: a client that takes it for an annotation would send
// headers that those servers ignore. A property that is called x-mcp-header stays, and so does
// every other byte. A part that nests too deeply stays as it is.
func Strip(inputSchema []byte) []byte {
	if !mayAnnotate(inputSchema) {
		return inputSchema
	}
	return strip(inputSchema, schemaAt, 0)
}

// place says what a value in a schema is.
type place uint8

const (
	schemaAt place = iota // a schema, or a list of them
	namesAt               // a map of names to schemas
)

// strip removes the annotations from a value.
func strip(b []byte, at place, depth int) []byte {
	if depth > maxDepth || !mayAnnotate(b) {
		return b
	}
	if !jsonrpc.IsObject(b) {
		return stripList(b, depth)
	}
	return jsonrpc.Edit(b, func(name string, value json.RawMessage) json.RawMessage {
		switch {
		case at == namesAt:
			return strip(value, schemaAt, depth+1)
		case name == annotation:
			return nil
		case isData(name):
			return value
		case name == "properties" || isNameMap(name):
			return strip(value, namesAt, depth+1)
		}
		return strip(value, schemaAt, depth+1)
	})
}

// stripList is strip for a list of schemas; any other value stays as it is.
func stripList(b []byte, depth int) []byte {
	out, changed := []byte{}, false
	for e := range jsonrpc.Elements(b) {
		s := strip(e, schemaAt, depth+1)
		changed = changed || len(s) != len(e)
		out = append(append(out, ','), s...)
	}
	if !changed {
		return b
	}
	out[0] = '['
	return append(out, ']')
}

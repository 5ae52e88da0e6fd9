package mcpheader

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"taskgate/internal/jsonrpc"
)

// annotation is the schema keyword that asks for a header.
const annotation = "x-mcp-header"

// maxDepth is how deeply a schema that uses the annotation may nest, counted in keywords and
// properties. Each level reads the levels below it once more, so this bounds the cost of schemas
// made to be expensive.
const maxDepth = 200

// The types that an annotated property may have. "number" is left out, since its text is ambiguous.
const (
	typeInteger = "integer"
	typeString  = "string"
	typeBoolean = "boolean"
)

// Param is one argument of a tool that is mirrored in a header.
type Param struct {
	Header string   // the X of Mcp-Param-X, as the schema spells it
	Path   []string // property names from the root of the arguments
	Type   string   // integer, string or boolean
}

// Params finds the annotated properties of a tool's input schema, in the order of the schema. An
// error means that the tool is invalid and that an HTTP client must drop it from its list: a name
// is no RFC 9110 token or is used twice (case aside), a type is other than integer, string and
// boolean, or the path from the root to an annotation has other keywords than "properties".
func Params(inputSchema []byte) ([]Param, error) {
	f := finder{seen: make(map[string]bool)}
	f.take = f.takeParam
	f.takeAnnotations(inputSchema, schemaAt, nil, true, 0)
	if f.err != nil {
		return nil, f.err
	}
	return f.params, nil
}

// mayAnnotate rules out most schemas at memory speed. A backslash may hide the keyword behind an
// escape.
func mayAnnotate(b []byte) bool {
	return bytes.Contains(b, []byte(annotation)) || bytes.IndexByte(b, '\\') >= 0
}

// finder finds the annotations of a schema.
type finder struct {
	walker
	params []Param
	seen   map[string]bool // header names in lower case
}

// walker walks a schema.
type walker struct {
	// take gets the value of an annotation and the schema that has it, and returns what takes its place; nil
	// drops it. reachable means that only "properties" lie between that schema and the root; path has their names.
	take func(schema, value []byte, path []string, reachable bool) []byte
	err  error // the first one
}

// place says what a value in a schema is.
type place uint8

const (
	schemaAt place = iota // a schema, or a list of them
	namesAt               // a map of names to schemas
)

var errDepth = errors.New("schema nests too deeply")

// takeAnnotations takes those of a value, and returns the value as it is then. A part that nests too deeply stays as
// it is.
func (w *walker) takeAnnotations(b []byte, at place, path []string, reachable bool, depth int) []byte {
	switch {
	case !mayAnnotate(b):
		return b
	case depth > maxDepth:
		w.err = cmp.Or(w.err, errDepth)
		return b
	case !jsonrpc.IsObject(b):
		return w.walkList(b, depth)
	}
	return jsonrpc.Edit(b, func(name string, value json.RawMessage) json.RawMessage {
		switch {
		case at == namesAt:
			return w.takeAnnotations(value, schemaAt, append(slices.Clone(path), name), reachable, depth+1)
		case name == annotation:
			return w.take(b, value, path, reachable)
		case name == "properties":
			return w.takeAnnotations(value, namesAt, path, reachable, depth+1)
		case isNameMap(name):
			return w.takeAnnotations(value, namesAt, nil, false, depth+1)
		case isData(name):
			return value
		}
		return w.takeAnnotations(value, schemaAt, nil, false, depth+1)
	})
}

// walkList is takeAnnotations for a list of schemas; any other value stays as it is.
func (w *walker) walkList(b []byte, depth int) []byte {
	out, changed := []byte{}, false
	for e := range jsonrpc.Elements(b) {
		s := w.takeAnnotations(e, schemaAt, nil, false, depth+1)
		changed = changed || len(s) != len(e)
		out = append(append(out, ','), s...)
	}
	if !changed {
		return b
	}
	out[0] = '['
	return append(out, ']')
}

// isNameMap reports keywords whose value maps names to schemas. So a property that is called
// x-mcp-header is told from an annotation.
func isNameMap(keyword string) bool {
	switch keyword {
	case "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
		return true
	}
	return false
}

// isData reports keywords whose value is data. A look-alike of an annotation in it does not count.
func isData(keyword string) bool {
	switch keyword {
	case "default", "const", "enum", "examples", "example":
		return true
	}
	return false
}

// takeParam checks one annotation, and records it.
func (f *finder) takeParam(schema, value []byte, path []string, reachable bool) []byte {
	header, ok := jsonrpc.GetString(value)
	typ, _ := jsonrpc.GetString(schema, "type")
	lower := strings.ToLower(header)
	var err error
	switch {
	case !ok || !httpguts.ValidHeaderFieldName(header):
		err = fmt.Errorf("%s %s is not a header name", annotation, value)
	case !reachable || len(path) == 0:
		err = fmt.Errorf("%s %q is not on a property that properties alone lead to", annotation, header)
	case f.seen[lower]:
		err = fmt.Errorf("%s %q is used twice", annotation, header)
	case typ != typeInteger && typ != typeString && typ != typeBoolean:
		err = fmt.Errorf("%s %q is not on an integer, string or boolean", annotation, header)
	}
	f.err = cmp.Or(f.err, err)
	f.seen[lower] = true
	f.params = append(f.params, Param{Header: header, Path: path, Type: typ})
	return value
}

// Argument returns the value of p in a tool's arguments, for [Value] and [Match]; nil if it is
// absent.
func (p Param) Argument(arguments []byte) json.RawMessage {
	arg, _ := jsonrpc.Get(arguments, p.Path...)
	return arg
}

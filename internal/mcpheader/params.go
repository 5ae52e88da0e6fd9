package mcpheader

import (
	"bytes"
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
	if !mayAnnotate(inputSchema) {
		return nil, nil
	}
	f := finder{seen: make(map[string]bool)}
	if err := f.schema(inputSchema, nil, true, 0); err != nil {
		return nil, err
	}
	return f.params, nil
}

// mayAnnotate rules out most schemas at memory speed. A backslash may hide the keyword behind an
// escape.
func mayAnnotate(b []byte) bool {
	return bytes.Contains(b, []byte(annotation)) || bytes.IndexByte(b, '\\') >= 0
}

// finder walks a schema.
type finder struct {
	params []Param
	seen   map[string]bool // header names in lower case
}

var errDepth = errors.New("schema nests too deeply")

// schema looks at one subschema. reachable means that only "properties" lie between it and the
// root; path has their names.
func (f *finder) schema(b []byte, path []string, reachable bool, depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	for name, value := range jsonrpc.Members(b) {
		var err error
		switch {
		case name == annotation:
			err = f.found(b, value, path, reachable)
		case name == "properties":
			err = f.properties(value, path, reachable, depth+1)
		case isNameMap(name):
			err = f.properties(value, nil, false, depth+1)
		case !isData(name):
			err = f.below(value, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// properties walks an object whose keys are names and whose values are schemas.
func (f *finder) properties(b []byte, path []string, reachable bool, depth int) error {
	for name, value := range jsonrpc.Members(b) {
		if err := f.schema(value, append(slices.Clone(path), name), reachable, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// below looks through everything under a keyword other than "properties": a schema, or a list of
// them.
func (f *finder) below(b []byte, depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	for e := range jsonrpc.Elements(b) {
		if err := f.below(e, depth+1); err != nil {
			return err
		}
	}
	return f.schema(b, nil, false, depth)
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

// found checks one annotation and records it.
func (f *finder) found(schema, value []byte, path []string, reachable bool) error {
	header, ok := jsonrpc.GetString(value)
	switch {
	case !ok || !httpguts.ValidHeaderFieldName(header):
		return fmt.Errorf("%s %s is not a header name", annotation, value)
	case !reachable || len(path) == 0:
		return fmt.Errorf("%s %q is not on a property that properties alone lead to", annotation, header)
	case f.seen[strings.ToLower(header)]:
		return fmt.Errorf("%s %q is used twice", annotation, header)
	}
	typ, _ := jsonrpc.GetString(schema, "type")
	if typ != typeInteger && typ != typeString && typ != typeBoolean {
		return fmt.Errorf("%s %q is not on an integer, string or boolean", annotation, header)
	}
	f.seen[strings.ToLower(header)] = true
	f.params = append(f.params, Param{Header: header, Path: slices.Clone(path), Type: typ})
	return nil
}

// Argument returns the value of p in a tool's arguments, for [Value] and [Match]; nil if it is
// absent.
func (p Param) Argument(arguments []byte) json.RawMessage {
	arg, _ := jsonrpc.Get(arguments, p.Path...)
	return arg
}

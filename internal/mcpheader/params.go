package mcpheader

import (
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"

	"taskgate/internal/jsonrpc"
)

// annotation is the schema keyword that asks for a header.
const annotation = "x-mcp-header"

// maxDepth is how deeply a schema that uses the annotation may nest, counted in keywords and
// properties.
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

// maxParams bounds the arguments that a tool mirrors: each call of it looks for all of them.
const maxParams = 64

// Params finds the annotated properties of a tool's input schema, in the order of the schema. An
// error means that the tool is invalid and that an HTTP client must drop it from its list: a name
// is no RFC 9110 token or is used twice (case aside), a type is other than integer, string and
// boolean, the path from the root to an annotation has other keywords than "properties", or there
// are more than 64.
func Params(inputSchema []byte) ([]Param, error) {
	w := walkSchema(inputSchema)
	var params []Param
	seen := make(map[string]bool) // header names in lower case
	for _, a := range w.found {
		if len(params) == maxParams {
			return nil, fmt.Errorf("%s is there more than %d times", annotation, maxParams)
		}
		header, err := a.check(seen)
		if err != nil {
			return nil, err
		}
		seen[strings.ToLower(header)] = true
		params = append(params, Param{Header: header, Path: a.path, Type: a.typ})
	}
	if w.err != nil {
		return nil, w.err
	}
	return params, nil
}

// check returns the header that an annotation names, if it is valid.
func (a found) check(seen map[string]bool) (header string, err error) {
	header, ok := jsonrpc.GetString(a.value)
	switch {
	case !ok || !httpguts.ValidHeaderFieldName(header):
		err = fmt.Errorf("%s %.100s is not a header name", annotation, a.value)
	case !a.reachable || len(a.path) == 0:
		err = fmt.Errorf("%s %.100q is not on a property that properties alone lead to", annotation, header)
	case seen[strings.ToLower(header)]:
		err = fmt.Errorf("%s %.100q is used twice", annotation, header)
	case a.typ != typeInteger && a.typ != typeString && a.typ != typeBoolean:
		err = fmt.Errorf("%s %.100q is not on an integer, string or boolean", annotation, header)
	}
	return header, err
}

// Arguments returns the value of each of params in a tool's arguments, for [Value] and [Match]; nil for an absent
// one. The arguments are read once.
func Arguments(params []Param, arguments []byte) []json.RawMessage {
	var wanted jsonrpc.Paths
	for i, p := range params {
		wanted.Add(i, p.Path...)
	}
	values := make([]json.RawMessage, len(params))
	wanted.Pick(arguments, values)
	return values
}

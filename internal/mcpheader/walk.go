package mcpheader

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"taskgate/internal/jsonrpc"
)

// mayAnnotate rules out most schemas at memory speed. A backslash may hide the keyword behind an
// escape.
func mayAnnotate(b []byte) bool {
	return bytes.Contains(b, []byte(annotation)) || bytes.IndexByte(b, '\\') >= 0
}

// found is an annotation.
type found struct {
	value     json.RawMessage
	typ       string   // of the schema that has it; "" for none
	path      []string // the names of properties that lead to it
	reachable bool     // only "properties" lie between that schema and the root
}

// walker walks a schema once, from front to back.
type walker struct {
	in    []byte
	d     *jsontext.Decoder
	path  []string
	found []found // the first ones
	cuts  []span  // what makes the schema one without annotations, in order
	err   error   // the first one

	broken bool // the text is no JSON from here on
}

// span is a half-open range of bytes.
type span struct{ from, to int }

// place says what a value in a schema is.
type place uint8

const (
	schemaAt place = iota // a schema, or a list of them
	namesAt               // a map of names to schemas
)

var errDepth = errors.New("schema nests too deeply")

// walkSchema finds the annotations of a schema. A part that nests too deeply is left out.
func walkSchema(schema []byte) *walker {
	w := &walker{in: schema}
	if mayAnnotate(schema) {
		// The schema has passed jsonrpc.ParseLenient.
		w.d = jsontext.NewDecoder(bytes.NewBuffer(schema), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		w.walkValue(schemaAt, true, 0)
	}
	return w
}

// walkValue walks the next value.
func (w *walker) walkValue(at place, reachable bool, depth int) {
	kind := w.d.PeekKind()
	switch {
	case depth > maxDepth:
		v, err := w.d.ReadValue()
		w.broken = w.broken || err != nil
		if w.err == nil && mayAnnotate(v) {
			w.err = errDepth
		}
	case kind == '{':
		w.walkObject(at, reachable, depth)
	case kind == '[':
		_, _ = w.d.ReadToken()
		for w.more(']') {
			w.walkValue(schemaAt, false, depth+1)
		}
	default:
		w.skipValue()
	}
}

// skipValue goes behind the next value.
func (w *walker) skipValue() { w.broken = w.broken || w.d.SkipValue() != nil }

// more reports whether there is another value before the closing bracket, and goes behind that otherwise.
func (w *walker) more(closing jsontext.Kind) bool {
	if w.broken {
		return false
	}
	switch w.d.PeekKind() {
	case closing:
		_, _ = w.d.ReadToken()
		return false
	case 0: // the text is broken
		w.broken = true
	}
	return !w.broken
}

func (w *walker) walkObject(at place, reachable bool, depth int) {
	_, _ = w.d.ReadToken()
	last, kept := w.offset(), false
	var mine []int // the annotations of this schema
	typ := ""
	for w.more('}') {
		quoted, err := w.d.ReadValue()
		if err != nil {
			return
		}
		from := w.offset() - len(quoted)
		name, _ := jsonrpc.String(json.RawMessage(quoted))
		if at == schemaAt && name == annotation {
			value, _ := w.d.ReadValue()
			if len(w.found) <= maxParams {
				mine = append(mine, len(w.found))
				w.found = append(w.found, found{value: slices.Clone(json.RawMessage(value)), path: slices.Clone(w.path), reachable: reachable})
			}
			w.cuts = append(w.cuts, span{last, w.offset()})
			last = w.offset()
			continue
		}
		if !kept && last < from && len(w.cuts) > 0 && w.cuts[len(w.cuts)-1].to == last {
			w.cuts = append(w.cuts, span{last, from}) // the comma before the first member that stays
		}
		kept = true
		if at == schemaAt && name == "type" {
			value, _ := w.d.ReadValue()
			typ, _ = jsonrpc.String(json.RawMessage(value))
		} else {
			w.walkMember(at, name, reachable, depth)
		}
		last = w.offset()
	}
	for _, i := range mine {
		w.found[i].typ = typ
	}
}

// walkMember walks the value of a member.
func (w *walker) walkMember(at place, name string, reachable bool, depth int) {
	switch {
	case at == namesAt:
		w.path = append(w.path, name)
		w.walkValue(schemaAt, reachable, depth+1)
		w.path = w.path[:len(w.path)-1]
	case name == "properties":
		w.walkValue(namesAt, reachable, depth+1)
	case isData(name):
		w.skipValue()
	case isNameMap(name):
		w.walkValue(namesAt, false, depth+1)
	default:
		w.walkValue(schemaAt, false, depth+1)
	}
}

// offset is the index behind what was read last.
func (w *walker) offset() int { return int(w.d.InputOffset()) }

// stripped is the schema without its annotations.
func (w *walker) stripped() []byte {
	if len(w.cuts) == 0 {
		return w.in
	}
	out, at := make([]byte, 0, len(w.in)), 0
	for _, c := range w.cuts {
		out, at = append(out, w.in[at:c.from]...), c.to
	}
	return append(out, w.in[at:]...)
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

package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"taskgate/internal/jsonrpc"
)

// Call is a call of one of a server's job tools.
type Call struct {
	Tool      string
	Arguments Template
}

// Params are those of the tools/call for one job.
func (c *Call) Params(m Mark) json.RawMessage {
	b := jsonrpc.AppendString([]byte(`{"name":`), c.Tool)
	return append(append(append(b, `,"arguments":`...), c.Arguments.fill(m)...), '}')
}

// Template is an object of arguments whose texts may hold {id} and {arguments.NAME}. The zero Template is the empty
// object.
type Template struct{ object json.RawMessage }

// placeholder finds {NAME} and {NAME.NAME}. Other braces are text.
var placeholder = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)\}`)

// The names of placeholders.
const (
	nameID        = "id"
	nameArguments = "arguments"
)

// ParseTemplate reads a JSON object. It fails if a placeholder names neither the id nor an argument.
func ParseTemplate(object json.RawMessage) (Template, error) {
	if len(object) == 0 {
		return Template{}, nil
	}
	doc, err := decode(object)
	if _, ok := doc.(map[string]any); err != nil || !ok {
		return Template{}, fmt.Errorf("arguments are names and values")
	}
	t := Template{object}
	var wrong error
	t.eachText(object, func(text string) {
		for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
			if path := strings.Split(m[1], "."); m[1] != nameID && (path[0] != nameArguments || len(path) < 2) && wrong == nil {
				wrong = fmt.Errorf("%s is unknown: {id} is the job, and {arguments.NAME} an argument of the first call", m[0])
			}
		}
	})
	return t, wrong
}

// Names lists the top-level names of the arguments.
func (t Template) Names() (names []string) {
	for name := range jsonrpc.Members(t.object) {
		names = append(names, name)
	}
	return names
}

// UsesID reports whether the template has {id}.
func (t Template) UsesID() (uses bool) {
	t.eachText(t.object, func(text string) { uses = uses || strings.Contains(text, "{"+nameID+"}") })
	return uses
}

// Repeats lists the paths of the arguments of the first call that the template repeats.
func (t Template) Repeats() (paths [][]string) {
	t.eachText(t.object, func(text string) {
		for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
			if path := strings.Split(m[1], "."); path[0] == nameArguments && len(path) > 1 {
				paths = append(paths, path[1:])
			}
		}
	})
	return paths
}

// eachText calls f for each text in a value.
func (t Template) eachText(value json.RawMessage, f func(string)) {
	if text, ok := jsonrpc.String(value); ok {
		f(text)
		return
	}
	for _, inner := range jsonrpc.Members(value) {
		t.eachText(inner, f)
	}
	for inner := range jsonrpc.Elements(value) {
		t.eachText(inner, f)
	}
}

// fill is the template with the values of a job.
func (t Template) fill(m Mark) json.RawMessage {
	if len(t.object) == 0 {
		return json.RawMessage(`{}`)
	}
	filled, _ := m.fill(bytes.TrimSpace(t.object))
	return filled
}

// fill puts the values of the job into the texts of a value. It reports false for a text that is only a placeholder of
// an argument that the first call left out: then the value is left out as well.
func (m Mark) fill(value json.RawMessage) (json.RawMessage, bool) {
	if text, ok := jsonrpc.String(value); ok {
		return m.fillText(text)
	}
	switch {
	case jsonrpc.IsObject(value):
		out := []byte{'{'}
		for name, inner := range jsonrpc.Members(value) {
			filled, ok := m.fill(inner)
			if !ok {
				continue
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(jsonrpc.AppendString(out, name), ':')
			out = append(out, filled...)
		}
		return append(out, '}'), true
	case jsonrpc.IsArray(value):
		var all []json.RawMessage
		for inner := range jsonrpc.Elements(value) {
			if filled, ok := m.fill(inner); ok {
				all = append(all, filled)
			}
		}
		return jsonrpc.Array(all), true
	}
	return slices.Clone(value), true
}

// fillText fills one text. A text that is only a placeholder becomes the value itself, which keeps its type.
func (m Mark) fillText(text string) (json.RawMessage, bool) {
	if at := placeholder.FindStringIndex(text); at != nil && at[0] == 0 && at[1] == len(text) {
		return m.value(text)
	}
	return jsonrpc.AppendString(nil, placeholder.ReplaceAllStringFunc(text, func(found string) string {
		value, ok := m.value(found)
		if !ok {
			return ""
		}
		if inner, isText := jsonrpc.String(value); isText {
			return inner
		}
		return string(value)
	})), true
}

// value is what a placeholder stands for.
func (m Mark) value(found string) (json.RawMessage, bool) {
	path := strings.Split(strings.Trim(found, "{}"), ".")
	if path[0] == nameID {
		return m.ID, true
	}
	return jsonrpc.Get(m.Arguments, path[1:]...)
}

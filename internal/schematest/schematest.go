// Package schematest checks messages against the official JSON Schemas of MCP, in
// tests. The schemas are data of the protocol and are kept as published.
package schematest

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

//go:embed schemas/*.json
var files embed.FS

// TasksExtension is the "version" of the schema of io.modelcontextprotocol/tasks.
const TasksExtension = "tasks-extension"

// Validate fails the test if a JSON text is not what a definition of a protocol
// version allows: Validate(t, "2026-07-28", "CallToolResult", text).
func Validate(t testing.TB, version, definition string, text []byte) {
	t.Helper()
	if err := Check(version, definition, text); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// Check is Validate for callers that want the error.
func Check(version, definition string, text []byte) error {
	schema, err := resolve(version, definition)
	if err != nil {
		return fmt.Errorf("schema %s %s: %w", version, definition, err)
	}
	var value any
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&value); err != nil {
		return fmt.Errorf("not a %s: %w", definition, err)
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("not a %s of %s: %w", definition, version, err)
	}
	return nil
}

// Has reports whether a version defines something of this name.
func Has(version, definition string) bool {
	doc, key, err := load(version)
	if err != nil {
		return false
	}
	var defs map[string]json.RawMessage
	return json.Unmarshal(doc[key], &defs) == nil && defs[definition] != nil
}

var resolved sync.Map // "version definition" → *jsonschema.Resolved

// resolve makes the schema of one definition: the document, referring to it from
// its root.
func resolve(version, definition string) (*jsonschema.Resolved, error) {
	name := version + " " + definition
	if s, ok := resolved.Load(name); ok {
		return s.(*jsonschema.Resolved), nil
	}
	doc, key, err := load(version)
	if err != nil {
		return nil, err
	}
	if !Has(version, definition) {
		return nil, fmt.Errorf("no such definition")
	}
	doc["$ref"], _ = json.Marshal("#/" + key + "/" + definition) // a string: cannot fail
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, err
	}
	s, err := schema.Resolve(nil)
	if err != nil {
		return nil, err
	}
	resolved.Store(name, s)
	return s, nil
}

// load reads a document and says under which key it keeps its definitions: those
// of 2025-11-25 and later are of JSON Schema 2020-12, the older ones of draft-07.
func load(version string) (doc map[string]json.RawMessage, key string, err error) {
	text, err := files.ReadFile("schemas/" + version + ".json")
	if err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, "", err
	}
	if doc["$defs"] != nil {
		return doc, "$defs", nil
	}
	return doc, "definitions", nil
}

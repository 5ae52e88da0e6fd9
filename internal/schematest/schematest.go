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
	s, err := loadSchema(version)
	if err != nil {
		return fmt.Errorf("schema %s: %w", version, err)
	}
	if !s.defines(definition) {
		return fmt.Errorf("schema %s %s: no such definition", version, definition)
	}
	var value any
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&value); err != nil {
		return fmt.Errorf("not a %s: %w", definition, err)
	}
	if err := s.resolved.Validate(map[string]any{definition: value}); err != nil {
		return fmt.Errorf("not a %s of %s: %w", definition, version, err)
	}
	return nil
}

// Has reports whether a version defines something of this name.
func Has(version, definition string) bool {
	s, err := loadSchema(version)
	return err == nil && s.defines(definition)
}

// schema is the document of one version. It is resolved once, since that takes long: as the schema of an
// object that has, under the name of a definition, what this defines.
type schema struct {
	definitions map[string]*jsonschema.Schema
	resolved    *jsonschema.Resolved
}

func (s *schema) defines(definition string) bool { return s.definitions[definition] != nil }

var loaded sync.Map // version → func() (*schema, error)

// loadSchema reads the document of a version, once.
func loadSchema(version string) (*schema, error) {
	once, _ := loaded.LoadOrStore(version, sync.OnceValues(func() (*schema, error) { return readSchema(version) }))
	return once.(func() (*schema, error))()
}

// readSchema reads a document. Those of 2025-11-25 and later are of JSON Schema 2020-12, the older ones of draft-07,
// which keeps definitions under another key.
func readSchema(version string) (*schema, error) {
	text, err := files.ReadFile("schemas/" + version + ".json")
	if err != nil {
		return nil, err
	}
	var doc jsonschema.Schema
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	s, key := &schema{definitions: doc.Defs}, "$defs"
	if s.definitions == nil {
		s.definitions, key = doc.Definitions, "definitions"
	}
	doc.Properties = make(map[string]*jsonschema.Schema)
	for name := range s.definitions {
		doc.Properties[name] = &jsonschema.Schema{Ref: "#/" + key + "/" + name}
	}
	s.resolved, err = doc.Resolve(nil)
	return s, err
}

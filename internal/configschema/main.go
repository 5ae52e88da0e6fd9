// Command configschema writes the JSON Schema of the configuration file, from
// the structs of package config: their tags, their default values and, as
// descriptions, their doc comments. It takes no arguments; "go generate
// ./gateway/config" runs it.
//
// The schema is written twice, with the same bytes: as config.schema.json at
// the top of the repository, where editors look for it, and as
// gateway/config/schema.json, where it can be embedded into the program. It is
// also put into the schema of the chart's values, which is written by hand but for
// the key "config". And it completes the tables of docs/configuration.md.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// root is the top of the repository, as seen from gateway/config.
const root = "../.."

// valuesSchema is the schema of the chart's values.
const valuesSchema = root + "/deploy/chart/values.schema.json"

func main() {
	files, err := generate()
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(name, text, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "configschema:", err)
		os.Exit(1)
	}
}

// generate returns what is written, by the names of the files.
func generate() (map[string][]byte, error) {
	docs, err := readDocs(root + "/gateway/config")
	if err != nil {
		return nil, err
	}
	schema, err := configSchema(docs)
	if err != nil {
		return nil, err
	}
	text, err := encode(schema)
	if err != nil {
		return nil, err
	}
	values, err := putIntoValues(text)
	if err != nil {
		return nil, err
	}
	page, err := completePage(schema)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{root + "/config.schema.json": text, root + "/gateway/config/schema.json": text, valuesSchema: values, pageName: page}, nil
}

// putIntoValues returns the schema of the chart's values with this one for its key "config".
func putIntoValues(config []byte) ([]byte, error) {
	text, err := os.ReadFile(valuesSchema)
	if err != nil {
		return nil, err
	}
	var values struct {
		Schema     json.RawMessage            `json:"$schema"`
		Title      json.RawMessage            `json:"title"`
		Type       json.RawMessage            `json:"type"`
		Additional json.RawMessage            `json:"additionalProperties"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&values); err != nil {
		return nil, fmt.Errorf("%s: %w", valuesSchema, err)
	}
	values.Properties["config"] = config
	return encode(values)
}

// encode returns a schema as it is written to a file.
func encode(schema any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

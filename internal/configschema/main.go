// Command configschema writes the JSON Schema of the configuration file, from
// the structs of package config: their tags, their default values and, as
// descriptions, their doc comments. It takes no arguments; "go generate
// ./gateway/config" runs it.
//
// The schema is written twice, with the same bytes: as config.schema.json at
// the top of the repository, where editors look for it, and as
// gateway/config/schema.json, where it can be embedded into the program.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// root is the top of the repository, as seen from gateway/config.
const root = "../.."

// outputs are the files written.
var outputs = []string{root + "/config.schema.json", root + "/gateway/config/schema.json"}

func main() {
	schema, err := generate()
	for _, name := range outputs {
		if err == nil {
			err = os.WriteFile(name, schema, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "configschema:", err)
		os.Exit(1)
	}
}

// generate returns the schema as it is written to the files.
func generate() ([]byte, error) {
	docs, err := readDocs(root + "/gateway/config")
	if err != nil {
		return nil, err
	}
	schema, err := configSchema(docs)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

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
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// outputs are the files written, relative to the module's root.
var outputs = []string{"config.schema.json", "gateway/config/schema.json"}

// sourceDir holds the structs, relative to the module's root.
const sourceDir = "gateway/config"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "configschema:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	schema, err := generate(root)
	if err != nil {
		return err
	}
	for _, name := range outputs {
		if err := os.WriteFile(filepath.Join(root, name), schema, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// moduleRoot is the nearest directory upwards with a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = up
	}
}

// generate returns the schema as it is written to the files.
func generate(root string) ([]byte, error) {
	docs, err := readDocs(filepath.Join(root, sourceDir))
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

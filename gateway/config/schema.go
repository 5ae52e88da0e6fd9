package config

import (
	_ "embed"
	"slices"
)

// schema is written by go generate; config.schema.json at the top of the
// repository has the same bytes.
//
//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (2020-12) of the configuration file, for editors. It describes
// each file that loads, though not every mistake: [Load] checks rules over several keys and the
// environment.
func Schema() []byte { return slices.Clone(schema) }

package config

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

// resolveAlias follows aliases to their node.
func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// isNull reports whether a value was left empty.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// describeNode says what a node is, for "found …".
func describeNode(n *yaml.Node) string {
	switch n = resolveAlias(n); {
	case n.Kind == yaml.MappingNode:
		return "keys"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	}
	return "a single value"
}

// isScalar reports whether values of the type are written as one scalar.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Int, reflect.Int64:
		return true
	}
	return false
}

// key is one key that a struct takes.
type key struct {
	name  string
	index []int
	tag   reflect.StructTag
}

// keysOf lists the keys of a struct, those of inlined structs included.
func keysOf(t reflect.Type) []key {
	var keys []key
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" {
			continue // no file sets it
		}
		if options != "inline" {
			keys = append(keys, key{name, f.Index, f.Tag})
			continue
		}
		for _, k := range keysOf(f.Type) {
			k.index = append([]int{i}, k.index...)
			keys = append(keys, k)
		}
	}
	return keys
}

// joinKey appends a key to a path.
func joinKey(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The configuration stays small: a new key takes the place of one that fewer people change.
func TestKeysAreFew(t *testing.T) {
	const most = 130
	paths := slices.DeleteFunc(pathsOf("", reflect.TypeFor[Config]()), func(path string) bool {
		return strings.HasPrefix(path, "admin_auth.") || strings.HasPrefix(path, "limits.") || strings.HasPrefix(path, "upstreams.tools.job.") || strings.HasPrefix(path, "upstreams.tools.match.") // those of auth, numbers that hardly anybody needs, and what is said of one tool
	})
	if len(paths) > most {
		t.Errorf("there are %d keys, and at most %d are allowed: %q", len(paths), most, paths)
	}
}

// pathsOf returns the path of each key of a type, and of what is below it.
func pathsOf(at string, t reflect.Type) (paths []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for _, k := range keysOf(t) {
		path := joinKey(at, k.name)
		paths = append(append(paths, path), pathsOf(path, t.FieldByIndex(k.index).Type)...)
	}
	return paths
}

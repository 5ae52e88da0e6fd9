package config

import (
	"reflect"
	"strings"
	"testing"
)

// No removed key is one that there is, and each is of a type that there is.
func TestRemovedAreGone(t *testing.T) {
	types := map[string]reflect.Type{}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[Config](), reflect.TypeFor[Upstream](), reflect.TypeFor[Tool](), reflect.TypeFor[Auth](), reflect.TypeFor[UpstreamAuth](), reflect.TypeFor[JWT](), reflect.TypeFor[Passthrough](),
		reflect.TypeFor[TrustedHeader](), reflect.TypeFor[Introspection](), reflect.TypeFor[ClientTLS](),
	} {
		types[typ.Name()] = typ
	}
	for path := range removed {
		name, gone, _ := strings.Cut(path, ".")
		if types[name] == nil {
			t.Errorf("%s: there is no %s", path, name)
			continue
		}
		for _, k := range keysOf(types[name]) {
			if k.name == gone {
				t.Errorf("%s is a key", path)
			}
		}
	}
}

package jsonrpc

import (
	"encoding/json"
	"errors"
	"slices"
)

var (
	errObject = errors.New("jsonrpc: not an object")
	errValue  = errors.New("jsonrpc: no member named, or no value")
)

// Set returns a copy of obj in which the member at path has the given JSON value. An existing
// member is replaced where it stands; a new one is added after the last member; objects on the way
// that are absent, or null, are made. All other bytes stay as they are. Of duplicate names the last
// is replaced (see [Get]).
//
// It fails if path is empty, value is empty, or obj or something on the way is not an object. It
// leaves the rest of obj and value unchecked, and obj unmodified.
func Set(obj, value []byte, path ...string) ([]byte, error) {
	if len(path) == 0 || len(value) == 0 {
		return nil, errValue
	}
	m, c, ok := findMember(obj, path[0])
	if !ok {
		return nil, errObject
	}
	if len(path) > 1 {
		inner := obj[m.value.from:m.value.to]
		if len(inner) == 0 || string(inner) == "null" {
			inner = []byte("{}")
		}
		var err error
		if value, err = Set(inner, value, path[1:]...); err != nil {
			return nil, err
		}
	}
	if m.value.to > 0 {
		return slices.Concat(obj[:m.value.from], value, obj[m.value.to:]), nil
	}
	name := make([]byte, 0, len(path[0])+4)
	if !c.empty {
		name = append(name, ',')
	}
	name = append(AppendString(name, path[0]), ':')
	return slices.Concat(obj[:c.last], name, value, obj[c.last:]), nil
}

// Without returns obj without the member at path and its comma; duplicates of the name, which it hid, go
// as well. If there is no such member, it returns obj itself.
func Without(obj json.RawMessage, path ...string) json.RawMessage {
	if _, ok := Get(obj, path...); !ok || len(path) == 0 {
		return obj
	}
	return Edit(obj, func(name string, value json.RawMessage) json.RawMessage {
		switch {
		case name != path[0]:
			return value
		case len(path) == 1:
			return nil
		}
		return Without(value, path[1:]...)
	})
}

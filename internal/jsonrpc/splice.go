package jsonrpc

import (
	"encoding/json"
	"errors"
	"slices"
)

var (
	errPath   = errors.New("jsonrpc: no member named")
	errObject = errors.New("jsonrpc: not an object")
	errValue  = errors.New("jsonrpc: no value")
)

// Set returns a copy of obj in which the member at path has the given JSON value. An existing
// member is replaced where it stands; a new one is added after the last member; objects on the way
// that are absent, or null, are made. All other bytes stay as they are. Of duplicate names the last
// is replaced (see [Get]).
//
// It fails if path is empty, value is empty, or obj or something on the way is not an object. It
// leaves the rest of obj and value unchecked, and obj unmodified. It takes one walk over obj per
// path element and one copy.
func Set(obj, value []byte, path ...string) ([]byte, error) {
	if len(path) == 0 {
		return nil, errPath
	}
	if len(value) == 0 {
		return nil, errValue
	}
	at := span{0, len(obj)}
	for i, name := range path {
		m, c, ok := findMember(obj[at.from:at.to], name)
		if !ok {
			return nil, errObject
		}
		if m.value.to == 0 {
			return insertMember(obj, at.from+c.last, c.empty, value, path[i:]), nil
		}
		at = span{at.from + m.value.from, at.from + m.value.to}
		if i < len(path)-1 && string(obj[at.from:at.to]) == "null" {
			return replaceSpan(obj, at, appendNested(nil, value, path[i+1:])), nil
		}
	}
	return replaceSpan(obj, at, value), nil
}

// Delete returns a copy of obj without the member at path and its comma. If the member, or an
// object on the way, is absent, Delete succeeds. Duplicates of the name, which it hid, go as well.
//
// It fails if path is empty, or obj is not an object. See [Set] for the rest.
func Delete(obj []byte, path ...string) ([]byte, error) {
	if len(path) == 0 {
		return nil, errPath
	}
	at := span{0, len(obj)}
	for i, name := range path[:len(path)-1] {
		m, _, ok := findMember(obj[at.from:at.to], name)
		if !ok && i == 0 {
			return nil, errObject
		}
		if !ok || m.value.to == 0 {
			return slices.Clone(obj), nil
		}
		at = span{at.from + m.value.from, at.from + m.value.to}
	}
	var room [8][]byte
	out, ok := without(append(room[:0], obj[:at.from]), obj[at.from:at.to], path[len(path)-1])
	switch {
	case ok:
		return append(out, obj[at.to:]).Text(), nil
	case len(path) == 1:
		return nil, errObject
	}
	return slices.Clone(obj), nil
}

// without appends obj except for the members called name.
func without(out Spliced, obj []byte, name string) (Spliced, bool) {
	out, _, ok := edit(out, obj, func(quoted []byte, value json.RawMessage) json.RawMessage {
		if isName(quoted, name) {
			return nil
		}
		return value
	}, nil)
	return out, ok
}

// insertMember adds a member, with the objects that path asks for, at index i.
func insertMember(obj []byte, i int, first bool, value []byte, path []string) []byte {
	var text []byte
	if !first {
		text = append(text, ',')
	}
	text = AppendString(text, path[0])
	text = append(text, ':')
	text = appendNested(text, value, path[1:])
	return replaceSpan(obj, span{i, i}, text)
}

// appendNested appends value wrapped into one object per path element.
func appendNested(dst, value []byte, path []string) []byte {
	for _, name := range path {
		dst = AppendString(append(dst, '{'), name)
		dst = append(dst, ':')
	}
	dst = append(dst, value...)
	for range path {
		dst = append(dst, '}')
	}
	return dst
}

func replaceSpan(obj []byte, at span, with []byte) []byte {
	out := make([]byte, 0, at.from+len(with)+len(obj)-at.to)
	out = append(out, obj[:at.from]...)
	out = append(out, with...)
	return append(out, obj[at.to:]...)
}

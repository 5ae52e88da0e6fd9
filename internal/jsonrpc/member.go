package jsonrpc

import "encoding/json"

// With, WithDefault and WithoutEmpty edit a peer's message. A text that is not an object
// stays as it is.

// With returns obj with a member at path.
func With(obj, value json.RawMessage, path ...string) json.RawMessage {
	if out, err := Set(obj, value, path...); err == nil {
		return out
	}
	return obj
}

// WithDefault returns obj with a member at path, which it adds only if there is none.
func WithDefault(obj, value json.RawMessage, path ...string) json.RawMessage {
	if _, ok := Get(obj, path...); ok {
		return obj
	}
	return With(obj, value, path...)
}

// WithoutEmpty removes a member whose value is an empty object: the rest of an object that was
// emptied.
func WithoutEmpty(obj []byte, name string) []byte {
	value, ok := Get(obj, name)
	if !ok || !IsObject(value) {
		return obj
	}
	for range Members(value) {
		return obj
	}
	return Without(obj, name)
}

// IsArray reports whether a value is an array.
func IsArray(v json.RawMessage) bool { return len(v) > 0 && v[0] == '[' }

// AppendStrings appends a JSON array of strings.
func AppendStrings[S ~string](b []byte, list []S) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(b, string(s))
	}
	return append(b, ']')
}

// Array makes a JSON array of values.
func Array(values []json.RawMessage) json.RawMessage {
	size := 2 + len(values)
	for _, v := range values {
		size += len(v)
	}
	b := append(make([]byte, 0, size), '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

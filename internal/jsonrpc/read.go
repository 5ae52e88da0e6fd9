package jsonrpc

import (
	"bytes"
	"encoding/json"
	"iter"
)

// IsObject reports whether b looks like a JSON object: its first byte other than a blank is '{'. It
// leaves the rest unread.
func IsObject(b []byte) bool {
	i := skipSpace(b, 0)
	return i < len(b) && b[i] == '{'
}

// Get returns the value at path, a list of member names of nested objects. It reports false if a
// member is absent or its parent is not an object. An empty path gives obj itself, trimmed of
// blanks.
//
// Of duplicate names the last one counts, as in every reader a client is likely to use. [Parse]
// refuses duplicates, so the choice matters only inside the payload of a server.
//
// The value aliases obj. The text must have passed [Parse] or [ParseLenient]: Get only looks for
// brackets and quotes.
func Get(obj []byte, path ...string) (json.RawMessage, bool) {
	value := bytes.Trim(obj, " \t\r\n")
	for _, name := range path {
		m, _, ok := findMember(value, name)
		if !ok || m.value.to == 0 {
			return nil, false
		}
		value = value[m.value.from:m.value.to:m.value.to]
	}
	return value, true
}

// GetString is [Get] for a string, decoded. It reports false for any other value.
func GetString(obj []byte, path ...string) (string, bool) {
	v, _ := Get(obj, path...)
	return String(v)
}

// Pick is [Get] for several members of one object in a single pass: values[i] is set to the member
// called names[i], or to nil if it is absent. All are nil if obj is not an object. The names
// differ, and there are as many values.
func Pick(obj []byte, names []string, values []json.RawMessage) {
	clear(values)
	c := newCursor(obj, '{')
	for m, ok := c.member(); ok; m, ok = c.member() {
		pickMember(obj, m, names, values)
	}
	if !c.complete() {
		clear(values)
	}
}

// pickMember sets the value of a member whose name is among names.
func pickMember(b []byte, m member, names []string, values []json.RawMessage) {
	for i := range names {
		if isName(b[m.name.from:m.name.to], names[i]) {
			values[i] = b[m.value.from:m.value.to:m.value.to]
			return
		}
	}
}

// String returns the decoded text of a value that [Get] or [Pick] found. It reports false for any
// other value than a string, and for nil.
func String(value json.RawMessage) (string, bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	return unquote(value), true
}

// Members goes through the members of an object in order, names decoded and values aliasing obj.
// For other values it yields nothing, and it stops where the text is broken. See [Get] for what obj
// must be.
func Members(obj []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		c := newCursor(obj, '{')
		for m, ok := c.member(); ok; m, ok = c.member() {
			if !yield(unquote(obj[m.name.from:m.name.to]), obj[m.value.from:m.value.to:m.value.to]) {
				return
			}
		}
	}
}

// Elements goes through the elements of an array in order; they alias arr. For other values it
// yields nothing, and it stops where the text is broken. See [Get] for what arr must be.
func Elements(arr []byte) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		c := newCursor(arr, '[')
		for s, ok := c.element(); ok; s, ok = c.element() {
			if !yield(arr[s.from:s.to:s.to]) {
				return
			}
		}
	}
}

// Strings returns the texts of an array of strings. It reports false for any other value.
func Strings(arr json.RawMessage) (texts []string, ok bool) {
	ok = IsArray(arr)
	for v := range Elements(arr) {
		text, is := String(v)
		texts, ok = append(texts, text), ok && is
	}
	return texts, ok
}

// findMember looks for the last member called name, through the whole object; m is zero if there is
// none. It reports false if obj is not an object as far as brackets tell.
func findMember(obj []byte, name string) (m member, c cursor, ok bool) {
	c = newCursor(obj, '{')
	for next, more := c.member(); more; next, more = c.member() {
		if isName(obj[next.name.from:next.name.to], name) {
			m = next
		}
	}
	return m, c, c.complete()
}

// isName reports whether the quoted raw is name.
func isName(raw []byte, name string) bool {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1:len(raw)-1]) == name
	}
	return unquote(raw) == name
}

package jsonrpc

import (
	"bytes"
	"encoding/json"
)

// Edit returns obj with each member's value replaced by what f returns for it;
// nil drops the member. Names are decoded and values alias obj, as in [Members].
// All other bytes stay as they are, and if f changes nothing, obj itself is
// returned, as is what is no object. It is one walk and at most one copy, however
// many members change.
func Edit(obj []byte, f func(name string, value json.RawMessage) json.RawMessage) []byte {
	out, changed, ok := edit(nil, obj, func(name []byte, value json.RawMessage) json.RawMessage {
		return f(unquote(name), value)
	})
	if !ok || !changed {
		return obj
	}
	return out
}

// edit appends obj after f has decided about each member; the name that f gets is
// the quoted text. A member that is dropped goes with the comma before it, or, if
// nothing before it remains, the one after it. It reports whether anything changed,
// and whether obj is an object as far as brackets tell; if not, what it appended is
// of no use.
func edit(out, obj []byte, f func(name []byte, value json.RawMessage) json.RawMessage) (_ []byte, changed, ok bool) {
	c, ok := newCursor(obj, '{')
	if !ok {
		return nil, false, false
	}
	copied, kept := 0, false
	for {
		before := c.last
		m, more := c.member()
		if !more {
			break
		}
		old := obj[m.value.from:m.value.to:m.value.to]
		value := f(obj[m.name.from:m.name.to], old)
		if value == nil {
			out = append(out, obj[copied:max(before, copied)]...)
			copied = m.value.to
			continue
		}
		if !kept && copied > 0 {
			copied = m.name.from // nothing kept stands before this one: its comma goes
		}
		kept = true
		if !bytes.Equal(value, old) {
			out = append(append(out, obj[copied:m.value.from]...), value...)
			copied = m.value.to
		}
	}
	return append(out, obj[copied:]...), copied > 0, c.complete()
}

// Extend returns a copy of obj with members, a text like "a":1,"b":2, after its
// last one. That obj has none of them already is for the caller to know; unlike
// [Set], it does not look through obj, but only at its end. What is no object, or
// no members at all, is returned as it is.
func Extend(obj, members []byte) []byte {
	end := bytes.LastIndexByte(obj, '}')
	if end < 0 || len(members) == 0 || !IsObject(obj) {
		return obj
	}
	at := len(bytes.TrimRight(obj[:end], " \t\r\n"))
	out := append(make([]byte, 0, len(obj)+len(members)+1), obj[:at]...)
	if obj[at-1] != '{' {
		out = append(out, ',')
	}
	return append(append(out, members...), obj[at:]...)
}

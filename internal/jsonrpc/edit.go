package jsonrpc

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// Readable returns a peer's text as valid UTF-8. Invalid bytes become U+FFFD, as in readers of an
// event stream (HTML 9.2.6): a client would refuse the whole message for one byte. A byte order mark at
// the begin is cut off (RFC 8259 8.1): programs of .NET and files of PHP write one.
func Readable(b []byte) []byte {
	b = bytes.TrimPrefix(b, []byte("\uFEFF"))
	if utf8.Valid(b) {
		return b
	}
	return bytes.ToValidUTF8(b, []byte("\uFFFD"))
}

// Edit is [Splice] without new members, in one piece. If f changes nothing, or obj is not an object, Edit returns
// obj itself. It takes one walk and at most one copy, however many members change.
func Edit(obj []byte, f func(name string, value json.RawMessage) json.RawMessage) []byte {
	return Splice(obj, f, nil).Text()
}

// Splice returns obj with each member's value replaced by the result of f; nil drops the member, with the comma
// before it, or, if no earlier member remains, the one after it. Names are decoded and values alias obj, as in
// [Members]. The result of more, members as text like "a":1,"b":2, comes after the last member; more may be nil. It
// is called at the end, and must return only names that obj lacks. All other bytes stay as they are. If obj is not
// an object, Splice returns it as it is. It takes one walk and copies nothing.
func Splice(obj []byte, f func(name string, value json.RawMessage) json.RawMessage, more func() []byte) Spliced {
	out := make(Spliced, 0, 8)
	copied, kept := 0, false
	c := newCursor(obj, '{')
	for before := c.last; ; before = c.last {
		m, ok := c.member()
		if !ok {
			break
		}
		old := obj[m.value.from:m.value.to:m.value.to]
		value := f(unquote(obj[m.name.from:m.name.to]), old)
		if value == nil {
			out = append(out, obj[copied:max(before, copied)])
			copied = m.value.to
			continue
		}
		if !kept && copied > 0 {
			copied = m.name.from // this is the first kept member, so the comma before it goes
		}
		kept = true
		if !bytes.Equal(value, old) {
			out = append(out, obj[copied:m.value.from], value)
			copied = m.value.to
		}
	}
	if !c.complete() {
		return Spliced{obj}
	}
	if more != nil {
		if members := more(); len(members) > 0 {
			out = append(out, obj[copied:c.last])
			if kept {
				out = append(out, comma)
			}
			out = append(out, members)
			copied = c.last
		}
	}
	return append(out, obj[copied:])
}

// OneLine replaces the line breaks in a JSON text by blanks, in place. A line break can only be
// white space between the parts of the text.
func OneLine(text []byte) {
	for i, b := range text {
		if b == '\n' || b == '\r' {
			text[i] = ' '
		}
	}
}

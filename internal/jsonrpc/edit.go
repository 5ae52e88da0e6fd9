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

// Edit returns obj with each member's value replaced by the result of f; nil drops the member.
// Names are decoded and values alias obj, as in [Members]. All other bytes stay as they are. If f
// changes nothing, or obj is not an object, Edit returns obj itself. It takes one walk and at most
// one copy, however many members change.
func Edit(obj []byte, f func(name string, value json.RawMessage) json.RawMessage) []byte {
	var room [8][]byte
	out, changed, ok := edit(room[:0], obj, decoded(f), nil)
	if !ok || !changed {
		return obj
	}
	return out.Text()
}

// edit appends the pieces of obj after f has decided about each member; the name that f gets is the
// quoted text. A dropped member goes with the comma before it, or, if no earlier member remains,
// the one after it. The result of more, which may be nil, comes after the last member. edit reports
// whether anything changed, and whether obj is an object as far as brackets tell; if ok is false,
// the appended pieces are useless.
func edit(out Spliced, obj []byte, f func(name []byte, value json.RawMessage) json.RawMessage, more func() []byte) (_ Spliced, changed, ok bool) {
	c, ok := newCursor(obj, '{')
	if !ok {
		return nil, false, false
	}
	copied, kept := 0, false
	for {
		before := c.last
		m, further := c.member()
		if !further {
			break
		}
		old := obj[m.value.from:m.value.to:m.value.to]
		value := f(obj[m.name.from:m.name.to], old)
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
	changed = copied > 0
	if more != nil {
		if members := more(); len(members) > 0 {
			out = append(out, obj[copied:c.last])
			if kept {
				out = append(out, comma)
			}
			out = append(out, members)
			copied, changed = c.last, true
		}
	}
	return append(out, obj[copied:]), changed, c.complete()
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

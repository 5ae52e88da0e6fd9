package jsonrpc

import "bytes"

// The scanner below only finds where values end: its input has been validated by a parser. On other input it
// stops where the structure stops making sense; it never panics.

// skipSpace returns the index of the first byte at or after i that is not JSON white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the string that begins at i, or -1.
func skipString(b []byte, i int) int {
	for from := i + 1; ; {
		n := bytes.IndexByte(b[from:], '"')
		if n < 0 {
			return -1
		}
		end := from + n
		k := end
		for k > from && b[k-1] == '\\' {
			k--
		}
		if (end-k)%2 == 0 {
			return end + 1 // an even run of backslashes escapes itself and leaves the quote
		}
		from = end + 1
	}
}

// skipValue returns the index after the value that begins at i, or -1.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipNested(b, i)
	}
	return skipScalar(b, i)
}

// structural marks the bytes that matter to skipNested.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

func skipNested(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		if !structural[b[i]] {
			continue
		}
		switch b[i] {
		case '"':
			if i = skipString(b, i) - 1; i < 0 {
				return -1
			}
		case '{', '[':
			depth++
		default:
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

func skipScalar(b []byte, i int) int {
	start := i
	for i < len(b) {
		switch b[i] {
		case ',', ']', '}', '[', '{', ':', '"', ' ', '\n', '\t', '\r':
			if i == start {
				return -1
			}
			return i
		}
		i++
	}
	return i
}

// span is a half-open range of bytes.
type span struct{ from, to int }

// member is one member of an object: where its quoted name and its value are.
type member struct{ name, value span }

// cursor goes through the members of an object or the elements of an array.
type cursor struct {
	b     []byte
	at    int  // next byte to read
	last  int  // after the last value, or after the opening bracket
	empty bool // the cursor is at the opening bracket
	ended bool // the closing bracket, at index at-1, was reached
}

// newCursor enters the object or array that b holds. In any other value the cursor finds nothing.
func newCursor(b []byte, bracket byte) cursor {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != bracket {
		return cursor{}
	}
	return cursor{b: b, at: i + 1, last: i + 1, empty: true}
}

// more goes to the next item and reports whether there is one before close.
func (c *cursor) more(close byte) bool {
	i := skipSpace(c.b, c.at)
	switch {
	case i >= len(c.b):
		return false
	case c.b[i] == close:
		c.at, c.ended = i+1, true
		return false
	case !c.empty && c.b[i] != ',':
		return false
	case !c.empty:
		i = skipSpace(c.b, i+1)
	}
	c.at, c.empty = i, false
	return true
}

// member returns the next member of an object.
func (c *cursor) member() (m member, ok bool) {
	if !c.more('}') || c.at >= len(c.b) || c.b[c.at] != '"' {
		return member{}, false
	}
	nameEnd := skipString(c.b, c.at)
	if nameEnd < 0 {
		return member{}, false
	}
	i := skipSpace(c.b, nameEnd)
	if i >= len(c.b) || c.b[i] != ':' {
		return member{}, false
	}
	i = skipSpace(c.b, i+1)
	end := skipValue(c.b, i)
	if end < 0 {
		return member{}, false
	}
	m = member{name: span{c.at, nameEnd}, value: span{i, end}}
	c.at, c.last = end, end
	return m, true
}

// element returns the next element of an array.
func (c *cursor) element() (s span, ok bool) {
	if !c.more(']') {
		return span{}, false
	}
	end := skipValue(c.b, c.at)
	if end < 0 {
		return span{}, false
	}
	s = span{c.at, end}
	c.at, c.last = end, end
	return s, true
}

// complete reports whether the closing bracket was reached and only blanks follow it.
func (c *cursor) complete() bool { return c.ended && skipSpace(c.b, c.at) == len(c.b) }

package jsonrpc

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// The walker reads one JSON text from front to back, and checks each byte of it after RFC 8259. A check
// begins at an index and returns the index behind what it has read, or -1 at a fault, whose reason it notes.
// Most of the gateway's work on a large result is this check: jsontext needs 1.6 times as long for it
// (BenchmarkPasses). FuzzCheck compares the two.

// The reasons for which a text is refused. They leave out the input, because it may be secret.
const (
	reasonSyntax    = "not valid JSON"
	reasonEnd       = "JSON text ends early"
	reasonUTF8      = "not valid UTF-8"
	reasonDuplicate = "duplicate member name"
	reasonDeep      = "nested too deeply"
	reasonMore      = "something follows the JSON value"
)

// failAt notes that the text is broken at i.
func (w *walker) failAt(i int) int {
	if i >= len(w.in) {
		return w.failWith(reasonEnd)
	}
	return w.failWith(reasonSyntax)
}

func (w *walker) failWith(reason string) int {
	w.reason = reason
	return -1
}

// checkValue checks the value that begins at i.
func (w *walker) checkValue(i int) int {
	if i >= len(w.in) {
		return w.failAt(i)
	}
	switch w.in[i] {
	case '"':
		return w.checkString(i)
	case '{':
		return w.checkObject(i)
	case '[':
		return w.checkArray(i)
	case 't':
		return w.checkLiteral(i, "true")
	case 'f':
		return w.checkLiteral(i, "false")
	case 'n':
		return w.checkLiteral(i, "null")
	}
	return w.checkNumber(i)
}

// enterNested goes behind an opening bracket, and the blanks there.
func (w *walker) enterNested(i int) int {
	if w.depth++; w.depth > maxDepth && (w.strict || w.depth > maxLenientDepth) {
		return w.failWith(reasonDeep)
	}
	return skipSpace(w.in, i+1)
}

func (w *walker) checkArray(i int) int {
	if i = w.enterNested(i); w.hasByte(i, ']') {
		w.depth--
		return i + 1
	}
	for i >= 0 {
		if i = w.checkValue(i); i < 0 {
			break
		}
		switch i = skipSpace(w.in, i); {
		case w.hasByte(i, ','):
			i = skipSpace(w.in, i+1)
		case w.hasByte(i, ']'):
			w.depth--
			return i + 1
		default:
			return w.failAt(i)
		}
	}
	return -1
}

func (w *walker) checkObject(i int) int {
	o, isInner := object{from: len(w.names)}, w.depth == 1
	if isInner {
		w.members = 0
	}
	for i = w.enterNested(i); i >= 0; {
		var m member
		if m, i = w.checkMember(&o, i, w.strict); i < 0 || m.name.to == 0 {
			break
		}
		if isInner {
			w.noteMember(m)
		}
	}
	return i
}

// object is an object that the walker is in.
type object struct {
	begun bool                // it has had a member
	from  int                 // its names begin here in those of the walker
	many  map[string]struct{} // its names, once there are more than fewNames
}

// checkMember checks the next member of an object. After the last one it goes behind the object, and the
// member is zero. Unique names are also checked to be valid UTF-8.
func (w *walker) checkMember(o *object, i int, unique bool) (m member, next int) {
	i = skipSpace(w.in, i)
	if w.hasByte(i, '}') {
		w.depth--
		w.names = w.names[:o.from]
		return m, i + 1
	}
	if o.begun {
		if !w.hasByte(i, ',') {
			return m, w.failAt(i)
		}
		i = skipSpace(w.in, i+1)
	}
	o.begun = true
	if !w.hasByte(i, '"') {
		return m, w.failAt(i)
	}
	end := w.checkString(i)
	if end < 0 || unique && !w.addName(o, w.in[i:end]) {
		return m, -1
	}
	colon := skipSpace(w.in, end)
	if !w.hasByte(colon, ':') {
		return m, w.failAt(colon)
	}
	m = member{name: span{i, end}, value: span{from: skipSpace(w.in, colon+1)}}
	m.value.to = w.checkValue(m.value.from)
	return m, m.value.to
}

// fewNames are compared one by one. More go into a map, so that a hostile text costs linear time.
const fewNames = 12

// addName adds a quoted name to those of an object. It reports false, with the reason, if the object has it
// already.
func (w *walker) addName(o *object, quoted []byte) bool {
	name, err := decodeString(quoted)
	if err != nil {
		w.failWith(reasonUTF8)
		return false
	}
	if o.hasName(w.names, name) {
		w.failWith(reasonDuplicate)
		return false
	}
	if o.many != nil {
		o.many[string(name)] = struct{}{}
		return true
	}
	w.names = append(w.names, name)
	if names := w.names[o.from:]; len(names) > fewNames {
		o.many = make(map[string]struct{})
		for _, have := range names {
			o.many[string(have)] = struct{}{}
		}
	}
	return true
}

// hasName reports whether a name is among those of the object. While they are few, they are the last ones of
// names.
func (o *object) hasName(names [][]byte, name []byte) bool {
	if o.many != nil {
		_, have := o.many[string(name)]
		return have
	}
	return slices.ContainsFunc(names[o.from:], func(have []byte) bool { return bytes.Equal(have, name) })
}

func (w *walker) checkLiteral(i int, word string) int {
	for k := range len(word) {
		if i+k >= len(w.in) || w.in[i+k] != word[k] {
			return w.failAt(i + k)
		}
	}
	return i + len(word)
}

// checkNumber checks a number, up to the first byte that is outside of it.
func (w *walker) checkNumber(i int) int {
	if w.hasByte(i, '-') {
		i++
	}
	if w.hasByte(i, '0') {
		i++
	} else {
		i = w.checkDigits(i)
	}
	if w.hasByte(i, '.') {
		i = w.checkDigits(i + 1)
	}
	if !w.hasByte(i, 'e') && !w.hasByte(i, 'E') {
		return i
	}
	if i++; w.hasByte(i, '+') || w.hasByte(i, '-') {
		i++
	}
	return w.checkDigits(i)
}

// hasByte reports whether a byte stands at i, which may be -1, or the end.
func (w *walker) hasByte(i int, c byte) bool { return uint(i) < uint(len(w.in)) && w.in[i] == c }

// checkDigits checks that one or more digits stand at i.
func (w *walker) checkDigits(i int) int {
	from := i
	for i < len(w.in) && w.in[i]-'0' <= 9 {
		i++
	}
	if i == from {
		return w.failAt(i)
	}
	return i
}

// checkString checks a string, eight bytes at a time. UTF-8 is checked for the whole text, if it must be
// valid.
func (w *walker) checkString(i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	b := w.in
	for i++; i < len(b); {
		if i+8 <= len(b) {
			x := binary.LittleEndian.Uint64(b[i:])
			// The high bit is set of each quote, backslash and control character. With its second bit turned, a
			// quote is 0x20, next to the control characters. The bit may be set by mistake of a byte above the
			// first such one, never of one below it.
			quote, backslash := x^ones*2-ones*0x21, x^ones*'\\'-ones
			found := (quote | backslash) &^ x & highs
			if found == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(found) / 8
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i+1 < len(b) && isEscape[b[i+1]] {
				i += 2
			} else if i = w.checkHex(i + 1); i < 0 {
				return -1
			}
		case c < 0x20:
			return w.failAt(i)
		default:
			i++
		}
	}
	return w.failAt(i)
}

// isEscape marks the bytes that may follow a backslash, except the u.
var isEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// checkHex checks an escaped character in hexadecimal, from its u on. Lone surrogates are accepted: JavaScript and
// Python write them if a text was cut within an emoji.
func (w *walker) checkHex(i int) int {
	if !w.hasByte(i, 'u') {
		return w.failAt(i)
	}
	for end := i + 4; i < end; {
		if i++; i >= len(w.in) || !isHex(w.in[i]) {
			return w.failAt(i)
		}
	}
	return i + 1
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }

package jsonrpc

import (
	"bufio"
	"bytes"
	"io"
	"slices"
)

// WriteCanonical writes a value in the one spelling of its meaning: without blanks, the members of each object by
// name, each element and member followed by a comma, and strings as [AppendString] spells them. Numbers stay as
// they are spelt. The value must have passed [Parse].
//
// It takes linear time, sorting aside: where each object and array ends is found once for all levels.
func WriteCanonical(to io.Writer, value []byte) error {
	c := canonical{in: value, out: bufio.NewWriter(to)}
	c.findEnds()
	c.writeValue(skipSpace(value, 0), 0)
	return c.out.Flush()
}

// canonical writes one value.
type canonical struct {
	in      []byte
	out     *bufio.Writer
	nested  []container // the objects and arrays, in the order in which they begin
	scratch []byte
}

// container is an object or array: the index behind it, and the number of the first one that begins behind it.
type container struct{ end, next int32 }

// findEnds finds all objects and arrays.
func (c *canonical) findEnds() {
	var open []int32 // those that the index is in
	for i := 0; i < len(c.in); i++ {
		if !structural[c.in[i]] {
			continue
		}
		switch c.in[i] {
		case '"':
			if i = skipString(c.in, i) - 1; i < 0 {
				return
			}
		case '{', '[':
			open = append(open, int32(len(c.nested)))
			c.nested = append(c.nested, container{})
		default:
			last := len(open) - 1
			if last < 0 {
				return
			}
			c.nested[open[last]] = container{end: int32(i + 1), next: int32(len(c.nested))}
			open = open[:last]
		}
	}
}

// writeValue writes the value at i. The first object or array at or behind i has this number.
func (c *canonical) writeValue(i, number int) {
	if i >= len(c.in) {
		return
	}
	switch c.in[i] {
	case '{':
		c.writeObject(i, number)
	case '[':
		_ = c.out.WriteByte('[')
		for i, number = skipSpace(c.in, i+1), number+1; i < len(c.in) && c.in[i] != ']'; {
			c.writeValue(i, number)
			_ = c.out.WriteByte(',') // an error stays in the writer
			i, number = c.skip(i, number)
			i = c.skipComma(i)
		}
		_ = c.out.WriteByte(']')
	case '"':
		c.writeString(c.in[i:max(i, skipString(c.in, i))])
	default:
		_, _ = c.out.Write(c.in[i:max(i, skipScalar(c.in, i))])
	}
}

// canonicalMember is a member with its name in one spelling.
type canonicalMember struct {
	name          []byte
	value, number int32
}

func (c *canonical) writeObject(i, number int) {
	var members []canonicalMember
	for i, number = skipSpace(c.in, i+1), number+1; i < len(c.in) && c.in[i] == '"'; {
		end := skipString(c.in, i)
		if end < 0 {
			break
		}
		name, _ := decodeString(c.in[i:end])
		i = skipSpace(c.in, skipSpace(c.in, end)+1) // behind the colon
		members = append(members, canonicalMember{name: name, value: int32(i), number: int32(number)})
		i, number = c.skip(i, number)
		i = c.skipComma(i)
	}
	slices.SortFunc(members, func(a, b canonicalMember) int { return bytes.Compare(a.name, b.name) })
	_ = c.out.WriteByte('{')
	for _, m := range members {
		c.scratch = AppendString(c.scratch[:0], string(m.name))
		_, _ = c.out.Write(c.scratch)
		_ = c.out.WriteByte(':')
		c.writeValue(int(m.value), int(m.number))
		_ = c.out.WriteByte(',')
	}
	_ = c.out.WriteByte('}')
}

// writeString writes a quoted string. Only an escape has several spellings.
func (c *canonical) writeString(quoted []byte) {
	if bytes.IndexByte(quoted, '\\') >= 0 {
		quoted = AppendString(nil, unquote(quoted))
	}
	_, _ = c.out.Write(quoted)
}

// skip returns the index behind the value at i, and the number of the next object or array.
func (c *canonical) skip(i, number int) (behind, next int) {
	if i < len(c.in) && (c.in[i] == '{' || c.in[i] == '[') && number < len(c.nested) && int(c.nested[number].end) > i {
		return int(c.nested[number].end), int(c.nested[number].next)
	}
	if end := skipValue(c.in, i); end > i {
		return end, number
	}
	return len(c.in), number
}

// skipComma goes behind a comma and the blanks around it.
func (c *canonical) skipComma(i int) int {
	if i = skipSpace(c.in, i); i < len(c.in) && c.in[i] == ',' {
		i = skipSpace(c.in, i+1)
	}
	return i
}

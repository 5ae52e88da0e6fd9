package jsonrpc

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

var errID = errors.New("id must be a string or an integer")

// ID is a JSON-RPC id, kept as the bytes it was sent in so that it can be echoed exactly: a peer may
// compare ids as text. It is a string or an integer of any size; MCP rules out null and fractions. The
// zero ID means an absent id. ID is comparable with ==, which compares spelling; use [ID.Equal] or
// [ID.Key] to compare meaning.
type ID struct{ raw string }

// ParseID reads an id from its JSON text; blanks around it are ignored. It refuses null, numbers with
// a fraction or an exponent (MCP: "string or integer"), invalid JSON strings, and every other type.
func ParseID(raw []byte) (ID, error) {
	raw = bytes.Trim(raw, " \t\r\n")
	switch {
	case len(raw) == 0:
		return ID{}, errID
	case raw[0] == '"':
		if _, err := decodeString(raw); err != nil {
			return ID{}, errID
		}
	case !isInteger(raw):
		return ID{}, errID
	}
	return ID{string(raw)}, nil
}

// ParseEchoed reads an id or a progress token that a peer repeats. A whole number in any spelling is
// read as that number. Clients made with the TypeScript SDK accept 7.0 and "7" for the 7 that they
// have sent, so servers in languages that know one kind of number, or text alone, work with them.
func ParseEchoed(raw []byte) (ID, error) {
	id, err := ParseID(raw)
	if err == nil {
		return TextID(id.String()), nil
	}
	if n, ok := wholeNumber(raw); ok {
		return IntID(n), nil
	}
	return ID{}, err
}

// wholeNumber reads a number without a fraction, in any spelling.
func wholeNumber(raw []byte) (int64, bool) {
	f, err := strconv.ParseFloat(string(raw), 64)
	return int64(f), err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53
}

// maxID is far beyond the ids that clients make.
const maxID = 1 << 10

// Long reports whether an id is longer than a client may choose it: ids of requests and progress
// tokens are kept in the store, and repeated with every message about them.
func (id ID) Long() bool { return len(id.raw) > maxID }

// StringID returns the id with the string value s.
func StringID(s string) ID { return ID{string(AppendString(nil, s))} }

// IntID returns the id with the integer value n.
func IntID(n int64) ID { return ID{strconv.FormatInt(n, 10)} }

// TextID returns the id for which String returns s: a number if s is a whole number, else a string.
func TextID(s string) ID {
	if isInteger(s) {
		return ID{s}
	}
	return StringID(s)
}

// IsZero reports whether the id is absent. The number 0 and the empty string are ids.
func (id ID) IsZero() bool { return id.raw == "" }

// Raw returns the JSON text of the id as it was sent; "" if the id is absent.
func (id ID) Raw() string { return id.raw }

// String returns the id for people and logs: unquoted, so the number 1 and the string "1" look alike.
func (id ID) String() string {
	if id.raw == "" || id.raw[0] != '"' {
		return id.raw
	}
	return unquote([]byte(id.raw))
}

// Equal reports whether both ids mean the same: strings are compared by their characters after
// unescaping, numbers by their text. A number never equals a string.
func (id ID) Equal(o ID) bool { return id == o || id.Key() == o.Key() }

// Key returns the id in canonical spelling, to be used as a map key: equal ids have equal keys, and
// the number 1 and the string "1" differ. It is "" if the id is absent.
func (id ID) Key() string {
	if strings.IndexByte(id.raw, '\\') < 0 {
		return id.raw // a number, or a string without escapes, has one spelling
	}
	return string(AppendString(nil, id.String()))
}

// isInteger reports whether b is a JSON number without fraction and exponent.
func isInteger[T string | []byte](b T) bool {
	if len(b) > 0 && b[0] == '-' {
		b = b[1:]
	}
	if len(b) == 0 || b[0] == '0' && len(b) > 1 {
		return false
	}
	for i := range len(b) {
		if b[i]-'0' > 9 {
			return false
		}
	}
	return true
}

// unquote decodes a JSON string; invalid UTF-8 and lone surrogates become U+FFFD. For any other text
// it returns what it could read.
func unquote(raw []byte) string {
	s, _ := decodeString(raw)
	return string(s)
}

// decodeString is unquote, with an error for what is not one JSON string of valid UTF-8 without lone surrogates.
func decodeString(raw []byte) ([]byte, error) {
	if plain, ok := unescaped(raw); ok {
		return plain, nil
	}
	return jsontext.AppendUnquote(nil, raw)
}

// unescaped returns the characters of a JSON string of printable ASCII without escapes; they are their
// own decoding.
func unescaped(raw []byte) ([]byte, bool) {
	last := len(raw) - 1
	if last < 1 || raw[0] != '"' || raw[last] != '"' {
		return nil, false
	}
	in := raw[1:last]
	for _, c := range in {
		if c < 0x20 || c > 0x7e || c == '\\' || c == '"' {
			return nil, false
		}
	}
	return in, true
}

// Package mcpheader knows how MCP 2026-07-28 mirrors parts of a request body in HTTP headers: the
// encoding of values, the x-mcp-header annotations of a tool's input schema, and the comparison of
// a header with the argument that it mirrors (specification, basic/transports/streamable-http).
//
// A server uses it to refuse requests whose headers and body disagree, and a client to write
// headers that the next server accepts.
package mcpheader

import (
	"encoding/base64"
	"errors"
	"strings"
	"unicode/utf8"
)

// The markers of an encoded value. They are exact, lower case included.
const (
	opening = "=?base64?"
	closing = "?="
)

var (
	errBase64 = errors.New("header value is not valid Base64")
	errUTF8   = errors.New("header value is not UTF-8 after decoding")
	errChars  = errors.New("header value contains characters that must be encoded")
)

// Encode makes v a header value: v itself if it can travel as it is, else the Base64 form =?base64?…?=.
// The Base64 form is for everything but printable ASCII and tabs, for leading and trailing blanks, which
// HTTP strips, and for a value that already looks encoded.
func Encode(v string) string {
	if isPlain(v) && v == trim(v) && !looksEncoded(v) {
		return v
	}
	return opening + base64.StdEncoding.EncodeToString([]byte(v)) + closing
}

// Decode returns the value that a header carries. It drops blanks and tabs around it first (RFC
// 9110 section 5.5). It fails if the value holds characters that had to be encoded, or is encoded
// badly; a server answers either with a header mismatch.
func Decode(v string) (string, error) {
	v = trim(v)
	if !isPlain(v) {
		return "", errChars
	}
	if !looksEncoded(v) {
		return v, nil
	}
	// Strict accepts only one of the spellings of a value. The decoder would skip line breaks,
	// which isPlain has ruled out.
	b, err := base64.StdEncoding.Strict().DecodeString(v[len(opening) : len(v)-len(closing)])
	if err != nil {
		return "", errBase64
	}
	if !utf8.Valid(b) {
		return "", errUTF8
	}
	return string(b), nil
}

func looksEncoded(v string) bool {
	return len(v) >= len(opening)+len(closing) && strings.HasPrefix(v, opening) && strings.HasSuffix(v, closing)
}

// isPlain reports whether v is printable ASCII and tabs.
func isPlain(v string) bool {
	for i := range len(v) {
		if c := v[i]; (c < 0x20 || c > 0x7e) && c != '\t' {
			return false
		}
	}
	return true
}

// trim takes off optional white space as HTTP defines it.
func trim(v string) string { return strings.Trim(v, " \t") }

package jsonrpc

import (
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// LongBatch reports whether a body is an array of more than n values. It reads no further
// than that, and b need not be JSON.
func LongBatch(b []byte, n int) bool {
	for range Elements(b) {
		if n--; n < 0 {
			return true
		}
	}
	return false
}

// Split takes a body apart that may be a batch (JSON-RPC 2.0 section 6; MCP
// 2025-03-26 only). A body that is not an array is its own single element and
// is not looked at further; the caller parses it. The elements of a batch are
// known to be well-formed and nothing else, so each goes through [Parse] or
// [ParseLenient] next. A batch that is empty or not readable is a *[ParseError].
// The elements alias b.
func Split(b []byte) (elems []json.RawMessage, isBatch bool, err error) {
	if i := skipSpace(b, 0); i == len(b) || b[i] != '[' {
		return []json.RawMessage{b}, false, nil
	}
	if tooDeep(b) || !jsontext.Value(b).IsValid(lenientOptions, lenientUTF8) {
		return nil, true, &ParseError{Code: CodeParseError, Reason: "not valid JSON"}
	}
	for e := range Elements(b) {
		elems = append(elems, e)
	}
	if len(elems) == 0 {
		return nil, true, invalid("empty batch")
	}
	return elems, true, nil
}

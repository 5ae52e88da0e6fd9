package jsonrpc

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

const prefix = `{"jsonrpc":"2.0"`

// AppendRequest appends a request. Params are copied as they are and left out if empty.
func AppendRequest(dst []byte, id ID, method string, params []byte) []byte {
	return appendCall(appendID(append(dst, prefix...), id), method, params)
}

// AppendNotification appends a notification. Params are copied as they are and
// left out if empty.
func AppendNotification(dst []byte, method string, params []byte) []byte {
	return appendCall(append(dst, prefix...), method, params)
}

func appendCall(dst []byte, method string, params []byte) []byte {
	dst = AppendString(append(dst, `,"method":`...), method)
	if len(params) > 0 {
		dst = append(append(dst, `,"params":`...), params...)
	}
	return append(dst, '}')
}

// AppendResult appends the successful answer to id. The result is copied as it is. An empty one
// becomes {}, because a response needs the member.
func AppendResult(dst []byte, id ID, result []byte) []byte {
	dst = append(appendID(append(dst, prefix...), id), `,"result":`...)
	if len(result) == 0 {
		dst = append(dst, '{', '}')
	}
	return append(append(dst, result...), '}')
}

// AppendError appends the error answer to id. If the id is zero, the member is left out, as MCP
// wants it when the request's id is unknown; [AppendErrorNullID] does what JSON-RPC 2.0 itself
// wants.
func AppendError(dst []byte, id ID, e *Error) []byte {
	return appendError(appendID(append(dst, prefix...), id), e)
}

// AppendErrorNullID appends an error answer with the id null, for peers that
// follow JSON-RPC 2.0 section 5 to the letter.
func AppendErrorNullID(dst []byte, e *Error) []byte {
	return appendError(append(dst, prefix+`,"id":null`...), e)
}

func appendError(dst []byte, e *Error) []byte {
	dst = strconv.AppendInt(append(dst, `,"error":{"code":`...), e.Code, 10)
	dst = AppendString(append(dst, `,"message":`...), e.Message)
	if len(e.Data) > 0 {
		dst = append(append(dst, `,"data":`...), e.Data...)
	}
	return append(dst, '}', '}')
}

func appendID(dst []byte, id ID) []byte {
	if id.IsZero() {
		return dst
	}
	return append(append(dst, `,"id":`...), id.raw...)
}

// AppendString appends s as a JSON string with the fewest possible escapes: HTML and non-ASCII
// characters stay as they are. Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that bytes were replaced
	return dst
}

package jsonrpc

import (
	"encoding/json"
	"fmt"
)

// Version is the value of the member "jsonrpc" in every message.
const Version = "2.0"

// The codes of JSON-RPC 2.0 section 5.1 for texts that are not messages.
const (
	CodeParseError     = -32700 // unreadable as JSON
	CodeInvalidRequest = -32600 // JSON, but no single message
)

// Kind tells the four sorts of messages apart.
type Kind uint8

// The kinds of [Message]. The zero Kind is invalid.
const (
	Request       Kind = iota + 1 // method and id
	Notification                  // method, without id
	Result                        // id and result
	ErrorResponse                 // error, mostly with an id
)

// String returns the kind in words, for logs and tests.
func (k Kind) String() string {
	names := [...]string{"invalid", "request", "notification", "result", "error response"}
	if int(k) >= len(names) {
		return names[0]
	}
	return names[k]
}

// Message is one JSON-RPC message. The raw members alias the parsed input and are valid as long as
// it is.
type Message struct {
	Kind   Kind
	ID     ID              // zero for a notification, and for an error response with null or absent id
	Method string          // of a request or notification
	Params json.RawMessage // an object or array; nil when absent or null
	Result json.RawMessage // of a result; any JSON value
	Error  *Error          // of an error response
	Raw    []byte          // the whole input

	inner []member // of a large payload, as a parse has found them in Raw; else nil
}

// Pick is the function [Pick] for the params or the result. A large payload that is as it was parsed is left
// unread: its members are known.
func (m *Message) Pick(names []string, values []json.RawMessage) {
	payload := m.Params
	if m.Kind == Result {
		payload = m.Result
	}
	if len(m.inner) == 0 || !startsAt(payload, m.Raw, m.inner[0]) {
		Pick(payload, names, values)
		return
	}
	clear(values)
	for _, one := range m.inner {
		pickMember(m.Raw, one, names, values)
	}
}

// startsAt reports whether the object payload is the part of raw whose first member this is.
func startsAt(payload, raw []byte, first member) bool {
	at := skipSpace(payload, 1)
	return at < len(payload) && &payload[at] == &raw[first.name.from]
}

// Error is a JSON-RPC error object (JSON-RPC 2.0 section 5.1). It implements error, so that a client
// may return its server's error.
type Error struct {
	Code    int64
	Message string
	Data    json.RawMessage // nil when absent; aliases the input after a parse
}

// Error returns the message and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// ParseError says why a text is not a message, in the terms of the answer that JSON-RPC asks for.
type ParseError struct {
	Code   int64  // CodeParseError or CodeInvalidRequest
	Reason string // for people; quotes only member names of the input
	ID     ID     // the message's id if it could be read, else zero
}

// Error returns the reason.
func (e *ParseError) Error() string { return e.Reason }

func invalid(format string, args ...any) *ParseError {
	return &ParseError{Code: CodeInvalidRequest, Reason: fmt.Sprintf(format, args...)}
}

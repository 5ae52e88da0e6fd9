package jsonrpc

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Parse reads a message from a client. It is strict at every depth: duplicate names, invalid UTF-8, names
// with lone surrogates, more than 1,000 levels of nesting and trailing bytes are refused, because two readers
// could take such a text for two different calls. Member names are compared exactly, case included; unknown
// members of the envelope are ignored. The error is a *[ParseError].
//
// A response is read with more tolerance, since a server waits for it. Its id is read by [ParseEchoed]. Null is
// accepted as the id of an error response (JSON-RPC 2.0 section 5 demands it if the id was unreadable) and as the
// error beside a result, or the result beside an error (JSON-RPC 1.0 wrote it so). An error without a message has an
// empty one: the Java SDK answers an exception without a text so.
//
// The message aliases the input; only the id and the method are copied.
func Parse(b []byte) (Message, error) { return parse(b, true) }

// ParseLenient reads a message from a server. The rules of [Parse] hold for the envelope and the error
// object; params, result, error.data and unknown members only have to be well-formed JSON.
func ParseLenient(b []byte) (Message, error) { return parse(b, false) }

func parse(b []byte, strict bool) (Message, error) {
	var env envelope
	if perr := env.read(b, strict); perr != nil {
		return Message{}, perr
	}
	m, perr := env.message(strict)
	if perr != nil {
		perr.ID, _ = ParseID(env.id)
		return Message{}, perr
	}
	m.Raw, m.inner = b, env.inner
	return m, nil
}

// envelope holds the members that were found; nil means absent.
type envelope struct {
	version, id, method, params, result, err json.RawMessage

	inner []member // of params or result, if that is large
}

// largePayload is the size in bytes from which the members of a payload are noted. A smaller one is read again
// at less cost.
const largePayload = 1 << 10

// read finds the members of the envelope.
func (e *envelope) read(b []byte, strict bool) *ParseError {
	w := newWalker(b, strict)
	if perr := w.openObject("message"); perr != nil {
		return perr
	}
	for {
		name, value, perr := w.nextMember()
		if perr != nil || name == nil {
			return perr
		}
		field := e.field(name)
		if field == nil {
			continue
		}
		*field = value
		if isPayload := field == &e.params || field == &e.result; isPayload && len(value) >= largePayload && value[0] == '{' && w.members <= mostNoted {
			e.inner = slices.Clone(w.inner[:w.members])
		}
	}
}

func (e *envelope) field(name []byte) *json.RawMessage {
	switch string(name) {
	case "jsonrpc":
		return &e.version
	case "id":
		return &e.id
	case "method":
		return &e.method
	case "params":
		return &e.params
	case "result":
		return &e.result
	case "error":
		return &e.err
	}
	return nil
}

// message decides what kind of message the members make, after JSON-RPC 2.0 sections 4 and 5.
func (e *envelope) message(strict bool) (Message, *ParseError) {
	switch {
	case e.result != nil && string(e.err) == "null":
		e.err = nil
	case e.err != nil && string(e.result) == "null":
		e.result = nil
	}
	switch version, err := decodeString(e.version); {
	case err != nil || string(version) != Version:
		return Message{}, invalid(`member "jsonrpc" must be "2.0"`)
	case e.method != nil && (e.result != nil || e.err != nil):
		return Message{}, invalid("a message is a call or a response, not both")
	case e.method != nil:
		return e.callMessage()
	case e.result != nil && e.err != nil:
		return Message{}, invalid("a response has a result or an error, not both")
	case e.result != nil:
		return e.resultMessage()
	case e.err != nil:
		return e.errorMessage(strict)
	}
	return Message{}, invalid("a message needs a method, a result or an error")
}

func (e *envelope) callMessage() (Message, *ParseError) {
	m := Message{Kind: Notification, Params: e.params}
	method, err := decodeString(e.method)
	if err != nil {
		return Message{}, invalid("method must be a string")
	}
	m.Method = string(method)
	// Some clients write null as the id of a notification. Servers of the Python SDK take that (python-sdk #2057).
	if e.id != nil && (string(e.id) != "null" || !strings.HasPrefix(m.Method, "notifications/")) {
		id, err := ParseID(e.id)
		if err != nil {
			return Message{}, invalid("%v", err)
		}
		m.Kind, m.ID = Request, id
	}
	if string(m.Params) == "null" {
		m.Params = nil // some libraries write empty members so
	}
	if m.Params != nil && m.Params[0] != '{' && m.Params[0] != '[' {
		return Message{}, invalid("params must be an object or an array")
	}
	return m, nil
}

func (e *envelope) resultMessage() (Message, *ParseError) {
	id, err := ParseEchoed(e.id)
	if err != nil {
		return Message{}, invalid("%v", err)
	}
	return Message{Kind: Result, ID: id, Result: e.result}, nil
}

// errorMessage reads an error response. Its id may be absent: MCP 2025-11-25 makes it optional if the
// request's id was unreadable.
func (e *envelope) errorMessage(strict bool) (Message, *ParseError) {
	m := Message{Kind: ErrorResponse}
	if e.id != nil && string(e.id) != "null" {
		id, err := ParseEchoed(e.id)
		if err != nil {
			return Message{}, invalid("%v", err)
		}
		m.ID = id
	}
	obj, perr := readError(e.err, strict)
	m.Error = obj
	return m, perr
}

// readError reads the error object, with code and message required.
func readError(b []byte, strict bool) (*Error, *ParseError) {
	w := newWalker(b, strict)
	if perr := w.openObject("error"); perr != nil {
		return nil, perr
	}
	var code, message json.RawMessage
	var e Error
	for {
		name, value, perr := w.nextMember()
		if perr != nil {
			return nil, perr
		}
		if name == nil {
			break
		}
		switch string(name) {
		case "code":
			code = value
		case "message":
			message = value
		case "data":
			e.Data = value
		}
	}
	n, err := strconv.ParseInt(string(code), 10, 64)
	if whole, ok := wholeNumber(code); ok { // Lua and PHP may write -32602.0
		n, err = whole, nil
	}
	if err != nil {
		return nil, invalid("error code must be an integer")
	}
	if message == nil || string(message) == "null" {
		message = json.RawMessage(`""`)
	}
	text, err := decodeString(message)
	if err != nil {
		return nil, invalid("error message must be a string")
	}
	e.Code, e.Message = n, string(text)
	return &e, nil
}

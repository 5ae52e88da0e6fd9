package modern

import (
	"fmt"
	"net/http"

	"taskgate/gateway/wire"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
)

// A modern request repeats parts of its body in headers (protocol.md 2.4), so that a proxy can
// decide without the body. A server that reads the body must refuse a request in which the two
// differ: the proxy would have decided about another call. A header that comes twice is refused
// too, since the proxy may have read the other value.
//
// A client over stdio has no headers: they are nil then, and the checks pass.

// onlyValue is the one value of a required header.
func onlyValue(h http.Header, name string) (string, error) {
	switch values := h.Values(name); {
	case len(values) == 0:
		return "", headerMismatch("the header %s is missing", name)
	case len(values) > 1:
		return "", headerMismatch("the header %s is there more than once", name)
	default:
		return wire.TrimOWS(values[0]), nil
	}
}

// checkHeader compares a required header with what the body says. Its value is case-sensitive.
func checkHeader(h http.Header, name, what, inBody string) error {
	if h == nil {
		return nil
	}
	got, err := onlyValue(h, name)
	if err == nil && got != inBody {
		err = headerMismatch("%s differs from the %s in the body", name, what)
	}
	return err
}

// checkNameHeader compares Mcp-Name for the methods that have it (2.4, T46). If both lack the name,
// checkName refuses the request later, as a mistake in params.
func checkNameHeader(q *request) error {
	param := mcp.NameParam(q.msg.Method)
	if q.header == nil || param == "" || !q.named && len(q.header[mcp.HeaderName]) == 0 {
		return nil
	}
	value, err := onlyValue(q.header, mcp.HeaderName)
	if err != nil {
		return err
	}
	got, err := mcpheader.Decode(value)
	if err != nil {
		return headerMismatch("%s: %v", mcp.HeaderName, err)
	}
	if !q.named || got != q.name {
		return headerMismatch("%s differs from params.%s", mcp.HeaderName, param)
	}
	return nil
}

// checkName checks that the body has a name, if the method needs one.
func checkName(q *request) error {
	if param := mcp.NameParam(q.msg.Method); !q.named && param != "" {
		return wire.InvalidParams("params.%s must be a string", param)
	}
	return nil
}

// checkParamHeaders compares the arguments of a tool call with the headers that its schema asks for
// (2.4).
func checkParamHeaders(h http.Header, arguments []byte, params []mcpheader.Param) error {
	if h == nil || len(params) == 0 {
		return nil
	}
	values := mcpheader.Arguments(params, arguments)
	for i, p := range params {
		if err := checkParamHeader(h, values[i], p); err != nil {
			return err
		}
	}
	return nil
}

func checkParamHeader(h http.Header, arg []byte, p mcpheader.Param) error {
	name := mcp.HeaderParamPrefix + p.Header
	_, present, err := mcpheader.Value(arg, p)
	switch {
	case err != nil: // no header could mirror it
		return wire.InvalidParams("%v", err)
	case !present && len(h.Values(name)) > 0:
		return headerMismatch("the header %s has no argument", name)
	case !present: // absent or null: the header is absent too
		return nil
	}
	value, err := onlyValue(h, name)
	if err != nil {
		return err
	}
	if err := mcpheader.Match(value, arg, p); err != nil {
		return headerMismatch("%s: %v", name, err)
	}
	return nil
}

func headerMismatch(format string, a ...any) *wire.Failure {
	return &wire.Failure{Code: mcp.CodeHeaderMismatch, Message: fmt.Sprintf(format, a...), Status: http.StatusBadRequest}
}

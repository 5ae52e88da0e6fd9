package transport

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// StatusError is a server's refusal of a message: an HTTP status in place of an answer. Callers
// look for it by a type assertion, and not in a chain of errors: inside a shim.UpstreamError it
// may be about another message, a resumption or an answer to a question, and then proves nothing
// about the call.
type StatusError struct {
	Status int
	// Said is the JSON-RPC error of the body; RPC is the same if its id is that of the request, or absent.
	Said, RPC  *jsonrpc.Error
	RetryAfter time.Duration
	// Reason says why a 2xx is no answer.
	Reason string
	// Text is what the body says to people, without what the request was signed in with; "" for nothing.
	Text string
	// Signed says that the message carried credentials of the configuration.
	Signed bool
	// Session says that the message named a session.
	Session bool
	// Token says that the message carried the token of a client, who gets the refusal then;
	// Challenges are the server's answer to that token.
	Token      bool
	Challenges []string
	// Protocol is the version of HTTP.
	Protocol string
}

// UnknownSession is the refusal of a message whose session has ended, or never was.
func UnknownSession(m *Outgoing) *StatusError {
	return &StatusError{Status: http.StatusNotFound, Session: m.Session != ""}
}

// Error is for the log.
func (e *StatusError) Error() string {
	text := "status " + strconv.Itoa(e.Status)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.RPC != nil {
		text += ": JSON-RPC error " + strconv.FormatInt(e.RPC.Code, 10)
	}
	if e.Text != "" {
		text += ": " + strconv.Quote(e.Text)
	}
	return text
}

// IsSessionLost reports whether the server has forgotten the session (X6). A 404 around "method
// not found" is about the method.
func (e *StatusError) IsSessionLost() bool {
	return e.Status == http.StatusNotFound && e.Session && (e.RPC == nil || e.RPC.Code != mcp.CodeMethodNotFound)
}

// IsRefusal reports whether the server refused the message before it looked at what it asks for:
// by HTTP 400 (protocol.md 2.5). Its codes about headers and versions are proof only there. In a
// 200, or on a stream, where progress may have come before, they leave open whether a tool ran.
func (e *StatusError) IsRefusal() bool { return e.Status == http.StatusBadRequest }

// Answer is the JSON-RPC error that the status carries, if it is the server's answer. A refusal
// of credentials and a plea for relief are about the hop, and stay errors of it, whatever their
// body says.
func (e *StatusError) Answer() *jsonrpc.Error {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return nil
	}
	return e.RPC
}

// UpstreamError words the status for a client, with the server's own words: they say which limit is used up, or what
// is missing. Those of a 401 are left out, since they are about a credential, and may quote that of the gateway.
func (e *StatusError) UpstreamError() *shim.UpstreamError {
	ue := &shim.UpstreamError{Kind: shim.KindProtocol, Err: e}
	switch {
	case e.Status == http.StatusUnauthorized:
	case e.Said != nil:
		ue.Said = e.Said.Message
	default:
		ue.Said = e.Text
	}
	switch s := e.Status; {
	case e.Token && (s == http.StatusUnauthorized || s == http.StatusForbidden):
		ue.Kind, ue.Err = shim.KindRefused, &forward.ServerRefusal{Status: s, Challenges: e.Challenges, Text: e.Text}
		ue.Message = fmt.Sprintf("the server refused the client's sign-in (HTTP status %d)", s)
	case e.Signed && (s == http.StatusUnauthorized || s == http.StatusForbidden):
		ue.Kind, ue.Message = shim.KindRefused, "the gateway's credentials were refused by the server"
	case s == http.StatusUnauthorized:
		ue.Kind, ue.Message = shim.KindRefused, "the server wants its callers to sign in, and the gateway has no credentials for it: auth: {passthrough: {}} has clients sign in there, and headers (--header) has the gateway do so"
	case s == http.StatusForbidden:
		ue.Kind, ue.Message = shim.KindRefused, "the server refused the request (HTTP status 403)"
	case s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable:
		ue.Kind, ue.Message, ue.RetryAfterMs = shim.KindOverloaded, "the server is overloaded", e.RetryAfter.Milliseconds()
	case e.IsSessionLost():
		ue.Kind, ue.Message = shim.KindSession, "the server ended the session"
	case s == http.StatusBadGateway || s == http.StatusGatewayTimeout:
		ue.Kind, ue.Message = shim.KindUnreachable, fmt.Sprintf("the server could not be reached: HTTP status %d", s)
	case s >= 300 && s < 400:
		ue.Message = fmt.Sprintf("the server redirects to another address (HTTP status %d), which is not followed", s)
	case e.Reason != "":
		ue.Message = "the server did not answer as MCP wants: " + e.Reason
	default:
		ue.Message = fmt.Sprintf("the server answered with HTTP status %d", s)
	}
	return ue
}

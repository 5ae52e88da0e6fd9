package auth

import (
	"net/http"
	"strings"

	"taskgate/gateway/config"
)

const headerAuthorization = "Authorization"

// presence says what a request has in the header Authorization.
type presence int

const (
	absent  presence = iota // no header, or another scheme than Bearer
	broken                  // a header that may mean several tokens, or none
	present                 // one token
)

// readBearer reads a key or a token from the header Authorization only (Z2). Another scheme than
// Bearer counts as absent; RFC 6750 has no error for it.
func readBearer(h http.Header) (token string, _ presence) {
	values := h[headerAuthorization]
	switch len(values) {
	case 0:
		return "", absent
	case 1:
	default: // a proxy in front may have looked at either
		return "", broken
	}
	scheme, token, _ := strings.Cut(trimValue(values[0]), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", absent
	}
	if token = strings.TrimLeft(token, " "); !config.ValidKey(token) {
		return "", broken
	}
	return token, present
}

// trimValue cuts the blank space that may stand around the value of a header (RFC 9110).
func trimValue(value string) string { return strings.Trim(value, " \t") }

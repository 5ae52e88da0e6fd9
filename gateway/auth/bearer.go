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
	absent  presence = iota // nothing, or another scheme than Bearer
	broken                  // something that could be taken for more than one token, or for none
	present                 // one token
)

// readBearer reads a key or a token out of the one header that may carry it; one in the URL
// is not looked for (Z2). Another scheme than Bearer is no token at all, and none of
// RFC 6750's errors.
func readBearer(h http.Header) (token string, _ presence) {
	values := h[headerAuthorization]
	switch len(values) {
	case 0:
		return "", absent
	case 1:
	default: // which one did a proxy in front look at?
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

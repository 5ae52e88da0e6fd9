package gateway

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream/forward"
)

// Headers that say by which connection a request has come to a proxy.
const (
	headerForwardedFor   = "X-Forwarded-For"
	headerForwardedHost  = "X-Forwarded-Host"
	headerForwardedProto = "X-Forwarded-Proto"
)

// forwarded is what of a request goes to the server with every request that belongs to it; nil for
// nothing.
func (u *route) forwarded(r *http.Request, from auth.Caller) *forward.Parts {
	c := u.endpoint.Config
	if len(c.ForwardHeaders) == 0 && c.ForwardHost != config.On && u.resource == nil {
		return nil
	}
	f := &forward.Parts{Header: named(r.Header, c.ForwardHeaders)}
	if u.resource != nil {
		f.Credential, f.Seal, f.Token = u.passing(r, from)
		f.Opaque, f.Doubted = from.IsOpaque(), from.Doubted() != nil
	}
	if c.ForwardHost == config.On {
		f.Host, f.Proxy = r.Host, connectionOf(r)
	}
	return f
}

// named are the headers of these names, except those that belong to the request's connection (RFC 9110
// section 7.6.1).
func named(h http.Header, names []string) http.Header {
	out := http.Header{}
	for _, name := range names {
		name = http.CanonicalHeaderKey(name)
		if values := h[name]; len(values) > 0 && !ofConnection(h, name) {
			out[name] = slices.Clone(values)
		}
	}
	return out
}

// ofConnection reports whether the header Connection names this header.
func ofConnection(h http.Header, name string) bool {
	for _, line := range h["Connection"] {
		for option := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.Trim(option, " \t"), name) {
				return true
			}
		}
	}
	return false
}

// connectionOf says how a request has come here. A forwarded header of the same name takes precedence:
// it comes from a proxy in front.
func connectionOf(r *http.Request) http.Header {
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	h := http.Header{headerForwardedHost: {r.Host}, headerForwardedProto: {proto}}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		h[headerForwardedFor] = []string{host}
	}
	return h
}

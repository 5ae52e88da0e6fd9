package gateway

import (
	"net/http"
	"net/http/httputil"
	"slices"

	"golang.org/x/net/http/httpguts"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream/forward"
)

// forwarded is what of a request goes to the server with every request that belongs to it; nil for
// nothing.
func (u *route) forwarded(r *http.Request, from auth.Caller) *forward.Parts {
	c := u.endpoint.Config
	if len(c.ForwardHeaders) == 0 && c.ForwardHost != config.On && u.resource == nil && len(c.ExposeHeaders) == 0 {
		return nil
	}
	f := &forward.Parts{Header: named(r.Header, c.ForwardHeaders)}
	if u.resource != nil {
		f.Credential, f.Seal, f.Token = u.passing(r, from)
		f.Opaque, f.Doubted = from.IsOpaque(), from.Doubted() != nil
	}
	if len(c.ExposeHeaders) > 0 {
		f.Exposed = forward.NewExposed(c.ExposeHeaders)
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
		if values := h[name]; len(values) > 0 && !httpguts.HeaderValuesContainsToken(h["Connection"], name) {
			out[name] = slices.Clone(values)
		}
	}
	return out
}

// connectionOf says how a request has come here. A forwarded header of the same name takes precedence:
// it comes from a proxy in front.
func connectionOf(r *http.Request) http.Header {
	to := httputil.ProxyRequest{In: r, Out: &http.Request{Header: http.Header{}}}
	to.SetXForwarded()
	return to.Out.Header
}

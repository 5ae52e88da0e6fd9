package config

import (
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// The reasons why a header cannot be configured.
const (
	ofConnection = "belongs to the connection, which the gateway manages"
	ofProtocol   = "is part of the protocol and set by the gateway for each request"
	ofTracing    = "carries the trace of each request and is set by the gateway"
	ofURL        = "follows from url"
	ofRepeats    = "would make the HTTP client repeat calls that may already have run"
)

// reserved are the headers that cannot be configured, in canonical form. All headers that begin
// with Mcp- are reserved as well.
var reserved = map[string]string{
	"Connection":          ofConnection,
	"Content-Length":      ofConnection,
	"Expect":              ofConnection,
	"Keep-Alive":          ofConnection,
	"Proxy-Authenticate":  ofConnection,
	"Proxy-Authorization": ofConnection,
	"Proxy-Connection":    ofConnection,
	"Te":                  ofConnection,
	"Trailer":             ofConnection,
	"Transfer-Encoding":   ofConnection,
	"Upgrade":             ofConnection,
	"Accept":              ofProtocol,
	"Accept-Encoding":     ofProtocol,
	"Content-Encoding":    ofProtocol,
	"Content-Type":        ofProtocol,
	"Last-Event-Id":       ofProtocol,
	"Baggage":             ofTracing,
	"Traceparent":         ofTracing,
	"Tracestate":          ofTracing,
	"Host":                ofURL,
	"Idempotency-Key":     ofRepeats,
	"X-Idempotency-Key":   ofRepeats,
}

// reservedFor is why a header cannot be configured; "" if it can.
func reservedFor(name string) string {
	key := textproto.CanonicalMIMEHeaderKey(name)
	if strings.HasPrefix(key, "Mcp-") {
		return ofProtocol
	}
	return reserved[key]
}

// checkHeaders checks the headers of an upstream; it never quotes their values.
func (p *problems) checkHeaders(at string, headers map[string]string) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		key, reason := textproto.CanonicalMIMEHeaderKey(name), reservedFor(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			p.addKey(joinKey(at, name), "%q is not the name of a header", clipText(name))
		case reason != "":
			p.addKey(joinKey(at, name), "%s cannot be set: it %s", key, reason)
		case seen[key]:
			p.addKey(joinKey(at, name), "the header %s is given twice", key)
		case !httpguts.ValidHeaderFieldValue(headers[name]):
			p.add(joinKey(at, name), "the value holds a line break or another character that no header may hold")
		}
		seen[key] = true
	}
}

// forwardHeaders checks which headers of a client go to the server.
func (p *problems) forwardHeaders(list string, u *Upstream, auth Auth) {
	seen := map[string]bool{}
	for name := range u.Headers {
		seen[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	for i, name := range u.ForwardHeaders {
		at, key, reason := fmt.Sprintf("%s[%d]", list, i), textproto.CanonicalMIMEHeaderKey(name), reservedFor(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			p.add(at, "%q is not the name of a header", clipText(name))
		case key == "Host":
			p.add(at, "Host cannot be forwarded by its name; use forward_host")
		case reason != "":
			p.add(at, "%s cannot be forwarded: it %s", name, reason)
		case key == "Authorization" && (len(auth.Keys) > 0 || auth.JWT != nil):
			p.add(at, "%s cannot be forwarded: it holds what clients sign in with at the gateway", name)
		case seen[key]:
			p.add(at, "%s is sent already: it is in headers, or named two times", name)
		}
		seen[key] = true
	}
}

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

// unexposed are headers of servers that no client gets, in canonical form, besides those that begin with Mcp- or
// Access-Control-.
var unexposed = map[string]string{
	"Set-Cookie":         "belongs to the session with the server",
	"Set-Cookie2":        "belongs to the session with the server",
	"Connection":         ofConnection,
	"Keep-Alive":         ofConnection,
	"Proxy-Authenticate": ofConnection,
	"Proxy-Connection":   ofConnection,
	"Te":                 ofConnection,
	"Trailer":            ofConnection,
	"Transfer-Encoding":  ofConnection,
	"Upgrade":            ofConnection,
	"Allow":              ofGateway,
	"Cache-Control":      ofGateway,
	"Content-Encoding":   ofGateway,
	"Content-Length":     ofGateway,
	"Content-Type":       ofGateway,
	"Date":               ofGateway,
	"Retry-After":        ofGateway,
	"Vary":               ofGateway,
	"Www-Authenticate":   ofGateway,
	"X-Accel-Buffering":  ofGateway,
}

const ofGateway = "is set by the gateway for its own answers"

// unexposedFor is a header among those of an entry of expose_headers that no client gets, and why; "" if there is none.
func unexposedFor(name string) (key, reason string) {
	key = textproto.CanonicalMIMEHeaderKey(name)
	begin, many := strings.CutSuffix(key, "*")
	for _, family := range []string{"Mcp-", "Access-Control-"} {
		if strings.HasPrefix(begin, family) || many && strings.HasPrefix(family, begin) {
			return family + "*", ofGateway
		}
	}
	for _, one := range slices.Sorted(maps.Keys(unexposed)) {
		if one == key || many && strings.HasPrefix(one, begin) {
			return one, unexposed[one]
		}
	}
	return key, ""
}

// exposeHeaders checks which headers of a server go to its clients.
func (p *problems) exposeHeaders(list string, names []string) {
	seen := map[string]bool{}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", list, i)
		key, reason := unexposedFor(name)
		switch {
		case !httpguts.ValidHeaderFieldName(strings.TrimSuffix(name, "*")) && name != "*" || strings.Contains(strings.TrimSuffix(name, "*"), "*"):
			p.add(at, "%q is not the name of a header, nor its beginning with * at the end", clipText(name))
		case reason != "":
			p.add(at, "%s cannot be exposed: it %s", key, reason)
		case seen[key]:
			p.add(at, "%s is named two times", name)
		}
		seen[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
}

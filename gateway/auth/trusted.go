package auth

import (
	"net/http"
	"net/netip"
	"slices"

	"taskgate/gateway/config"
)

// maxName is how long the name of a caller may be in a trusted header, in bytes.
const maxName = 1024

// None of them is 401: a client could do nothing about it.
var (
	strangerRefused = &Refusal{http.StatusForbidden, "", "requests are taken from the proxy in front only"}
	namelessRefused = &Refusal{http.StatusForbidden, "", "the proxy in front does not say who the caller is"}
	twiceRefused    = &Refusal{http.StatusBadRequest, "", "the header that names the caller must be there once"}
)

// trusted believes a header of a proxy in front.
type trusted struct {
	name string // canonical
	from []netip.Prefix
}

func newTrusted(c *config.TrustedHeader) (Method, error) {
	t := &trusted{name: http.CanonicalHeaderKey(c.Name)}
	for _, from := range c.From {
		network, err := config.ParseNetwork(from)
		if err != nil {
			return nil, err
		}
		t.from = append(t.from, network)
	}
	return t, nil
}

// Identify finds the caller that the proxy names. Who is not the proxy is refused, whatever
// headers it sends: to serve it anonymously would be to fall into another way to sign in.
func (t *trusted) Identify(r *http.Request) (Caller, *Refusal) {
	if !t.isTrusted(r) {
		return Caller{}, strangerRefused
	}
	values := r.Header[t.name]
	switch len(values) {
	case 0:
		return Caller{}, namelessRefused
	case 1:
	default: // one may have come from the client
		return Caller{}, twiceRefused
	}
	name := trimValue(values[0])
	if name == "" || len(name) > maxName {
		return Caller{}, namelessRefused
	}
	return Caller{Principal: newPrincipal("header", t.name, name), name: name}, nil
}

// Recall is Identify: the header is all there is.
func (t *trusted) Recall(r *http.Request) string {
	c, _ := t.Identify(r)
	return c.Principal.Owner()
}

// isTrusted looks at the address of the connection. Headers that name another one, such as
// X-Forwarded-For, could come from anybody.
func (t *trusted) isTrusted(r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := at.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(t.from, func(p netip.Prefix) bool { return p.Contains(addr) })
}

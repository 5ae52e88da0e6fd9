package auth

import (
	"net/http"
	"net/netip"
	"slices"

	"taskgate/gateway/config"
)

// maxName bounds the name of a caller in a trusted header, in bytes.
const maxName = 1024

// These are 403 or 400: a 401 would tell a client to sign in, in vain.
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

func newTrusted(c *config.TrustedHeader) Method {
	return &trusted{name: http.CanonicalHeaderKey(c.Name), from: networksOf(c)}
}

func networksOf(c *config.TrustedHeader) (networks []netip.Prefix) {
	for _, from := range c.From {
		network, _ := config.ParseNetwork(from) // Validate has checked it
		networks = append(networks, network)
	}
	return networks
}

// Identify finds the caller that the proxy names. A request from any other address is refused, with
// any headers: serving it anonymously would open another way to sign in.
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
	return Caller{Principal: newPrincipal("header", t.name, name), names: names{name: name, called: []string{name}}}, nil
}

// Recall is Identify: the header is all that there is.
func (t *trusted) Recall(r *http.Request) string {
	c, _ := t.Identify(r)
	return c.Principal.Owner()
}

// isTrusted checks the address of the connection. Anybody could send headers that name another
// address, such as X-Forwarded-For.
func (t *trusted) isTrusted(r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := at.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(t.from, func(p netip.Prefix) bool { return p.Contains(addr) })
}

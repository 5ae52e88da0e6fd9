package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// checkAuth reports an auth of all upstreams that names no way to sign in. Reading it as an open
// gateway would let everybody in once the last entry of a list is commented out.
func (s *source) checkAuth(at string, a Auth) {
	if _, given := s.at[at]; given && !a.Required() {
		message := "nobody could call: give keys, jwt or trusted_header, or leave auth out to let everybody in"
		if at == "admin_auth" {
			message = "no operator could sign in: give keys, jwt or trusted_header, or leave admin_auth out"
		}
		s.addProblem(problem{
			paths:   []string{at + ".keys", at + ".jwt", at + ".passthrough", at + ".trusted_header", at},
			message: message,
			onKey:   true,
		})
	}
}

// checkAuth checks how callers of all upstreams, or of one, sign in.
func (p *problems) checkAuth(at string, a *Auth, c *Config) {
	var given []string
	for _, mode := range []struct {
		key   string
		given bool
	}{
		{"anonymous", a.Anonymous == On},
		{"keys", len(a.Keys) > 0},
		{"jwt", a.JWT != nil},
		{"passthrough", a.Passthrough != nil},
		{"trusted_header", a.TrustedHeader != nil},
	} {
		if mode.given {
			given = append(given, mode.key)
		}
	}
	if len(given) > 1 {
		p.addKey(at+"."+given[1], "auth has one way to sign in, and %s is already given", given[0])
	}
	p.checkKeys(at+".keys", a.Keys)
	if a.JWT != nil {
		p.checkJWT(at+".jwt", a.JWT)
		if c.PublicURL == "" && at != "admin_auth" {
			p.addFor([]string{at + ".jwt", "public_url"}, "needs public_url: clients are told by it where to get a token")
		}
	}
	if a.Passthrough != nil {
		p.checkPassthrough(at+".passthrough", a.Passthrough, c)
	}
	if a.TrustedHeader != nil {
		p.trustedHeader(at+".trusted_header", a.TrustedHeader)
	}
}

var (
	validPrincipal = regexp.MustCompile("^" + principalForm + "$")
	validHash      = regexp.MustCompile("^" + hashForm + "$")
)

// checkKeys checks each key, and that all differ: two principals with one key would be the same
// caller.
func (p *problems) checkKeys(list string, keys []BearerKey) {
	seen := map[string]int{}
	for i, k := range keys {
		at := fmt.Sprintf("%s[%d]", list, i)
		principal, hash := k.Parts()
		hash = strings.ToLower(hash)
		first, known := seen[hash]
		switch {
		case !validPrincipal.MatchString(principal):
			p.add(at, "a key is PRINCIPAL:HASH, and a principal has letters, digits, '.', '_', '@', '+' and '-', begins with a letter or digit, and has at most 128")
		case !validHash.MatchString(hash):
			p.add(at, "a key is PRINCIPAL:HASH, and the hash has 64 hexadecimal digits, as \"taskgate hash-key\" prints them")
		case hash == HashKey(""): // from an empty variable or file
			p.add(at, "this is the hash of nothing: the key was empty")
		case known:
			p.add(at, "this key is already that of keys[%d]", first)
		default:
			seen[hash] = i
		}
	}
}

func (p *problems) checkJWT(at string, j *JWT) {
	p.checkFields(at, j)
	p.secureURL(at+".issuer", j.Issuer)
	p.secureURL(at+".jwks_url", j.JWKSURL)
	if u, err := url.Parse(j.Issuer); err == nil && u.RawQuery != "" {
		p.add(at+".issuer", "an issuer has no query (RFC 8414)")
	}
	if len(j.Audiences) == 0 {
		p.addFor([]string{at + ".audiences", at}, "audiences is required: without it, tokens for any other service of the issuer would do")
	}
	p.checkAudiences(at, j.Audiences)
	for i, scope := range j.Scopes {
		if !isScope(scope) {
			p.add(fmt.Sprintf("%s.scopes[%d]", at, i), "not a scope")
		}
	}
}

func (p *problems) checkAudiences(at string, audiences []string) {
	for i, audience := range audiences {
		if audience == "" {
			p.add(fmt.Sprintf("%s.audiences[%d]", at, i), "is empty")
		}
	}
}

// isScope reports whether s is one scope, as RFC 6749 section 3.3 spells them.
func isScope(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
}

// secureURL checks an address at which only its owner may answer.
func (p *problems) secureURL(at, raw string) {
	p.checkURL(at, raw, "must begin with https://, or with http:// and a loopback address", "credentials do not belong in this URL",
		func(u *url.URL) bool {
			return u.Hostname() == "" || u.Scheme == "https" || u.Scheme == "http" && IsLoopback(u.Hostname())
		})
}

// IsLoopback reports whether a name or address can only mean this machine. An IPv6 address comes
// without brackets.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// publicURL checks the address by which clients reach the gateway.
func (p *problems) publicURL(raw string) {
	before := len(*p)
	p.secureURL("public_url", raw)
	if u, err := url.Parse(raw); len(*p) == before && err == nil && raw != "" && u.Scheme+"://"+u.Host != raw {
		p.add("public_url", "ends after the host and port: write https://host or https://host:port")
	}
}

func (p *problems) trustedHeader(at string, h *TrustedHeader) {
	p.checkFields(at, h)
	switch {
	case h.Name == "":
	case !httpguts.ValidHeaderFieldName(h.Name):
		p.add(at+".name", "not the name of a header")
	case reservedFor(h.Name) != "":
		p.add(at+".name", "this header has another meaning")
	}
	if len(h.From) == 0 {
		p.addFor([]string{at + ".from", at}, "from is required: anybody could send the header")
	}
	for i, from := range h.From {
		if _, err := ParseNetwork(from); err != nil {
			p.add(fmt.Sprintf("%s.from[%d]", at, i), "not an address or a network: write 10.1.2.3 or 10.0.0.0/8")
		}
	}
}

// ParseNetwork reads an entry of from: a network, or the network of one address.
func ParseNetwork(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(s)
	if err == nil && network.Addr().Is4In6() {
		return network, fmt.Errorf("write %s as an IPv4 network", s)
	}
	return network.Masked(), err
}

// checkPassthrough checks how the callers of a server that signs them in are known.
func (p *problems) checkPassthrough(at string, t *Passthrough, c *Config) {
	p.checkFields(at, t)
	p.checkAudiences(at, t.Audiences)
	if i := t.Introspection; i != nil {
		at := at + ".introspection"
		p.checkFields(at, i)
		p.secureURL(at+".url", i.URL)
	}
	if c.PublicURL == "" {
		p.addFor([]string{at, "public_url"}, "needs public_url: clients are told by it where to get a token")
	}
	if !c.OwnsStore() && len(c.StateKeys) == 0 {
		p.addFor([]string{at, "state_keys"}, "needs state_keys: replicas have to agree on whose token is whose")
	}
}

package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"taskgate/gateway/config"
)

// maxIssuers bounds the issuers that are taken from a server's metadata: the first ones.
const maxIssuers = 8

// trust are the issuers that the metadata of a server names.
type trust struct {
	of      *document
	issuers []string
	tokens  map[string]*tokens // by issuer, of those that have signed one; guarded by passthrough.mu
}

// lookUp finds the owner of a token. A JWT of an issuer of the server is verified as such. The
// introspection endpoint is shown a token that names no issuer, or that names the issuer there: a token
// goes only to an issuer that it names. An error says that asking failed.
func (p *passthrough) lookUp(ctx context.Context, token, address string, before *verification) (*verification, error) {
	t, err := p.trustedIssuers(ctx)
	if err != nil {
		return nil, err
	}
	from := issuerOf(token)
	if slices.Contains(t.issuers, from) {
		return p.asJWT(ctx, t, from, token)
	}
	if p.cfg.Introspection != nil && (from == "" || sameHost(from, p.cfg.Introspection.URL)) {
		return p.lookups.lookUp(ctx, address, before, func() (*verification, error) { return p.introspectToken(ctx, t, token, before) })
	}
	return newVerification(unverified), nil
}

// sameHost reports whether two addresses are of one origin.
func sameHost(a, b string) bool {
	one, err := url.Parse(a)
	two, failed := url.Parse(b)
	return err == nil && failed == nil && sameOrigin(one, two)
}

// newVerification is remembered for a while of a token of which only this verdict is known.
func newVerification(v verdict) *verification {
	return &verification{verdict: v, until: time.Now().Add(rememberFor)}
}

// newVerified is what is known of a verified token, without the hash.
func newVerified(who names, g grade, until time.Time) *verification {
	g.Owner, g.Client = newPrincipal("passthrough", who.issuer, who.name, who.client).Owner(), who.client != ""
	return &verification{verdict: verified, names: who, grade: g, until: until}
}

// trustedIssuers returns the issuers that the server's metadata names now; none for a server without
// metadata.
func (p *passthrough) trustedIssuers(ctx context.Context) (*trust, error) {
	d, err := p.resource.metadata.getAnswer(ctx)
	if errors.Is(err, ErrNoMetadata) {
		d, err = &document{}, nil
	}
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trust != nil && p.trust.of.Resource == d.Resource && slices.Equal(p.trust.of.Servers, d.Servers) {
		return p.trust, nil
	}
	if p.trust != nil {
		p.known.Purge()
		p.others.Purge()
	}
	t := &trust{of: d, tokens: map[string]*tokens{}}
	for _, issuer := range d.Servers {
		if p.mayAsk(issuer) && len(t.issuers) < maxIssuers {
			t.issuers = append(t.issuers, issuer)
		}
	}
	p.trust = t
	return t, nil
}

// mayAsk reports whether tokens of an issuer may be verified: it has https, or is on this machine, as the
// server is. So a server can send the gateway to no other place.
func (p *passthrough) mayAsk(issuer string) bool {
	u, err := url.Parse(issuer)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && config.IsLoopback(u.Hostname()) && p.resource.plain()
}

// issuerOf is the issuer that a JWT names; "" for any other token. It only chooses the keys that the
// signature is checked with.
func issuerOf(token string) string {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return ""
	}
	var c jwt.Claims
	if parsed.UnsafeClaimsWithoutVerification(&c) != nil {
		return ""
	}
	return c.Issuer
}

// asJWT verifies a token of an issuer of the server.
func (p *passthrough) asJWT(ctx context.Context, t *trust, issuer, token string) (*verification, error) {
	of, err := p.tokensOf(t, issuer)
	if err != nil {
		return nil, err
	}
	g, err := of.verifyToken(ctx, token)
	switch {
	case err == nil:
		f := newVerified(g.names, g.grade, g.Expires)
		f.grant = g
		return f, nil
	case errors.Is(err, jwt.ErrExpired), errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return newVerification(refuted), nil
	case errors.Is(err, errKeyless):
	case errors.Is(err, errNoKeys), ctx.Err() != nil:
		return nil, err
	}
	p.log.DebugContext(ctx, "a token is not verified", "reason", err)
	return newVerification(unverified), nil
}

// tokensOf are the tokens of an issuer that the server takes.
func (p *passthrough) tokensOf(t *trust, issuer string) (*tokens, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := t.tokens[issuer]; of != nil {
		return of, nil
	}
	of, err := newTokens(&config.JWT{Issuer: issuer, Audiences: p.audiences(t)}, newIssuer(issuer, "", p.work, p.log), p.page, p.claims, p.log) // the verifications are remembered here
	if err != nil {
		return nil, err
	}
	t.tokens[issuer] = of
	return of, nil
}

// audiences are what a token may be meant for: the server, by its own name or by the one that it has
// here, and the gateway in its place, as clients are told. Metadata may name another resource only if the
// gateway has taken over the name of the server.
func (p *passthrough) audiences(t *trust) []string {
	if !p.resource.Is(t.of.Resource) && !p.resource.renamed {
		return p.public
	}
	return append(sameAddress(t.of.Resource), p.public...)
}

// sameAddress spells addresses with and without a slash at the end: clients differ in that for the root
// of a host.
func sameAddress(addresses ...string) (all []string) {
	for _, at := range addresses {
		if at = strings.TrimSuffix(at, "/"); at != "" {
			all = append(all, at, at+"/")
		}
	}
	return all
}

// introspectToken asks the introspection endpoint (RFC 7662). An answer without an audience proves
// nothing: a token for any other service would do.
func (p *passthrough) introspectToken(ctx context.Context, t *trust, token string, before *verification) (*verification, error) {
	at := p.cfg.Introspection
	form := url.Values{"token": {token}, "token_type_hint": {"access_token"}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at.URL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.SetBasicAuth(url.QueryEscape(at.ClientID), url.QueryEscape(at.ClientSecret)) // RFC 6749 section 2.3.1
	body, err := p.web.requestDocument(r)
	if err != nil {
		p.log.WarnContext(ctx, "the introspection endpoint does not answer", "err", err)
		return nil, err
	}
	var says struct {
		claims
		Active   bool            `json:"active"`
		Audience *jwt.Audience   `json:"aud"` // nil, as null, is for nobody
		ID       json.RawMessage `json:"jti"` // not read, so of any kind
	}
	var all map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(body, &says), json.Unmarshal(body, &all)); err != nil {
		p.log.WarnContext(ctx, "the introspection endpoint answers something else")
		return nil, contentError("not an introspection response")
	}
	audience := jwt.Audience{}
	if says.Audience != nil {
		audience = *says.Audience
	}
	now := time.Now()
	expires, until := timeOf(says.Expiry), now.Add(rememberFor)
	if !expires.IsZero() {
		expires = expires.Add(clockLeeway)
		if expires.Before(until) {
			until = expires
		}
	}
	switch {
	case !says.Active && (before == nil || before.verdict == unverified):
		return newVerification(unverified), nil // another authorization server of the server may know it
	case !says.Active, !expires.IsZero() && !now.Before(expires), now.Add(clockLeeway).Before(timeOf(says.NotBefore)):
		return newVerification(refuted), nil
	case says.Subject == "", !slices.ContainsFunc(p.audiences(t), audience.Contains):
		return newVerification(unverified), nil
	}
	from := cmp.Or(says.Issuer, at.URL) // the endpoint that says so stands in for the issuer
	who := names{issuer: from, name: says.Subject, client: says.id()}
	if p.claims {
		who.called = readClaims(all)
	}
	return newVerified(who, grade{
		Audience: slices.Sorted(slices.Values(audience)), Scopes: scopesOf(says.Scope), Issued: timeOf(says.IssuedAt), Expires: expires,
	}, until), nil
}

// algorithms are those that a token may be signed with. All are asymmetric: a key that verifies a
// symmetric signature can also make one.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

package auth

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// The challenges of the gateway of the tests.
const (
	tokenNeeded  = `Bearer resource_metadata="` + wiretest.PublicURL + `/.well-known/oauth-protected-resource/up/mcp"`
	tokenInvalid = tokenNeeded + `, error="invalid_token", error_description="the token is not valid here"`
)

// startTokens is the method of an upstream that takes tokens, while its keys are kept.
func startTokens(t *testing.T, j *config.JWT) Method {
	t.Helper()
	c := config.Default()
	c.PublicURL, c.Auth.JWT = wiretest.PublicURL, j
	c.Upstreams = []*config.Upstream{config.NewUpstream("up", "http://127.0.0.1:1/")}
	wiretest.Check(t, c.Validate())
	return start(t, c).Of("up")
}

// start has the keys of a configuration kept until the test ends.
func start(t *testing.T, c *config.Config) *Methods {
	t.Helper()
	return startWith(t, c, nil)
}

// startWith starts the methods of one replica.
func startWith(t *testing.T, c *config.Config, credentials *Credentials) *Methods {
	t.Helper()
	m := wiretest.Must(New(c, Options{Logger: slog.New(slog.DiscardHandler), Credentials: credentials}))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return m
}

// unsigned is a token whose header says what it likes, and whose signature is what is given.
func unsigned(t *testing.T, header, claims map[string]any, signature string) string {
	t.Helper()
	part := func(v any) string {
		b := wiretest.Must(json.Marshal(v))(t)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return part(header) + "." + part(claims) + "." + signature
}

// wrongTokens are alleged tokens of alice at an issuer, each wrong in one thing beside these claims, which are good.
func wrongTokens(t *testing.T, i *wiretest.Issuer, claims map[string]any) map[string]string {
	t.Helper()
	other := wiretest.NewIssuer(t, "")
	public := wiretest.Must(x509.MarshalPKIXPublicKey(i.Key().Public().Key))(t)
	secret := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	but := func(name string, value any) map[string]any {
		all := maps.Clone(claims)
		all[name] = value
		return all
	}
	alices := i.Claims("alice", claims)
	ours := map[string]any{"alg": "ES256", "kid": i.Key().KeyID, "typ": "at+jwt"}
	good := i.Token("alice", claims)
	head, signature := good[:strings.LastIndex(good, ".")], good[strings.LastIndex(good, ".")+1:]
	renamed := *i.Key()
	renamed.KeyID = "key-of-nobody"
	return map[string]string{
		"another issuer":             other.Token("alice", claims),
		"another issuer's key":       wiretest.SignedToken(t, jose.ES256, other.Key(), alices),
		"another iss":                i.Token("alice", but("iss", other.URL)),
		"iss with a slash":           i.Token("alice", but("iss", i.URL+"/")),
		"no iss":                     i.Token("alice", but("iss", nil)),
		"another audience":           i.Token("alice", but("aud", "https://elsewhere.example")),
		"other audiences":            i.Token("alice", but("aud", []string{"a", "https://elsewhere.example/"})),
		"no audience":                i.Token("alice", but("aud", nil)),
		"no exp":                     i.Token("alice", but("exp", nil)),
		"no sub":                     i.Token("", but("sub", nil)),
		"empty sub":                  i.Token("", claims),
		"sub is a number":            i.Token("", but("sub", 7)),
		"wrong kid":                  wiretest.SignedToken(t, jose.ES256, renamed, alices),
		"HS256 with the public key":  wiretest.SignedToken(t, jose.HS256, jose.JSONWebKey{Key: secret, KeyID: i.Key().KeyID}, alices),
		"ES384":                      unsigned(t, map[string]any{"alg": "ES384", "kid": i.Key().KeyID}, alices, signature),
		"none":                       unsigned(t, map[string]any{"alg": "none", "kid": i.Key().KeyID}, alices, ""),
		"none in odd case":           unsigned(t, map[string]any{"alg": "nOnE"}, alices, ""),
		"another's signature":        unsigned(t, ours, i.Claims("bob", claims), signature),
		"no signature":               head + ".",
		"a key of its own":           unsigned(t, map[string]any{"alg": "ES256", "jwk": other.Key().Public()}, alices, signature),
		"an extension it must know":  wiretest.SignedToken(t, jose.ES256, i.Key(), alices, map[jose.HeaderKey]any{"crit": []string{"x"}, "x": 1}),
		"a logout token":             wiretest.SignedToken(t, jose.ES256, i.Key(), alices, map[jose.HeaderKey]any{"typ": "logout+jwt"}),
		"two parts":                  head,
		"a key and no token":         wiretest.AliceKey,
		"encrypted, or so it claims": "a.b.c.d.e",
	}
}

// TestTokens probes everything that a token can be wrong in: all of it is refused in the same
// words (Z3).
func TestTokens(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	m := startTokens(t, wiretest.WithTokens(config.Default(), i))
	soon, past := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Minute).Unix()
	wrong := wrongTokens(t, i, map[string]any{})
	wrong["another path"] = i.Token("alice", map[string]any{"aud": []string{"a", wiretest.Audience + "/"}})
	wrong["expired"] = i.Token("alice", map[string]any{"exp": past})
	wrong["not yet valid"] = i.Token("alice", map[string]any{"nbf": soon})
	wrong["issued in the future"] = i.Token("alice", map[string]any{"iat": soon})
	for name, token := range wrong {
		t.Run(name, func(t *testing.T) {
			c, refusal := m.Identify(request("Bearer " + token))
			if refusal == nil || refusal.Status != http.StatusUnauthorized || refusal.Challenge != tokenInvalid || c.Principal.Subject != "" {
				t.Errorf("%v, %v", c, refusal)
			}
		})
	}
	for name, token := range map[string]string{
		"good":                i.Token("alice", nil),
		"among its audiences": i.Token("alice", map[string]any{"aud": []string{"https://elsewhere.example", wiretest.Audience}}),
		"within the leeway":   i.Token("alice", map[string]any{"exp": time.Now().Add(-10 * time.Second).Unix()}),
		"plain JWT":           wiretest.SignedToken(t, jose.ES256, i.Key(), i.Claims("alice", nil), map[jose.HeaderKey]any{"typ": "JWT"}),
	} {
		if c, refusal := m.Identify(request("Bearer " + token)); refusal != nil || c.Principal.Subject == "" {
			t.Errorf("%s: %v", name, refusal)
		}
	}
}

// TestTokenHeaders: a token is in one header, and nowhere else (Z2).
func TestTokenHeaders(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	m := startTokens(t, wiretest.WithTokens(config.Default(), i))
	token := i.Token("alice", nil)
	for name, c := range map[string]struct {
		values []string
		status int
		want   string
	}{
		"none":          {nil, 401, tokenNeeded},
		"another":       {[]string{"Basic " + token}, 401, tokenNeeded},
		"two":           {[]string{"Bearer " + token, "Bearer " + token}, 400, tokenNeeded + `, error="invalid_request", error_description="Authorization must be: Bearer TOKEN"`},
		"two in one":    {[]string{"Bearer " + token + ", Bearer " + token}, 400, tokenNeeded + `, error="invalid_request", error_description="Authorization must be: Bearer TOKEN"`},
		"in the URL":    {nil, 401, tokenNeeded},
		"in the cookie": {nil, 401, tokenNeeded},
	} {
		r := request("")
		r.URL.RawQuery = "access_token=" + token
		r.Header.Set("Cookie", "access_token="+token)
		r.Header["Authorization"] = c.values
		if _, refusal := m.Identify(r); refusal == nil || refusal.Status != c.status || refusal.Challenge != c.want {
			t.Errorf("%s: %v", name, refusal)
		}
	}
}

// TestTokenPrincipal: a principal is its issuer and its subject, whatever else is in its
// tokens, and never equals one that signed in otherwise (Z6).
func TestTokenPrincipal(t *testing.T) {
	i, other := wiretest.NewIssuer(t, "/tenant"), wiretest.NewIssuer(t, "")
	j := wiretest.WithTokens(config.Default(), i)
	elsewhere := *wiretest.WithTokens(config.Default(), other)
	m, there := startTokens(t, j), startTokens(t, &elsewhere)
	subject := func(m Method, token string) string {
		t.Helper()
		c, refusal := m.Identify(request("Bearer " + token))
		if refusal != nil {
			t.Fatal(refusal)
		}
		return c.Principal.Subject
	}
	alice := subject(m, i.Token("alice", nil))
	if again := subject(m, i.Token("alice", map[string]any{"jti": "another", "aud": []string{"x", wiretest.Audience}})); again != alice {
		t.Errorf("a refreshed token is of %s, not of %s", again, alice)
	}
	seen := map[string]string{"alice": "the token", "": "anonymous"}
	for name, other := range map[string]string{
		"alice":              alice,
		"another subject":    subject(m, i.Token("bob", nil)),
		"another issuer":     subject(there, other.Token("alice", nil)),
		"a subject with NUL": subject(m, i.Token("alice\x00", nil)),
	} {
		if seen[other] != "" || strings.Contains(other, "alice") {
			t.Errorf("%s is the principal of %s: %s", name, seen[other], other)
		}
		seen[other] = name
	}
}

// TestScopes: what every token needs, and what a tool needs besides, is told with 403 (Z3).
func TestScopes(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	j := wiretest.WithTokens(config.Default(), i)
	j.Scopes = []string{"mcp:use", "mcp:read"}
	m := startTokens(t, j)
	lacking := func(scopes string) string {
		return tokenNeeded + `, scope="` + scopes + `", error="insufficient_scope", error_description="the token has not all scopes that this needs"`
	}
	if _, refusal := m.Identify(request("")); refusal == nil || refusal.Challenge != tokenNeeded+`, scope="mcp:use mcp:read"` {
		t.Errorf("without a token: %v", refusal)
	}
	for name, claims := range map[string]map[string]any{
		"no scope": nil, "another": {"scope": "mcp:user mcp:read"}, "half": {"scp": []string{"mcp:use"}}, "odd": {"scope": 7},
	} {
		_, refusal := m.Identify(request("Bearer " + i.Token("alice", claims)))
		if refusal == nil || refusal.Status != http.StatusForbidden || refusal.Challenge != lacking("mcp:use mcp:read") {
			t.Errorf("%s: %v", name, refusal)
		}
	}
	for name, claims := range map[string]map[string]any{
		"text": {"scope": "mcp:use  mcp:read tool:run"}, "list": {"scp": []string{"mcp:read", "mcp:use", "tool:run"}}, "both": {"scope": "mcp:use tool:run", "scp": "mcp:read"},
	} {
		c, refusal := m.Identify(request("Bearer " + i.Token("alice", claims)))
		if refusal != nil {
			t.Errorf("%s: %v", name, refusal)
			continue
		}
		if refusal := c.Lacks("tool:run mcp:use"); refusal != nil {
			t.Errorf("%s: %v", name, refusal)
		}
		if refusal := c.Lacks("tool:run tool:stop"); refusal == nil || refusal.Challenge != lacking("mcp:use mcp:read tool:run tool:stop") {
			t.Errorf("%s: %v", name, refusal)
		}
	}
	if refusal := (Caller{}).Lacks("tool:run"); refusal == nil || refusal.Status != http.StatusForbidden {
		t.Errorf("a caller without a token: %v", refusal)
	}
}

// TestRememberedTokens: what is remembered of a token does not outlive it, nor the key that it
// was signed with.
func TestRememberedTokens(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	j := wiretest.WithTokens(config.Default(), i)
	synctest.Test(t, func(t *testing.T) {
		source := quietIssuer(t, func(context.Context) (*keySet, error) { return keysIn(t, i.Keys()), nil })
		source.name = i.URL
		m := wiretest.Must(newTokens(j, source, "x", false, slog.New(slog.DiscardHandler)))(t)
		want := func(what, token string, good bool) {
			t.Helper()
			if _, refusal := m.Identify(request("Bearer " + token)); (refusal == nil) != good {
				t.Errorf("%s: %v", what, refusal)
			}
		}
		short, old := i.Token("alice", map[string]any{"exp": time.Now().Add(time.Minute).Unix()}), i.Token("alice", nil)
		want("good", short, true)
		<-time.After(time.Minute + clockLeeway - time.Millisecond)
		want("still good", short, true)
		<-time.After(2 * time.Second)
		want("expired", short, false)

		want("good", old, true)
		i.NewKey()
		source.keys.expireAnswer()
		want("of the old key", old, true)
		want("of the new key", i.Token("alice", nil), true)
		i.Withdraw()
		source.keys.expireAnswer()
		want("of a key that was withdrawn", old, false)
		want("of the new key", i.Token("alice", nil), true)
	})
}

// TestAudienceOfAnotherUpstream: a token that is meant for the address of one upstream, however that ends, is nobody's
// at another one, also where both have the same auth; one that is meant for the gateway is taken at both. So it is where
// tokens are passed through.
func TestAudienceOfAnotherUpstream(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	audiences := map[string]string{
		wiretest.PublicURL + "/up/mcp": "up", wiretest.PublicURL + "/up/mcp/": "up", wiretest.PublicURL + "/other/mcp": "other", "api://all": "up other",
	}
	all := slices.Sorted(maps.Keys(audiences))
	own := config.Default()
	own.Upstreams = []*config.Upstream{config.NewUpstream("up", "http://127.0.0.1:1/")}
	wiretest.WithTokens(own, i).Audiences = all
	passed := passConfig(t, newOAuthServer(t, i.URL), func(p *config.Passthrough) { p.Audiences = all })
	for prefix, c := range map[string]*config.Config{"jwt:": own, "passthrough:": passed} {
		c.Upstreams = append(c.Upstreams, config.NewUpstream("other", newOAuthServer(t, i.URL).URL))
		wiretest.Check(t, c.Validate())
		m := start(t, c)
		for audience, takes := range audiences {
			r := request("Bearer " + i.Token("alice", map[string]any{"aud": audience}))
			for _, name := range []string{"up", "other"} {
				if who, refusal := m.Of(name).Identify(r); strings.HasPrefix(who.Principal.Subject, prefix) != strings.Contains(takes, name) {
					t.Errorf("a token for %s at %s is %s %+v, %v", audience, name, prefix, who.Principal, refusal)
				}
			}
		}
	}
}

// TestNamelessKeys: neither an issuer nor a token need name keys. A token of each of several is good, with and without
// the name of a key, at an issuer that names its keys and at one that does not.
func TestNamelessKeys(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	signed := []string{i.Token("alice", nil)}
	for range 3 {
		i.NameKeys(false)
		signed = append(signed, i.Token("alice", nil))
		i.NewKey()
	}
	for _, named := range []bool{false, true} {
		i.NameKeys(named)
		m := startTokens(t, wiretest.WithTokens(config.Default(), i))
		for n, token := range append(signed, wiretest.NewIssuer(t, "").Token("alice", map[string]any{"iss": i.URL})) {
			if _, refusal := m.Identify(request("Bearer " + token)); (refusal == nil) != (n < len(signed)) {
				t.Errorf("keys that are named: %v, token %d: %v", named, n, refusal)
			}
		}
	}
}

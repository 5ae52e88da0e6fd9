package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// oauthServer is a server as far as the gateway asks it what it is.
type oauthServer struct {
	URL string

	mu       sync.Mutex
	pages    map[string]string // by path
	status   int               // of all pages; 0 for as they are
	requests []string          // their paths
	header   http.Header       // of the last one
	host     string            // likewise
}

// newOAuthServer is at /mcp, and has metadata that names these issuers.
func newOAuthServer(t *testing.T, issuers ...string) *oauthServer {
	t.Helper()
	s := &oauthServer{pages: map[string]string{}}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	s.URL = web.URL + "/mcp"
	s.set(wellKnown+"/mcp", issuers...)
	return s
}

func (s *oauthServer) set(path string, issuers ...string) string {
	text, _ := json.Marshal(map[string]any{"resource": s.URL, "authorization_servers": issuers})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = string(text)
	return string(text)
}

func (s *oauthServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.header, s.host = append(s.requests, r.URL.Path), r.Header.Clone(), r.Host
	page, ok := s.pages[r.URL.Path]
	switch {
	case s.status != 0:
		w.Header().Set("Location", s.URL)
		w.WriteHeader(s.status)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	default:
		fmt.Fprint(w, page)
	}
}

func (s *oauthServer) setStatus(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *oauthServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.requests...)
}

// stateKey is that of the gateways of the tests.
var stateKey = config.StateKey(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)))

// passConfig is the configuration of a gateway in front of a server.
func passConfig(t *testing.T, s *oauthServer, change ...func(*config.Passthrough)) *config.Config {
	t.Helper()
	c := config.Default()
	c.PublicURL, c.StateKeys = wiretest.PublicURL, []config.StateKey{stateKey}
	c.Auth.Passthrough = config.NewPassthrough()
	c.Auth.Passthrough.Unverified = config.UnverifiedBlock // so that it shows who is verified
	for _, f := range change {
		f(c.Auth.Passthrough)
	}
	c.Upstreams = []*config.Upstream{config.NewUpstream("up", s.URL)}
	wiretest.Check(t, c.Validate())
	return c
}

func startPassthrough(t *testing.T, s *oauthServer, change ...func(*config.Passthrough)) *passthrough {
	t.Helper()
	return start(t, passConfig(t, s, change...)).Of("up").(*passthrough)
}

func withIntrospection(i *wiretest.Issuer) func(*config.Passthrough) {
	return func(p *config.Passthrough) {
		p.Introspection = &config.Introspection{URL: i.URL + "/introspect", ClientID: "gateway", ClientSecret: wiretest.IntrospectionSecret}
	}
}

// verifying is passthrough in front of a server that names an issuer, whose keys say whose a token is.
func verifying(t *testing.T, change ...func(*config.Passthrough)) (*wiretest.Issuer, *oauthServer, *passthrough) {
	t.Helper()
	i := wiretest.NewIssuer(t, "")
	s := newOAuthServer(t, i.URL)
	return i, s, startPassthrough(t, s, change...)
}

// introspected is verifying with an endpoint that says so of opaque tokens, too.
func introspected(t *testing.T) (i *wiretest.Issuer, s *oauthServer, m *passthrough) {
	t.Helper()
	i = wiretest.NewIssuer(t, "")
	s = newOAuthServer(t, i.URL)
	return i, s, startPassthrough(t, s, withIntrospection(i))
}

// wantRefused wants a token to be refused with a status, and to be nobody's.
func wantRefused(t *testing.T, m Method, what, token string, status int) {
	t.Helper()
	if c, refusal := m.Identify(request("Bearer " + token)); refusal == nil || refusal.Status != status || c.Principal.Subject != "" {
		t.Errorf("%s: %+v, %v", what, c.Principal, refusal)
	}
}

// shows is what goes on to the server.
func (c Caller) shows() string {
	authorization, _ := c.Credential(nil).Own()
	return authorization
}

// letIn asks for a caller that must be let through.
func letIn(t *testing.T, m Method, authorization ...string) Caller {
	t.Helper()
	c, refusal := m.Identify(request(authorization...))
	if refusal != nil {
		t.Fatalf("refused: %+v", *refusal)
	}
	return c
}

// TestPassthroughPrincipal: whose a token is, is what its issuer says, whatever token it is and
// however the issuer says it.
func TestPassthroughPrincipal(t *testing.T) {
	i, other := wiretest.NewIssuer(t, ""), wiretest.NewIssuer(t, "/other")
	s := newOAuthServer(t, i.URL, other.URL)
	m := startPassthrough(t, s, withIntrospection(i))
	token := func(i *wiretest.Issuer, sub, aud string) string { return i.Token(sub, map[string]any{"aud": aud}) }

	alice := letIn(t, m, "Bearer "+token(i, "alice", s.URL))
	if !strings.HasPrefix(alice.Principal.Subject, "passthrough:") || alice.Principal.NoTasks {
		t.Fatalf("alice is %+v", alice.Principal)
	}
	for name, authorization := range map[string]string{
		"another token":               "Bearer " + i.Token("alice", map[string]any{"aud": s.URL, "jti": "2"}),
		"meant for the gateway":       "bearer  " + token(i, "alice", wiretest.PublicURL+"/up/mcp"),
		"among its audiences":         "Bearer " + i.Token("alice", map[string]any{"aud": []string{"x", s.URL + "/"}}),
		"opaque, known to its issuer": "Bearer " + i.Opaque("alice", map[string]any{"iss": i.URL}),
	} {
		c := letIn(t, m, authorization)
		if c.Principal != alice.Principal {
			t.Errorf("%s: %+v", name, c.Principal)
		}
		if c.shows() != authorization {
			t.Errorf("%s: goes on as %q", name, c.shows())
		}
	}
	seen := map[shim.Principal]string{alice.Principal: "alice"}
	for name, c := range map[string]Caller{
		"bob":              letIn(t, m, "Bearer "+token(i, "bob", s.URL)),
		"another issuer's": letIn(t, m, "Bearer "+token(other, "alice", s.URL)),
		"nobody":           letIn(t, m),
		"unknown":          letIn(t, m, "Bearer unknown"),
		"unknown, too":     letIn(t, m, "Bearer unknown2"),
		"another scheme":   letIn(t, m, "Basic dW5rbm93bg=="),
		"its name":         letIn(t, m, "Bearer "+alice.Principal.Subject[len("passthrough:"):]),
	} {
		if is, twice := seen[c.Principal]; twice {
			t.Errorf("%s is %s", name, is)
		}
		seen[c.Principal] = name
	}
	if c := letIn(t, m); c.Principal.Subject != "" || c.shows() != "" || !c.Shows() || c.Principal.NoTasks {
		t.Errorf("anonymous is %+v", c)
	}
	if got := fmt.Sprint(alice.Names()); got != fmt.Sprintf("[issuer %s name alice]", i.URL) {
		t.Error("in the audit log alice is", got)
	}
}

// TestPassthroughProbes: a token that is wrong in some way is never its alleged owner's.
func TestPassthroughProbes(t *testing.T) {
	i, s, m := verifying(t)
	claims := func(name string, value any) map[string]any { return map[string]any{"aud": s.URL, name: value} }
	good := i.Token("alice", claims("jti", "1"))
	alice := letIn(t, m, "Bearer "+good).Principal
	wrong := wrongTokens(t, i, claims("jti", "2"))
	wrong["meant for the name of one"] = i.Token("alice", claims("aud", "up"))
	wrong["opaque, of another issuer"] = wiretest.NewIssuer(t, "").Opaque("alice", nil)
	for name, token := range wrong {
		c, refusal := m.Identify(request("Bearer " + token))
		if refusal != nil || !c.Principal.NoTasks || !strings.HasPrefix(c.Principal.Subject, "token:") || c.Principal.Subject == alice.Subject {
			t.Errorf("%s: %+v, %v", name, c.Principal, refusal)
		}
		if c.shows() != "Bearer "+token {
			t.Errorf("%s: the server is not shown it", name)
		}
	}
	const want = `Bearer resource_metadata="` + wiretest.PublicURL + `/.well-known/oauth-protected-resource/up/mcp", error="invalid_token", error_description="the token is not valid any more"`
	for name, token := range map[string]string{
		"expired":       i.Token("alice", claims("exp", time.Now().Add(-time.Hour).Unix())),
		"not yet valid": i.Token("alice", claims("nbf", time.Now().Add(time.Hour).Unix())),
	} {
		c, refusal := m.Identify(request("Bearer " + token))
		if refusal == nil || refusal.Status != http.StatusUnauthorized || refusal.Challenge != want || c.Principal.Subject != "" {
			t.Errorf("%s: %+v, %v", name, c, refusal)
		}
	}
	inURL := request()
	inURL.URL.RawQuery = "access_token=" + good
	if c, refusal := m.Identify(inURL); refusal != nil || c.Principal.Subject != "" || c.shows() != "" {
		t.Errorf("a token in the URL: %+v, %v", c, refusal)
	}
	for name, values := range map[string][]string{
		"twice": {"Bearer " + good, "Bearer " + good}, "a list": {"Bearer " + good + ", Bearer " + good}, "empty": {""}, "no token": {"Bearer "},
	} {
		if _, refusal := m.Identify(request(values...)); refusal == nil || refusal.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", name, refusal)
		}
	}
}

// TestIntrospection: what the endpoint says decides, and an answer for another server is none.
func TestIntrospection(t *testing.T) {
	i, s, m := introspected(t)
	soon := time.Now().Add(time.Hour).Unix()
	jwt := letIn(t, m, "Bearer "+i.Token("alice", map[string]any{"aud": s.URL})).Principal
	if c := letIn(t, m, "Bearer "+i.Opaque("alice", map[string]any{"iss": i.URL, "exp": soon, "aud": s.URL, "jti": 7})); c.Principal != jwt {
		t.Errorf("by introspection alice is %+v, by JWT %+v", c.Principal, jwt)
	}
	if a, b := letIn(t, m, "Bearer "+i.Opaque("alice", nil)), letIn(t, m, "Bearer "+i.Opaque("alice", nil)); a.Principal != b.Principal || a.Principal.NoTasks {
		t.Errorf("without an issuer: %+v, %+v", a.Principal, b.Principal)
	}
	for name, token := range map[string]string{
		"meant for another": i.Opaque("alice", map[string]any{"aud": []string{"https://elsewhere.example"}}),
		"of another issuer": "unknown",
		"meant for nobody":  i.Opaque("alice", map[string]any{"aud": nil}),
		"meant for null":    i.Opaque("alice", map[string]any{"aud": json.RawMessage("null")}),
		"revoked, for null": i.Opaque("alice", map[string]any{"aud": json.RawMessage("null"), "active": false}),
		"without a subject": i.Opaque("", nil),
	} {
		if c := letIn(t, m, "Bearer "+token); !c.Principal.NoTasks {
			t.Errorf("%s: %+v", name, c.Principal)
		}
	}
	for name, token := range map[string]string{
		"expired":       i.Opaque("alice", map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}),
		"not yet valid": i.Opaque("alice", map[string]any{"nbf": soon}),
	} {
		wantRefused(t, m, name, token, http.StatusUnauthorized)
	}
	m.claims = true
	if c := letIn(t, m, "Bearer "+i.Opaque("alice", map[string]any{"groups": []string{"users", "admins"}})); !c.IsOneOf([]string{"groups=admins"}) || c.IsOneOf([]string{"groups=other"}) {
		t.Errorf("a claim that introspection says: %+v", c)
	}
	short := i.Opaque("alice", map[string]any{"exp": time.Now().Add(time.Second).Unix()})
	letIn(t, m, "Bearer "+short)
	if f, _ := m.known.Get(sha256.Sum256([]byte(short))); f == nil || f.until.After(time.Now().Add(time.Second+clockLeeway)) {
		t.Errorf("a short token is believed until %v", f)
	}
	m.cfg.Introspection.ClientSecret = "wrong"
	wantRefused(t, m, "with a wrong secret", i.Opaque("alice", nil), http.StatusServiceUnavailable)
}

// TestRefusedBeforeItIsVerified: the other replicas hear of a token once it is verified, also where the server
// had refused it before.
func TestRefusedBeforeItIsVerified(t *testing.T) {
	i, s, m := introspected(t)
	audience := json.RawMessage(`"https://elsewhere.example"`)
	token := i.Opaque("alice", map[string]any{"aud": &audience})
	letIn(t, m, "Bearer "+token).Credential(nil).hear("Bearer "+token, http.StatusUnauthorized)
	audience = json.RawMessage(`"` + s.URL + `"`)
	outdate(m, token)
	letIn(t, m, "Bearer "+token)
	if f := m.lastFoundOut(sha256.Sum256([]byte(token))); f.verdict != verified || !f.standing.known.Load() {
		t.Errorf("verdict %v, and known to the others: %v", f.verdict, f.standing.known.Load())
	}
}

// TestTokenThatLivesLonger: a token lives for as long as its issuer says last, also for a call that it came with
// before.
func TestTokenThatLivesLonger(t *testing.T) {
	i, _, m := introspected(t)
	token := i.Opaque("alice", map[string]any{"exp": time.Now().Add(time.Hour).Unix()})
	call := letIn(t, m, "Bearer "+token).request.credential
	call.own.Expires = time.Now() // as its issuer said when the call came
	outdate(m, token)
	letIn(t, m, "Bearer "+token)
	if _, good := call.Later(); !good {
		t.Error("the call has no token")
	}
}

// outdate makes what was found out of a token old.
func outdate(m *passthrough, token string) {
	f := m.lastFoundOut(sha256.Sum256([]byte(token)))
	f.until = time.Now().Add(-time.Second)
}

// TestTokensAreLookedUpOnce: many requests with one token ask once, and again when the answer is
// old. A token that was good and is not any more is refused, so that its client gets another.
func TestTokensAreLookedUpOnce(t *testing.T) {
	i, _, m := introspected(t)
	token := i.Opaque("alice", nil)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, refusal := m.Identify(request("Bearer " + token)); refusal != nil {
				t.Error(refusal.Message)
			}
		})
	}
	all.Wait()
	alice := letIn(t, m, "Bearer "+token).Principal
	if i.Asked() != 1 {
		t.Errorf("asked %d times", i.Asked())
	}
	outdate(m, token)
	if letIn(t, m, "Bearer "+token).Principal != alice || i.Asked() != 2 {
		t.Errorf("asked %d times", i.Asked())
	}
	i.SetDown(true)
	outdate(m, token)
	wantRefused(t, m, "while the issuer is down", token, http.StatusServiceUnavailable)
	i.SetDown(false)
	i.Revoke(token)
	wantRefused(t, m, "revoked", token, http.StatusUnauthorized)
}

// TestUnverified: what becomes of callers whose token nobody knows. It is said once for each
// upstream, without the token.
func TestUnverified(t *testing.T) {
	s := newOAuthServer(t) // it names no issuer
	var text bytes.Buffer
	of := func(key string, how config.Unverified) Method {
		c := passConfig(t, s, func(p *config.Passthrough) { p.Unverified = how })
		c.StateKeys[0] = config.StateKey(key)
		m := wiretest.Must(New(c, Options{Logger: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))}))(t)
		return m.Of("up")
	}
	block := of(string(stateKey), config.UnverifiedBlock)
	for _, token := range []string{"secret-1", "secret-2", "secret-1"} {
		if c := letIn(t, block, "Bearer "+token); !c.Principal.NoTasks || c.Principal.Subject == "" {
			t.Errorf("%+v", c.Principal)
		}
	}
	if n := strings.Count(text.String(), "level=WARN"); n != 1 || strings.Contains(text.String(), "secret-") {
		t.Errorf("%d warnings: %s", n, &text)
	}
	a, b := of(string(stateKey), config.UnverifiedToken), of(string(stateKey), config.UnverifiedToken)
	one := letIn(t, a, "Bearer secret-1").Principal
	switch {
	case one.NoTasks:
		t.Error("it gets no tasks")
	case letIn(t, b, "Bearer secret-1").Principal != one:
		t.Error("another replica takes it for somebody else")
	case letIn(t, a, "Bearer secret-2").Principal == one:
		t.Error("two tokens are one principal")
	}
	other := of(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{2}, 32)), config.UnverifiedToken)
	if letIn(t, other, "Bearer secret-1").Principal == one {
		t.Error("the hash does not depend on the key")
	}
}

// TestNoKeysOfTheIssuer: while the keys cannot be had nobody is let in as somebody; an issuer that
// publishes none has tokens that cannot be verified.
func TestNoKeysOfTheIssuer(t *testing.T) {
	i, s, m := verifying(t)
	token := i.Token("alice", map[string]any{"aud": s.URL})
	i.SetDown(true)
	wantRefused(t, m, "without keys", token, http.StatusServiceUnavailable)
	nobody := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(nobody.Close)
	s = newOAuthServer(t, nobody.URL)
	m = startPassthrough(t, s)
	if c := letIn(t, m, "Bearer "+i.Token("alice", map[string]any{"aud": s.URL, "iss": nobody.URL})); !c.Principal.NoTasks {
		t.Errorf("%+v", c.Principal)
	}
}

// TestWhoMayBeAsked: a server must not have the gateway look at any place that it names.
func TestWhoMayBeAsked(t *testing.T) {
	m := startPassthrough(t, newOAuthServer(t))
	remote := startPassthrough(t, &oauthServer{URL: "https://server.example/mcp"})
	for issuer, want := range map[string][2]bool{ // of a server on this machine, of any other
		"https://login.example":         {true, true},
		"https://login.example/tenant/": {true, true},
		"http://127.0.0.1:8080":         {true, false},
		"http://localhost":              {true, false},
		"http://[::1]:1/a":              {true, false},
		"http://login.example":          {},
		"http://169.254.169.254/latest": {},
		"http://127.0.0.1.example":      {},
		"https://user@login.example":    {},
		"https://login.example?a=b":     {},
		"ftp://login.example":           {},
		"file:///etc/passwd":            {},
		"":                              {},
	} {
		if got := [2]bool{m.mayAsk(issuer), remote.mayAsk(issuer)}; got != want {
			t.Errorf("%s: %v", issuer, got)
		}
	}
}

// TestOtherIssuers: a server that names another issuer each time does not have the gateway keep
// the keys of all of them.
func TestOtherIssuers(t *testing.T) {
	i, s, m := verifying(t)
	next := wiretest.NewIssuer(t, "")
	token := i.Token("alice", map[string]any{"aud": s.URL})
	letIn(t, m, "Bearer "+token)
	s.set(wellKnown+"/mcp", next.URL)
	m.resource.metadata.expireAnswer()
	if c := letIn(t, m, "Bearer "+next.Token("alice", map[string]any{"aud": s.URL})); c.Principal.NoTasks {
		t.Error("the new issuer is not believed")
	}
	if c := letIn(t, m, "Bearer "+token); !c.Principal.NoTasks {
		t.Error("the old issuer still is")
	}
}

// TestMetadataInOtherWords: metadata that names the same issuers leaves what is known of them and of their tokens.
func TestMetadataInOtherWords(t *testing.T) {
	i, s, m := verifying(t)
	token := func(name string) string { return "Bearer " + i.Token(name, map[string]any{"aud": s.URL}) }
	alice, bob := token("alice"), token("bob")
	letIn(t, m, alice)
	i.SetDown(true)
	s.mu.Lock()
	s.pages[wellKnown+"/mcp"] = strings.Replace(s.pages[wellKnown+"/mcp"], "{", `{"scopes_supported":["b","a"],`, 1)
	s.mu.Unlock()
	m.resource.metadata.expireAnswer()
	for _, one := range []string{bob, alice} { // his is new, so the metadata is needed
		if c := letIn(t, m, one); c.Principal.NoTasks {
			t.Error("the token is not verified any more")
		}
	}
}

// TestLookupsAreBounded: where too many tokens are looked up, a request is not let through.
func TestLookupsAreBounded(t *testing.T) {
	i, _, m := introspected(t)
	m.lookups, m.lookupTimeout = newLookups(1), 100*time.Millisecond
	m.lookups.strangers <- struct{}{}
	wantRefused(t, m, "while others are looked up", i.Opaque("alice", nil), http.StatusServiceUnavailable)
	<-m.lookups.strangers
	letIn(t, m, "Bearer "+i.Opaque("alice", nil))
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, refusal := m.Identify(request("Bearer " + i.Opaque("bob", nil)).WithContext(ctx)); refusal == nil {
		t.Error("a client that has left is let through")
	}
}

// TestStrangersTakeNoRoom: what anybody may show does not make the gateway forget who is known.
func TestStrangersTakeNoRoom(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	c := passConfig(t, newOAuthServer(t, i.URL), withIntrospection(i))
	m := wiretest.Must(New(c, Options{Logger: slog.New(slog.DiscardHandler)}))(t)
	token := i.Opaque("alice", nil)
	alice := letIn(t, m.Of("up"), "Bearer "+token)
	for n := range 10 {
		letIn(t, m.Of("up"), fmt.Sprint("Bearer unknown", n))
	}
	asked := i.Asked()
	if again := letIn(t, m.Of("up"), "Bearer "+token); again.Principal != alice.Principal || i.Asked() != asked {
		t.Error("she is looked up again")
	}
	for n := range 10 {
		letIn(t, m.Of("up"), fmt.Sprint("Basic ", n))
	}
	p := m.Of("up").(*passthrough)
	if got := p.tokens.findNewest(alice.Principal.Subject, (*shown).isGood); got == nil || got.authorization != "Bearer "+token {
		t.Errorf("of her there is %v", got)
	}
	if p.known.Len() != 1 || p.others.Len() != 0 || p.tokens.owners.Len() != 1 {
		t.Errorf("%d, %d and %d are kept", p.known.Len(), p.others.Len(), p.tokens.owners.Len())
	}
	for _, long := range []string{"Bearer " + strings.Repeat("x", maxCredential), "Basic " + strings.Repeat("x", maxCredential)} {
		if _, refusal := p.Identify(request(long)); refusal == nil || refusal.Status != http.StatusBadRequest {
			t.Errorf("%d bytes: %v", len(long), refusal)
		}
	}
}

// TestMadeUpTokensDoNotExhaustTheIssuer: an address that shows tokens of nobody's has few of them looked
// up, and who holds a good token is let in meanwhile, from there with a token that was good before and
// from anywhere else with a new one.
func TestMadeUpTokensDoNotExhaustTheIssuer(t *testing.T) {
	i, _, m := introspected(t)
	from := func(address, authorization string) *Refusal {
		r := request(authorization)
		r.RemoteAddr = address
		_, refusal := m.Identify(r)
		return refusal
	}
	known := "Bearer " + i.Opaque("alice", nil)
	if refusal := from("192.0.2.1:1", known); refusal != nil {
		t.Fatal(refusal)
	}
	asked := i.Asked()
	for n := range 4 * failuresAtOnce {
		if refusal := from("192.0.2.1:1", fmt.Sprint("Bearer made-up-", n)); refusal != nil {
			t.Fatalf("try %d: %v, and the server decides", n, refusal)
		}
	}
	if n := i.Asked() - asked; n > 2*failuresAtOnce {
		t.Errorf("the issuer was asked %d times", n)
	}
	outdate(m, strings.TrimPrefix(known, "Bearer "))
	if refusal := from("192.0.2.1:1", known); refusal != nil {
		t.Errorf("with a token that was good before: %v", refusal)
	}
	if refusal := from("192.0.2.2:1", "Bearer "+i.Opaque("bob", nil)); refusal != nil {
		t.Errorf("from another address: %v", refusal)
	}
}

// TestNewTokenFromASharedAddress: many callers may have the address from which made-up tokens come. A new good token
// goes to the server; once that has taken it for a call, its owner is known.
func TestNewTokenFromASharedAddress(t *testing.T) {
	i, _, m := introspected(t)
	for n := range 4 * failuresAtOnce {
		letIn(t, m, fmt.Sprint("Bearer made-up-", n))
	}
	asked, carol := i.Asked(), "Bearer "+i.Opaque("carol", nil)
	c := letIn(t, m, carol)
	if !c.IsStranger() || !c.IsOpaque() || i.Asked() != asked {
		t.Fatalf("at first: %+v", c.Principal)
	}
	c.Credential(nil).Hear(carol, "tools/list", time.Now(), http.StatusOK)
	if letIn(t, m, carol); i.Asked() != asked {
		t.Error("it was looked up after a list, which a server may give to anybody")
	}
	c.Credential(nil).hear(carol, http.StatusOK)
	if c := letIn(t, m, carol); c.IsStranger() || c.IsOpaque() || i.Asked() != asked+1 {
		t.Errorf("once the server has taken it for a call: %+v", c.Principal)
	}
}

// TestRefusedTokensOwnNothing: a token that the server has refused gets no tasks and is shown none, on
// this request and the next, until the server takes it again. One that nobody can verify likewise.
func TestRefusedTokensOwnNothing(t *testing.T) {
	i, s, m := verifying(t, func(p *config.Passthrough) { p.Unverified = config.UnverifiedToken })
	for name, authorization := range map[string]string{
		"verified": "Bearer " + i.Token("alice", map[string]any{"aud": s.URL}), "unverified": "Bearer of-nobody-knows-whom",
	} {
		c := letIn(t, m, authorization)
		if c.Doubted() != nil || c.Principal.NoTasks {
			t.Errorf("%s: at first %v", name, c.Doubted())
		}
		c.Credential(nil).hear(authorization, http.StatusForbidden) // of one tool, perhaps
		if c.Doubted() != nil {
			t.Errorf("%s: after 403", name)
		}
		c.Credential(nil).hear(authorization, http.StatusUnauthorized)
		for what, c := range map[string]Caller{"the same request": c, "the next": letIn(t, m, authorization)} {
			if refusal := c.Doubted(); refusal == nil || refusal.Status != http.StatusUnauthorized {
				t.Errorf("%s, %s: %v", name, what, refusal)
			}
		}
		if c := letIn(t, m, authorization); !c.Principal.NoTasks || c.shows() != authorization {
			t.Errorf("%s: %+v", name, c.Principal)
		}
		letIn(t, m, authorization).Credential(nil).hear(authorization, http.StatusOK)
		if c := letIn(t, m, authorization); c.Doubted() != nil || c.Principal.NoTasks {
			t.Errorf("%s: once the server takes it again", name)
		}
	}
}

// TestPollHasTheServerAsked: a client that only asks for its task sends nothing to the server, which so could never
// take its token again. The server is asked once in a while, for requests of all clients with that token.
func TestPollHasTheServerAsked(t *testing.T) {
	i, s, m := verifying(t, func(p *config.Passthrough) { p.Unverified = config.UnverifiedToken })
	for name, authorization := range map[string]string{
		"verified": "Bearer " + i.Token("alice", map[string]any{"aud": s.URL}), "unverified": "Bearer of-nobody-knows-whom",
	} {
		letIn(t, m, authorization).Credential(nil).hear(authorization, http.StatusUnauthorized)
		asked, takes := 0, false
		poll := func() (Caller, *Refusal) {
			c := letIn(t, m, authorization)
			refusal := c.Reconsider(func() bool {
				asked++
				return takes
			})
			return c, refusal
		}
		for range 3 {
			if _, refusal := poll(); refusal == nil || refusal.Status != http.StatusUnauthorized {
				t.Errorf("%s: %v", name, refusal)
			}
		}
		takes = true
		standing := letIn(t, m, authorization).request.own.standing
		if _, refusal := poll(); refusal == nil || asked != 1 {
			t.Errorf("%s: %v after %d questions", name, refusal, asked)
		}
		standing.mu.Lock()
		standing.judged = standing.judged.Add(-lookAgain)
		standing.mu.Unlock()
		if c, refusal := poll(); refusal != nil || c.Principal.NoTasks || asked != 2 {
			t.Errorf("%s: %v, no tasks %v, after %d questions", name, refusal, c.Principal.NoTasks, asked)
		}
		if c := letIn(t, m, authorization); c.Doubted() != nil {
			t.Errorf("%s: the next request is refused", name)
		}
	}
}

// TestWhatTakesATokenAgain: after a 401 the server takes a token again by its answer to a later request of the same
// method, or to a later call. That to an older request, to another method or with a redirect proves nothing.
func TestWhatTakesATokenAgain(t *testing.T) {
	i, s, m := verifying(t)
	for name, c := range map[string]struct {
		refused, taken string // methods
		age            time.Duration
		status         int
		takes          bool
	}{
		"a call":          {"tools/list", "tools/call", 0, http.StatusOK, true},
		"the same method": {"tools/list", "tools/list", 0, http.StatusOK, true},
		"another method":  {"tools/call", "tools/list", 0, http.StatusOK, false},
		"an older call":   {"tools/call", "tools/call", time.Minute, http.StatusOK, false},
		"a redirect":      {"tools/call", "tools/call", 0, http.StatusFound, false},
	} {
		authorization := "Bearer " + i.Token("alice", map[string]any{"aud": s.URL, "jti": name})
		letIn(t, m, authorization).Credential(nil).Hear(authorization, c.refused, time.Now(), http.StatusUnauthorized)
		letIn(t, m, authorization).Credential(nil).Hear(authorization, c.taken, time.Now().Add(-c.age), c.status)
		if got := letIn(t, m, authorization); (got.Doubted() == nil) != c.takes || got.Principal.NoTasks == c.takes {
			t.Errorf("%s: refused is %v, no tasks %v", name, got.Doubted(), got.Principal.NoTasks)
		}
	}
	authorization := "Bearer " + i.Token("alice", map[string]any{"aud": s.URL})
	for _, method := range []string{"tools/call", "tools/list"} {
		letIn(t, m, authorization).Credential(nil).Hear(authorization, method, time.Now(), http.StatusUnauthorized)
	}
	letIn(t, m, authorization).Credential(nil).Hear(authorization, "tools/list", time.Now(), http.StatusOK)
	if letIn(t, m, authorization).Doubted() == nil {
		t.Error("a list makes up for a call")
	}
}

// TestStrangers: a token that nobody can verify is a stranger's until the server has taken a call with it.
func TestStrangers(t *testing.T) {
	i, s, m := verifying(t)
	for _, method := range []string{"", "tools/list", "tools/call"} {
		c := letIn(t, m, "Bearer opaque")
		if !c.IsStranger() {
			t.Errorf("before %s: it is known", method)
		}
		c.Credential(nil).Hear("Bearer opaque", method, time.Now(), http.StatusOK)
	}
	for _, authorization := range []string{"Bearer opaque", "Bearer " + i.Token("alice", map[string]any{"aud": s.URL})} {
		if letIn(t, m, authorization).IsStranger() {
			t.Errorf("%s: a stranger", authorization)
		}
	}
}

// refusals are those of all replicas.
type refusals struct {
	kept  map[string]time.Duration
	asked int
	err   error
}

func (r *refusals) SetRefused(_ context.Context, token string, keep time.Duration) error {
	if r.kept[token] = keep; keep == 0 {
		delete(r.kept, token)
	}
	return r.err
}

func (r *refusals) IsRefused(_ context.Context, token string) (bool, error) {
	r.asked++
	_, refused := r.kept[token]
	return refused, r.err
}

// TestRefusedElsewhere: a token that the server has refused at another replica owns and reads nothing here. The others
// hear of no token that is nobody's and that the server has never taken, and are asked at most every five seconds.
func TestRefusedElsewhere(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	s := newOAuthServer(t, i.URL)
	all := &refusals{kept: map[string]time.Duration{}}
	replica := func() *passthrough {
		c := passConfig(t, s, func(p *config.Passthrough) { p.Unverified = config.UnverifiedToken })
		return startWith(t, c, NewCredentials(nil, all)).Of("up").(*passthrough)
	}
	here, there := replica(), replica()
	hear := func(m *passthrough, authorization string, status int) {
		letIn(t, m, authorization).Credential(nil).hear(authorization, status)
	}
	refused := func(authorization string, want bool) {
		t.Helper()
		c := letIn(t, there, authorization)
		c.request.own.standing.ask = time.Time{} // five seconds ago
		if c = letIn(t, there, authorization); (c.Doubted() != nil) != want || c.Principal.NoTasks != want {
			t.Errorf("%.20s: refused is %v, no tasks %v, want %v", authorization, c.Doubted(), c.Principal.NoTasks, want)
		}
	}
	expires := time.Now().Add(time.Hour)
	jwt, opaque := "Bearer "+i.Token("alice", map[string]any{"aud": s.URL, "exp": expires.Unix()}), "Bearer of-nobody-knows-whom"
	letIn(t, here, opaque).Credential(nil).Hear(opaque, "tools/list", time.Now(), http.StatusOK) // as any
	hear(here, opaque, http.StatusUnauthorized)
	if len(all.kept) != 0 {
		t.Errorf("of a stranger is kept %v", all.kept)
	}
	hear(here, opaque, http.StatusOK)
	for _, authorization := range []string{jwt, opaque} {
		refused(authorization, false)
		hear(here, authorization, http.StatusUnauthorized)
		refused(authorization, true)
		hear(here, authorization, http.StatusUnauthorized)
		hear(here, authorization, http.StatusOK)
		refused(authorization, false)
		hear(here, authorization, http.StatusUnauthorized)
		refused(authorization, true)
		hear(there, authorization, http.StatusUnauthorized)
		refused(authorization, true)
		hear(here, authorization, http.StatusOK)
		refused(authorization, false)
		if len(all.kept) != 0 {
			t.Errorf("of a token that is taken is kept %v", all.kept)
		}
	}
	hear(here, jwt, http.StatusUnauthorized)
	for token, keep := range all.kept {
		if !strings.HasPrefix(token, "up:") || strings.Contains(jwt, strings.TrimPrefix(token, "up:")) || keep > time.Until(expires)+time.Minute || keep < time.Minute {
			t.Errorf("%s is kept for %s", token, keep)
		}
	}
	refused(jwt, true)
	all.err, all.kept = errors.New("away"), nil
	asked := all.asked
	refused(jwt, true) // as was known
	for range 10 {
		letIn(t, there, jwt)
	}
	if all.asked != asked+1 {
		t.Errorf("asked %d times more", all.asked-asked)
	}
}

// TestOwnerIsOfTheClient: another client of the same user owns other tasks.
func TestOwnerIsOfTheClient(t *testing.T) {
	i, s, m := introspected(t)
	of := func(claims map[string]any) string {
		claims["aud"] = s.URL
		return letIn(t, m, "Bearer "+i.Token("alice", claims)).Principal.Subject
	}
	one := of(map[string]any{"client_id": "one"})
	if of(map[string]any{"client_id": "one", "jti": "2"}) != one {
		t.Error("a refreshed token is somebody else's")
	}
	for _, claim := range []string{"client_id", "azp", "cid", "appid"} {
		if of(map[string]any{claim: "one"}) != one {
			t.Errorf("by %s it is somebody else's", claim)
		}
		opaque := letIn(t, m, "Bearer "+i.Opaque("alice", map[string]any{"iss": i.URL, claim: "one"}))
		if opaque.Principal.Subject != one || !opaque.request.own.Client {
			t.Errorf("introspection says somebody else by %s", claim)
		}
	}
	for name, token := range map[string]string{"a JWT": i.Token("alice", map[string]any{"aud": s.URL}), "an opaque token": i.Opaque("alice", nil)} {
		if c := letIn(t, m, "Bearer "+token); c.Principal.NoTasks || c.request.own.Client {
			t.Errorf("%s without a client is %+v", name, c.request.own.grade)
		}
	}
	if of(map[string]any{"client_id": "two"}) == one || of(map[string]any{}) == one {
		t.Error("another client is the same owner")
	}
}

// TestSeveralAuthorizationServers: a token is shown to the issuer that it names only, and one that the
// introspection endpoint does not know goes to the server, again and again.
func TestSeveralAuthorizationServers(t *testing.T) {
	one, two := wiretest.NewIssuer(t, ""), wiretest.NewIssuer(t, "")
	s := newOAuthServer(t, one.URL, two.URL)
	m := startPassthrough(t, s, withIntrospection(one))
	opaque := two.Opaque("alice", map[string]any{"aud": s.URL})
	for range 3 {
		if c := letIn(t, m, "Bearer "+opaque); c.shows() != "Bearer "+opaque || c.Doubted() != nil {
			t.Errorf("%+v", c)
		}
	}
	if n := one.Asked(); n == 0 {
		t.Error("nobody was asked")
	}
	letIn(t, m, "Bearer "+opaque).Credential(nil).hear("Bearer "+opaque, http.StatusOK)
	asked := one.Asked()
	letIn(t, m, "Bearer "+opaque)
	letIn(t, m, "Bearer "+two.Token("alice", map[string]any{"aud": s.URL}))
	letIn(t, m, "Bearer "+two.Token("alice", map[string]any{"aud": s.URL, "iss": "https://elsewhere.example"}))
	if one.Asked() != asked {
		t.Errorf("asked %d times more", one.Asked()-asked)
	}
}

// TestTokensOfTheSecondServer: a token that introspection does not know and the server takes is good for as long as the
// server takes it. It is looked up once a minute, and that counts as no failure.
func TestTokensOfTheSecondServer(t *testing.T) {
	one, two := wiretest.NewIssuer(t, ""), wiretest.NewIssuer(t, "")
	s := newOAuthServer(t, one.URL, two.URL)
	m := startPassthrough(t, s, withIntrospection(one), func(p *config.Passthrough) { p.Unverified = config.UnverifiedToken })
	var tokens []string
	for range failuresAtOnce / 2 {
		tokens = append(tokens, two.Opaque("alice", map[string]any{"aud": s.URL}))
	}
	hear := func(status int) {
		for _, token := range tokens {
			letIn(t, m, "Bearer "+token).Credential(nil).hear("Bearer "+token, status)
		}
	}
	hear(http.StatusOK)
	for minute := range 10 {
		asked := one.Asked()
		for _, token := range tokens {
			outdate(m, token)
		}
		for range 10 {
			hear(http.StatusOK)
		}
		if n := one.Asked() - asked; n != len(tokens) {
			t.Errorf("minute %d: %d tokens were looked up %d times", minute, len(tokens), n)
		}
	}
	hear(http.StatusUnauthorized)
	outdate(m, tokens[0])
	if letIn(t, m, "Bearer "+tokens[0]).Doubted() == nil {
		t.Error("it is forgotten that the server refuses a token")
	}
}

// TestMetadataOfAnotherResource: a server whose metadata names the address of another one has no callers with tokens for
// that, unless the gateway has taken over the server's name.
func TestMetadataOfAnotherResource(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	const other = "https://other.example/mcp"
	for name, c := range map[string]struct {
		resource func(s *oauthServer) string
		renamed  config.Switch
		verified bool
	}{
		"its origin": {func(s *oauthServer) string { return strings.TrimSuffix(s.URL, "/mcp") }, config.Off, true},
		"another":    {func(*oauthServer) string { return other }, config.Off, false},
		"renamed":    {func(*oauthServer) string { return other }, config.On, true},
	} {
		s := newOAuthServer(t, i.URL)
		resource := c.resource(s)
		s.pages[wellKnown+"/mcp"] = fmt.Sprintf(`{"resource":%q,"authorization_servers":[%q]}`, resource, i.URL)
		cfg := passConfig(t, s, withIntrospection(i))
		cfg.Upstreams[0].ForwardHost, cfg.AllowedHosts = c.renamed, []string{"other.example"}
		m := start(t, cfg).Of("up")
		for kind, token := range map[string]string{
			"a JWT": i.Token("alice", map[string]any{"aud": resource}), "an opaque token": i.Opaque("alice", map[string]any{"aud": resource}),
		} {
			if got := letIn(t, m, "Bearer "+token).Principal; got.NoTasks == c.verified {
				t.Errorf("%s: %s for that is %+v", name, kind, got)
			}
		}
	}
}

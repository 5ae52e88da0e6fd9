package e2e

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/oauth2-proxy/mockoidc"

	"taskgate/internal/proc"
	"taskgate/internal/wiretest"
)

// oidc is an OpenID provider whose users sign in at once.
type oidc struct {
	*mockoidc.MockOIDC
	t *testing.T
}

// startOIDC starts one. What is around its handlers may be given.
func startOIDC(t *testing.T, around ...func(http.Handler) http.Handler) oidc {
	t.Helper()
	m, err := mockoidc.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	// Its handlers share maps without a lock, and several gateways ask at a time.
	var one sync.Mutex
	inTurn := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			one.Lock()
			defer one.Unlock()
			next.ServeHTTP(w, r)
		})
	}
	for _, f := range append([]func(http.Handler) http.Handler{inTurn}, around...) {
		if err := m.AddMiddleware(f); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = m.Start(l, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Shutdown() })
	return oidc{m, t}
}

// signIn has a user go through the code flow with PKCE, and returns the access token.
func (o oidc) signIn(subject string) string {
	o.t.Helper()
	o.QueueUser(&mockoidc.MockUser{Subject: subject})
	const verifier = "a-verifier-that-is-long-enough-to-be-one-0123456789"
	challenge, err := mockoidc.GenerateCodeChallenge("S256", verifier)
	if err != nil {
		o.t.Fatal(err)
	}
	ask := url.Values{
		"scope": {"openid"}, "state": {"s"}, "client_id": {o.ClientID}, "response_type": {"code"},
		"redirect_uri": {"http://127.0.0.1/callback"}, "code_challenge": {challenge}, "code_challenge_method": {"S256"},
	}
	back := o.visit(o.AuthorizationEndpoint() + "?" + ask.Encode())
	resp, err := http.PostForm(o.TokenEndpoint(), url.Values{
		"grant_type": {"authorization_code"}, "code": {back.Query().Get("code")}, "code_verifier": {verifier},
		"client_id": {o.ClientID}, "client_secret": {o.ClientSecret},
	})
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	var granted struct {
		Access string `json:"access_token"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&granted); err != nil || granted.Access == "" {
		o.t.Fatal(resp.Status, err)
	}
	return o.withClient(granted.Access)
}

// visit opens a page of the provider, which sends the user back at once, and returns where to.
func (o oidc) visit(page string) *url.URL {
	o.t.Helper()
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := stay.Get(page)
	if err != nil {
		o.t.Fatal(err)
	}
	_ = resp.Body.Close()
	back, err := resp.Location()
	if err != nil {
		o.t.Fatal(resp.Status, err)
	}
	return back
}

// withClient is a token that also says which client it was given to, as RFC 9068 has it.
func (o oidc) withClient(token string) string {
	o.t.Helper()
	var claims map[string]any
	body, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err == nil {
		err = json.Unmarshal(body, &claims)
	}
	id, noID := o.Keypair.KeyID()
	if err := cmp.Or(err, noID); err != nil {
		o.t.Fatal(err)
	}
	claims["client_id"] = o.ClientID
	return wiretest.SignedToken(o.t, jose.RS256, jose.JSONWebKey{Key: o.Keypair.PrivateKey, KeyID: id}, claims)
}

// The clients of the SDKs that know nothing but the address of the gateway sign in: they are led from
// 401 to the metadata of the gateway, to that of the provider, and by the code flow to a token.
func TestSignInFromNothing(t *testing.T) {
	t.Parallel()
	provider, addr := startOIDC(t), freeAddr(t)
	provider.AccessTTL = 2 * time.Second
	provider.FastForward(-30 * time.Second) // the gateway allows for that: a token is good for AccessTTL by its clock, too
	startPublic(t, addr, fmt.Sprintf(`
auth: {jwt: {issuer: %q, audiences: [%q]}}
upstreams:
  - {name: slow, path: /mcp, url: "%s"}
`, provider.Issuer(), provider.ClientID, startServer(t, "slowserver")))
	signInWithSDKs(t, provider, addr, provider.client(), func(*testing.T, signInAnswer) {})
}

// startPublic starts a gateway whose clients know it by an address.
func startPublic(t *testing.T, addr, yaml string) *gateway {
	t.Helper()
	return startAt(t, addr, proc.Command{}, configured(t, "public_url: http://"+addr+"\n"+yaml)...)
}

// signInPeer is a client of a TypeScript SDK that signs in by itself.
type signInPeer struct{ sdk, mode string }

var signInPeers = map[string]signInPeer{"1.32.2": {"1", ""}, "2.4.0, legacy": {"2", "legacy"}, "2.4.0": {"2", "auto"}}

// signInAnswer is what signin.mjs prints.
type signInAnswer struct {
	Tools, Again, Afterwards, Asked, Calls, Sessions []string
	Refreshed                                        bool
	Visits                                           int
	Client, Said                                     string
}

// signIn has it sign in at a gateway.
func (p signInPeer) signIn(t *testing.T, addr string, env ...string) (got signInAnswer) {
	t.Helper()
	runNodeInto(t, &got, "signin.mjs", append(env, "URL=http://"+addr+"/mcp", "SDK="+p.sdk, "MODE="+p.mode)...)
	return got
}

// client tells signin.mjs as which client it is registered.
func (o oidc) client() []string {
	return []string{"CLIENT_ID=" + o.ClientID, "CLIENT_SECRET=" + o.ClientSecret, "ISSUER=" + o.Issuer()}
}

package e2e

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/oauth2-proxy/mockoidc"

	"taskgate/internal/proc"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
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

// grant is what the token endpoint gives out.
type grant struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
}

// signIn has a user go through the code flow with PKCE.
func (o oidc) signIn(subject string) grant {
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
	return o.token(url.Values{"grant_type": {"authorization_code"}, "code": {back.Query().Get("code")}, "code_verifier": {verifier}})
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

func (o oidc) token(ask url.Values) (g grant) {
	o.t.Helper()
	ask.Set("client_id", o.ClientID)
	ask.Set("client_secret", o.ClientSecret)
	resp, err := http.PostForm(o.TokenEndpoint(), ask)
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&g); err != nil || g.Access == "" {
		o.t.Fatal(resp.Status, err)
	}
	g.Access = o.withClient(g.Access)
	return g
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

// With tokens of an OpenID provider a task is its owner's, on every replica and with every token
// that the provider gives her, and nobody else's. Keys that are known stay good while the
// provider is down; a replica that has none refuses everybody.
func TestTokensOfAProvider(t *testing.T) {
	t.Parallel()
	store, provider := redistest.Start(t), startOIDC(t)
	config := func(auth string) []string {
		return configured(t, fmt.Sprintf(`
store: %s
log: {level: debug}
public_url: https://gateway.example
%s
upstreams:
  - {name: slow, path: /mcp, url: "%s", defaults: {tasks: always}}
`, store.URL(), auth, startServer(t, "slowserver")))
	}
	signedIn := config(fmt.Sprintf("auth: {jwt: {issuer: %q, audiences: [%q]}}", provider.Issuer(), provider.ClientID))
	here, there, open := startGateway(t, signedIn...), startGateway(t, signedIn...), startGateway(t, config("")...)
	alice, bob := provider.signIn("alice"), provider.signIn("bob")
	task := callTask(t, here.as(alice.Access), "research", research(1))
	provider.FastForward(1e9) // a token of another second is another token
	refreshed := provider.token(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {alice.Refresh}})
	if refreshed.Access == alice.Access {
		t.Fatal("the token is the same")
	}
	waitFor(t, there.as(refreshed.Access), task.ID, "completed")

	var refused *taskclient.Error
	for name, c := range map[string]*taskclient.Client{"bob": here.as(bob.Access), "anonymous": open.as("")} {
		if _, err := c.Get(t.Context(), task.ID); !errors.As(err, &refused) || refused.Code != -32602 || !strings.HasPrefix(refused.Message, "unknown task") {
			t.Errorf("the task of alice to %s: %v", name, err)
		}
	}
	for name, token := range map[string]string{"none": "", "cut": alice.Access[:len(alice.Access)-8], "another provider's": startOIDC(t).signIn("alice").Access} {
		if _, err := here.as(token).Get(t.Context(), task.ID); !errors.As(err, &refused) || refused.Status != 401 {
			t.Errorf("with the token %s: %v", name, err)
		}
	}

	if err := provider.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if _, err := there.as(alice.Access).Get(t.Context(), task.ID); err != nil {
		t.Errorf("while the provider is down: %v", err)
	}
	late := startGateway(t, signedIn...)
	if _, err := late.as(alice.Access).Get(t.Context(), task.ID); !errors.As(err, &refused) || refused.Status != 503 {
		t.Errorf("at a replica without keys: %v", err)
	}
	for _, g := range []*gateway{here, there, late} {
		for _, token := range []string{alice.Access, refreshed.Access, bob.Access} {
			if strings.Contains(g.Output(), token[strings.LastIndex(token, ".")+1:]) {
				t.Errorf("a token is in the log:\n%s", g.Output())
			}
		}
	}
}

// A client of the Go SDK that knows nothing but the address of the gateway signs in: it is led from
// 401 to the metadata of the gateway, to that of the provider, and by the code flow to a token. It
// goes on when its token has expired.
func TestSignInFromNothing(t *testing.T) {
	t.Parallel()
	provider, addr := startOIDC(t), freeAddr(t)
	provider.AccessTTL = 2 * time.Second
	startSignedIn(t, provider, addr)
	for _, version := range []string{"2026-07-28", "2025-11-25"} {
		signInWithGo(t, provider, addr, version)
	}
}

// The TypeScript SDKs sign in with their own OAuth code, ask for a token for the gateway (RFC
// 8707), and refresh it when it has expired.
func TestTypeScriptSignIn(t *testing.T) {
	t.Parallel()
	provider, addr := startOIDC(t), freeAddr(t)
	provider.AccessTTL = 2 * time.Second
	startSignedIn(t, provider, addr)
	for name, c := range signInPeers {
		got := c.signIn(t, addr, append(provider.client(), "WAIT=3500")...)
		if len(got.Tools) == 0 || !slices.Equal(got.Tools, got.Again) || !got.Refreshed || !slices.Contains(got.Asked, "http://"+addr+"/mcp") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// startSignedIn starts a gateway at addr that wants tokens of the provider.
func startSignedIn(t *testing.T, provider oidc, addr string) {
	t.Helper()
	provider.FastForward(-30 * time.Second) // the gateway allows for that: a token is good for AccessTTL by its clock, too
	startPublic(t, addr, fmt.Sprintf(`
auth: {jwt: {issuer: %q, audiences: [%q]}}
upstreams:
  - {name: slow, path: /mcp, url: "%s"}
`, provider.Issuer(), provider.ClientID, startServer(t, "slowserver")))
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

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"github.com/oauth2-proxy/mockoidc"

	"taskgate/internal/programtest"
)

// protected is a server of the Go SDK that wants tokens of a provider, by the SDK's own code, and notes
// the paths that are asked for with a token.
type protected struct {
	url string

	mu    sync.Mutex
	paths map[string]bool
	lacks func(token string) bool // a token has not the scope for calls; nil if all have it
}

// setLacks sets which tokens have not the scope for calls.
func (p *protected) setLacks(lacks func(token string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lacks = lacks
}

// refuses answers a call whose token lacks a scope.
func (p *protected) refuses(w http.ResponseWriter, r *http.Request) bool {
	p.mu.Lock()
	lacks := p.lacks
	p.mu.Unlock()
	if lacks == nil || r.URL.Path != "/mcp" {
		return false
	}
	body := takeBody(r)
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bytes.Contains(body, []byte(`"tools/call"`)) || token == "" || !lacks(token) {
		return false
	}
	w.Header().Set("WWW-Authenticate", `Bearer error="insufficient_scope", scope="openid profile", resource_metadata="http://`+r.Host+`/.well-known/oauth-protected-resource/mcp"`)
	w.WriteHeader(http.StatusForbidden)
	return true
}

func startProtected(t *testing.T, provider oidc, stateless bool) *protected {
	t.Helper()
	p := &protected{paths: map[string]bool{}}
	server := newPeer("protected")
	addWords(server, "who", func(_ context.Context, r *sdk.CallToolRequest) string { return r.Extra.TokenInfo.UserID })
	// The provider itself says whether a token is good.
	verify := func(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.UserinfoEndpoint(), nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		var claims struct {
			Subject string `json:"sub"`
		}
		_, payload, _ := strings.Cut(token, ".")
		payload, _, _ = strings.Cut(payload, ".")
		text, err := base64.RawURLEncoding.DecodeString(payload)
		if resp.StatusCode != http.StatusOK || err != nil || json.Unmarshal(text, &claims) != nil {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: claims.Subject, Expiration: time.Now().Add(time.Minute)}, nil
	}
	mux := http.NewServeMux()
	base := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			p.mu.Lock()
			p.paths[r.URL.Path] = true
			p.mu.Unlock()
		}
		if !p.refuses(w, r) {
			mux.ServeHTTP(w, r)
		}
	}))
	const at = "/.well-known/oauth-protected-resource/mcp"
	p.url = base + "/mcp"
	mux.Handle(at, auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
		Resource: p.url, AuthorizationServers: []string{provider.Issuer()}, ScopesSupported: []string{"openid"},
	}))
	guarded := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{ResourceMetadataURL: base + at})
	mux.Handle("/mcp", guarded(streamable(server, &sdk.StreamableHTTPOptions{Stateless: stateless})))
	return p
}

// startPassing starts a gateway at addr in front of it, which knows callers by the tokens of the provider.
func (p *protected) startPassing(t *testing.T, provider oidc, addr string) *gateway {
	t.Helper()
	return startPublic(t, addr, fmt.Sprintf(`
log: {level: debug}
upstreams:
  - {name: protected, path: /mcp, url: "%s", auth: {passthrough: {audiences: [%q]}}, defaults: {tasks: always}}
`, p.url, provider.ClientID))
}

// Clients that know nothing but the address of the gateway sign in at the authorization server of the
// server behind it: the Go SDK and the TypeScript SDKs with their own OAuth code, in front of servers of
// both eras. They go on when their token has expired; those for TypeScript register there, and the refusal
// of the server leads them there once more when their tokens are revoked, and when a call needs another
// scope. A token goes to the server's endpoint only, and a task is its owner's with every token.
func TestSignInAtTheServer(t *testing.T) {
	t.Parallel()
	for name, stateless := range map[string]bool{"legacy server": false, "modern server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider, addr := startRegistry(t), freeAddr(t)
			provider.AccessTTL = 3 * time.Second
			server := startProtected(t, provider.oidc, stateless)
			gateway := server.startPassing(t, provider.oidc, addr)
			server.setLacks(provider.lacks)
			signInWithSDKs(t, provider.oidc, addr, []string{"REVOKE=" + provider.url + "/revoke", "STEP_UP=1"}, func(t *testing.T, got signInAnswer) {
				if !slices.Equal(got.Tools, []string{"who"}) || !slices.Equal(got.Tools, got.Afterwards) || got.Said == "" || got.Visits != 3 || got.Client != provider.ClientID {
					t.Errorf("registered, revoked, and with another scope: %+v", got)
				}
			})
			if n := provider.registered.Load(); n != int64(len(signInPeers)) && programtest.RunsLong() {
				t.Errorf("registered %d times", n)
			}
			server.setLacks(nil)
			provider.AccessTTL = time.Minute
			token := provider.signIn("alice")
			client := gateway.as(token)
			task := callTask(t, client, "who", map[string]any{})
			client.HTTP.Transport = withKey(provider.signIn("alice"))
			if got := textOf(t, waitFor(t, client, task.ID, "completed").Result); got != "alice" {
				t.Errorf("the server was called as %q", got)
			}
			server.mu.Lock()
			defer server.mu.Unlock()
			if len(server.paths) != 1 || !server.paths["/mcp"] {
				t.Errorf("tokens went to %v", server.paths)
			}
			if strings.Contains(gateway.Output(), token[strings.LastIndex(token, ".")+1:]) {
				t.Errorf("a token is in the log:\n%s", gateway.Output())
			}
		})
	}
}

// connectSigningIn is a client of the Go SDK that signs in by itself, for some scopes of those that it knows of, and how
// often it does. It is nil if that fails.
func connectSigningIn(t *testing.T, provider oidc, addr, version string, scopes func([]string) []string) (session *sdk.ClientSession, signedIn *int) {
	t.Helper()
	signedIn = new(int)
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		PreregisteredClient: &oauthex.ClientCredentials{ClientID: provider.ClientID, ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: provider.ClientSecret}},
		RedirectURL:         "http://127.0.0.1/callback", ScopeFilter: scopes,
		AuthorizationCodeFetcher: func(_ context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			*signedIn++
			provider.QueueUser(&mockoidc.MockUser{Subject: "alice"})
			back := provider.visit(args.URL)
			return &auth.AuthorizationResult{Code: back.Query().Get("code"), State: back.Query().Get("state")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "host", Version: "1"}, nil)
	session, err = client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: "http://" + addr + "/mcp", OAuthHandler: handler},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Errorf("Go SDK, %s: %v", version, err)
		return nil, signedIn
	}
	t.Cleanup(func() { _ = session.Close() })
	return session, signedIn
}

// signInWithSDKs has the clients of the SDKs sign in at the gateway by themselves, for its address (RFC 8707), and list
// the tools for longer than their first token lasts. What a client for TypeScript does besides stands in more, and check
// looks at that.
func signInWithSDKs(t *testing.T, provider oidc, addr string, more []string, check func(*testing.T, signInAnswer)) {
	t.Helper()
	expires := provider.AccessTTL + 1500*time.Millisecond
	t.Run("clients", func(t *testing.T) {
		for _, version := range []string{"2026-07-28", "2025-11-25"} {
			t.Run("Go SDK, "+version, func(t *testing.T) {
				t.Parallel()
				session, signedIn := connectSigningIn(t, provider, addr, version, func([]string) []string { return []string{"openid"} })
				for _, later := range []time.Duration{0, expires} {
					if session == nil {
						return
					}
					<-time.After(later)
					if result, err := session.ListTools(t.Context(), nil); err != nil || len(result.Tools) == 0 || *signedIn == 0 {
						t.Errorf("%+v, %v, signed in %d times", result, err, *signedIn)
					}
				}
			})
		}
		for name, c := range signInPeers {
			t.Run("TypeScript SDK "+name, func(t *testing.T) {
				t.Parallel()
				got := c.signIn(t, addr, append(slices.Clone(more), fmt.Sprint("WAIT=", expires.Milliseconds()))...)
				if len(got.Tools) == 0 || !slices.Equal(got.Tools, got.Again) || !got.Refreshed || !slices.Contains(got.Asked, "http://"+addr+"/mcp") {
					t.Errorf("%+v", got)
				}
				check(t, got)
			})
		}
	})
}

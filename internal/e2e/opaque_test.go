package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"github.com/oauth2-proxy/mockoidc"

	"taskgate/internal/proc"
)

// opaqueProvider gives out access tokens that say nothing. Its own server knows them.
type opaqueProvider struct {
	oidc

	mu     sync.Mutex
	scopes map[string]string // of the codes and of the tokens
	until  map[string]time.Time
}

func startOpaque(t *testing.T, ttl time.Duration) *opaqueProvider {
	t.Helper()
	p := &opaqueProvider{scopes: map[string]string{}, until: map[string]time.Time{}}
	p.oidc = startOIDC(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			body := answer.Body.Bytes()
			p.mu.Lock()
			var token map[string]any
			if at, err := answer.Result().Location(); err == nil {
				p.scopes[at.Query().Get("code")] = r.FormValue("scope")
			} else if json.Unmarshal(body, &token) == nil && token["access_token"] != nil {
				opaque := "opaque-" + rand.Text()
				p.scopes[opaque], p.until[opaque] = p.scopes[r.FormValue("code")], time.Now().Add(ttl)
				token["access_token"] = opaque
				body, _ = json.Marshal(token)
			}
			p.mu.Unlock()
			for name, values := range answer.Header() {
				if name != "Content-Length" {
					w.Header()[name] = values
				}
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(body)
		})
	})
	p.AccessTTL = ttl
	return p
}

// judge returns the status for a token: 401, 403 for one without the scope profile if that is needed, or 200.
func (p *opaqueProvider) judge(token string, profile bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case time.Now().After(p.until[token]):
		return http.StatusUnauthorized
	case profile && !strings.Contains(p.scopes[token], "profile"):
		return http.StatusForbidden
	}
	return http.StatusOK
}

// opaqueServer is a server of the Go SDK that takes the tokens of the provider. With open it wants one for
// tools/call only, and for methods that it does not know.
type opaqueServer struct {
	provider *opaqueProvider
	open     bool
	url      string

	mu       sync.Mutex
	plain    int             // how many calls more need no scope
	sessions map[string]bool // in which tools were called
}

func startOpaqueServer(t *testing.T, provider *opaqueProvider, open bool) *opaqueServer {
	t.Helper()
	s := &opaqueServer{provider: provider, open: open, sessions: map[string]bool{}}
	server := sdk.NewServer(&sdk.Implementation{Name: "opaque", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "who"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "somebody"}}}, nil, nil
	})
	mcp := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource") {
			_ = json.NewEncoder(w).Encode(map[string]any{"resource": s.url, "authorization_servers": []string{provider.Issuer()}, "scopes_supported": []string{"openid"}})
			return
		}
		if status := s.judge(r); status != http.StatusOK {
			challenge := `Bearer resource_metadata="http://` + r.Host + `/.well-known/oauth-protected-resource/mcp"`
			if status == http.StatusForbidden {
				challenge += `, error="insufficient_scope", scope="openid profile"`
			}
			w.Header().Set("WWW-Authenticate", challenge)
			w.WriteHeader(status)
			return
		}
		mcp.ServeHTTP(w, r)
	}))
	s.url = web.URL + "/mcp"
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return s
}

func (s *opaqueServer) judge(r *http.Request) int {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var msg struct{ Method string }
	_ = json.Unmarshal(body, &msg)
	called := msg.Method == "tools/call"
	if s.open && !called && msg.Method != "server/discover" {
		return http.StatusOK
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.provider.judge(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), called && s.plain <= 0)
	if called && status == http.StatusOK {
		s.plain--
		s.sessions[r.Header.Get("Mcp-Session-Id")] = true
	}
	return status
}

// expect has calls need the scope profile after the first two. It returns in how many sessions tools were called since
// the last time.
func (s *opaqueServer) expect() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.sessions)
	s.plain, s.sessions = 2, map[string]bool{}
	return n
}

// front starts a gateway at addr.
func (s *opaqueServer) front(t *testing.T, addr string) {
	t.Helper()
	config := configured(t, fmt.Sprintf(`
listen: %s
public_url: http://%s
upstreams:
  - {name: opaque, path: /mcp, url: %q, auth: {passthrough: {}}}
`, addr, addr, s.url))
	start(t, addr, proc.Command{Name: "taskgate", Path: filepath.Join(bin, "taskgate"), Args: append([]string{"serve"}, config...)})
}

// The SDKs, as they are, sign in at a server whose tokens only it knows, and go on in the same session when the
// token is refreshed and when a call needs one with another scope: at a server that wants a token for all it
// does, and at one that wants it for tools/call only.
func TestOpaqueTokensOfSDKs(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]bool{"protected": false, "open handshake": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			provider, addr := startOpaque(t, ttl), freeAddr(t)
			server := startOpaqueServer(t, provider, open)
			server.front(t, addr)
			for name, c := range map[string]struct{ sdk, mode string }{
				"1.32.2": {"1", ""}, "2.4.0, legacy": {"2", "legacy"}, "2.4.0": {"2", "auto"},
			} {
				for _, stepUp := range []bool{false, true} {
					var got struct {
						Tools, Again, Calls, Sessions []string
						Refreshed                     bool
						Said                          string
					}
					env := []string{
						"URL=http://" + addr + "/mcp", "SDK=" + c.sdk, "MODE=" + c.mode, "CALL=1",
						"CLIENT_ID=" + provider.ClientID, "CLIENT_SECRET=" + provider.ClientSecret, "ISSUER=" + provider.Issuer(),
					}
					if server.expect(); stepUp {
						env = append(env, "WAIT=0", "STEP_UP=1")
					} else {
						env = append(env, fmt.Sprint("WAIT=", (ttl+time.Second).Milliseconds()))
					}
					runNodeInto(t, &got, "signin.mjs", env...)
					if !slices.Equal(got.Calls, []string{"somebody", "somebody"}) || !slices.Equal(got.Tools, got.Again) || !stepUp && !got.Refreshed || stepUp && got.Said != "somebody" {
						t.Errorf("TypeScript SDK %s, with another scope: %t: %+v", name, stepUp, got)
					}
					if n := server.expect(); c.mode != "auto" && (n != 1 || len(got.Sessions) != 2 || got.Sessions[0] == "" || got.Sessions[0] != got.Sessions[1]) {
						t.Errorf("TypeScript SDK %s: its sessions are %q, and tools were called in %d of the server's", name, got.Sessions, n)
					}
				}
			}
			for _, version := range []string{"2025-11-25", "2026-07-28"} {
				callWithGo(t, provider, server, addr, version, ttl)
			}
		})
	}
}

// callWithGo has a client of the Go SDK call a tool in one session: with a first token, with the next one, and with
// one that has another scope.
func callWithGo(t *testing.T, provider *opaqueProvider, server *opaqueServer, addr, version string, ttl time.Duration) {
	t.Helper()
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		PreregisteredClient: &oauthex.ClientCredentials{ClientID: provider.ClientID, ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: provider.ClientSecret}},
		RedirectURL:         "http://127.0.0.1/callback",
		AuthorizationCodeFetcher: func(_ context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			provider.QueueUser(&mockoidc.MockUser{Subject: "alice"})
			back := provider.visit(args.URL)
			return &auth.AuthorizationResult{Code: back.Query().Get("code"), State: back.Query().Get("state")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "host", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: "http://" + addr + "/mcp", OAuthHandler: handler},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Errorf("Go SDK, %s: %v", version, err)
		return
	}
	defer session.Close()
	id := session.ID()
	call := func(when string) {
		if r, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "who"}); err != nil || goText(t, r) != "somebody" {
			t.Errorf("Go SDK, %s, %s: %+v, %v", version, when, r, err)
		}
	}
	server.expect()
	call("at first")
	<-time.After(ttl + time.Second) // the token expires meanwhile
	call("after a refresh")
	call("with another scope")
	if n := server.expect(); version < "2026" && (n != 1 || session.ID() != id) {
		t.Errorf("Go SDK, %s: tools were called in %d sessions, from %q to %q", version, n, id, session.ID())
	}
}

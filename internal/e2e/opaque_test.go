package e2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// opaqueProvider gives out access tokens that say nothing. Its own server knows them.
type opaqueProvider struct {
	scoped
	until map[string]time.Time
}

func startOpaque(t *testing.T, ttl time.Duration) *opaqueProvider {
	t.Helper()
	p := &opaqueProvider{scoped: scoped{scopes: map[string]string{}}, until: map[string]time.Time{}}
	p.oidc = startOIDC(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.answer(w, r, next, func(string) string {
				opaque := "opaque-" + rand.Text()
				p.until[opaque] = time.Now().Add(ttl)
				return opaque
			})
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
	server := newPeer("opaque")
	addWords(server, "who", func(context.Context, *sdk.CallToolRequest) string { return "somebody" })
	s.url = guard(t, provider.Issuer(), streamable(server, nil), func(r *http.Request) (int, string) {
		status := s.judge(r)
		return status, map[int]string{http.StatusForbidden: `, error="insufficient_scope", scope="openid profile"`}[status]
	})
	return s
}

func (s *opaqueServer) judge(r *http.Request) int {
	var msg struct{ Method string }
	_ = json.Unmarshal(takeBody(r), &msg)
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

// The SDKs, as they are, sign in at a server whose tokens only it knows, and go on in the same session when the
// token is refreshed and when a call needs one with another scope: at a server that wants a token for all it
// does, and at one that wants it for tools/call only.
func TestOpaqueTokensOfSDKs(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	for name, open := range map[string]bool{"protected": false, "open handshake": true} {
		try := func(client string, run func(t *testing.T, provider *opaqueProvider, server *opaqueServer, addr string)) {
			t.Run(name+", "+client, func(t *testing.T) {
				t.Parallel()
				nodeDir(t)
				provider, addr := startOpaque(t, ttl), freeAddr(t)
				server := startOpaqueServer(t, provider, open)
				startPublic(t, addr, fmt.Sprintf("upstreams: [{name: opaque, path: /mcp, url: %q, auth: {passthrough: {}}}]\n", server.url))
				run(t, provider, server, addr)
			})
		}
		for name, c := range signInPeers {
			try("TypeScript SDK "+name, func(t *testing.T, provider *opaqueProvider, server *opaqueServer, addr string) {
				for _, stepUp := range []bool{false, true} {
					env := append(provider.client(), "CALL=1")
					if server.expect(); stepUp {
						env = append(env, "WAIT=0", "STEP_UP=1")
					} else {
						env = append(env, fmt.Sprint("WAIT=", (ttl+time.Second).Milliseconds()))
					}
					got := c.signIn(t, addr, env...)
					if !slices.Equal(got.Calls, []string{"somebody", "somebody"}) || !slices.Equal(got.Tools, got.Again) || !stepUp && !got.Refreshed || stepUp && got.Said != "somebody" {
						t.Errorf("with another scope: %t: %+v", stepUp, got)
					}
					if n := server.expect(); c.mode != "auto" && (n != 1 || len(got.Sessions) != 2 || got.Sessions[0] == "" || got.Sessions[0] != got.Sessions[1]) {
						t.Errorf("its sessions are %q, and tools were called in %d of the server's", got.Sessions, n)
					}
				}
			})
		}
		for _, version := range []string{"2025-11-25", "2026-07-28"} {
			try("Go SDK, "+version, func(t *testing.T, provider *opaqueProvider, server *opaqueServer, addr string) {
				callWithGo(t, provider, server, addr, version, ttl)
			})
		}
	}
}

// callWithGo has a client of the Go SDK call a tool in one session: with a first token, with the next one, and with
// one that has another scope.
func callWithGo(t *testing.T, provider *opaqueProvider, server *opaqueServer, addr, version string, ttl time.Duration) {
	t.Helper()
	session, _ := connectSigningIn(t, provider.oidc, addr, version, nil)
	if session == nil {
		return
	}
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

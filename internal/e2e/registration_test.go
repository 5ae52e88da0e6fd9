package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oauth2-proxy/mockoidc"
)

// registry is what an OpenID provider of the tests does not have by itself: clients can register (RFC
// 7591) and revoke their tokens (RFC 7009), and its metadata says where; and it knows the scopes of tokens.
type registry struct {
	scoped
	url        string
	registered atomic.Int64 // how many clients
	revoked    map[string]bool
}

func startRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{scoped: scoped{scopes: map[string]string{}}, revoked: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /register", r.register)
	mux.HandleFunc("POST /revoke", r.revoke)
	r.url = serve(t, mux)
	r.oidc = startOIDC(t, r.around)
	return r
}

// register gives the client of the provider to whoever asks for one.
func (r *registry) register(w http.ResponseWriter, req *http.Request) {
	var asked map[string]any
	if err := json.NewDecoder(req.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.registered.Add(1)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"client_id": r.ClientID, "client_secret": r.ClientSecret, "client_secret_expires_at": 0, "redirect_uris": asked["redirect_uris"],
		"token_endpoint_auth_method": "client_secret_post", "grant_types": []string{"authorization_code", "refresh_token"},
	})
}

func (r *registry) revoke(_ http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revoked[req.FormValue("token")] = true
}

// lacks reports whether a token has not the scope profile.
func (r *registry) lacks(token string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !strings.Contains(r.scopes[token], "profile")
}

// scoped is a provider of whose tokens the scopes are known.
type scoped struct {
	oidc

	mu     sync.Mutex
	scopes map[string]string // of the codes and of the tokens
}

// answer has the provider answer, and notes the scope of a code, and of the token for it, which gets another name.
func (p *scoped) answer(w http.ResponseWriter, r *http.Request, next http.Handler, rename func(string) string) {
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	body := answer.Body.Bytes()
	var token map[string]any
	p.mu.Lock()
	if at, err := answer.Result().Location(); err == nil {
		p.scopes[at.Query().Get("code")] = r.FormValue("scope")
	} else if json.Unmarshal(body, &token) == nil && token["access_token"] != nil {
		name := rename(fmt.Sprint(token["access_token"]))
		p.scopes[name] = p.scopes[r.FormValue("code")]
		token["access_token"] = name
		body, _ = json.Marshal(token)
	}
	p.mu.Unlock()
	maps.Copy(w.Header(), answer.Header())
	w.Header().Del("Content-Length")
	w.WriteHeader(answer.Code)
	_, _ = w.Write(body)
}

// around adds to the metadata of the provider, and keeps revoked tokens from it.
func (r *registry) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		revoked := r.revoked[strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")] || req.URL.Path == mockoidc.TokenEndpoint && r.revoked[req.FormValue("refresh_token")]
		r.mu.Unlock()
		switch {
		case revoked && req.URL.Path == mockoidc.TokenEndpoint:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"invalid_grant"}`)
		case revoked:
			w.WriteHeader(http.StatusUnauthorized)
		case req.URL.Path == mockoidc.AuthorizationEndpoint, req.URL.Path == mockoidc.TokenEndpoint:
			r.answer(w, req, next, func(name string) string { return name })
		case req.URL.Path == mockoidc.DiscoveryEndpoint:
			plain := httptest.NewRecorder()
			next.ServeHTTP(plain, req)
			var all map[string]any
			if err := json.Unmarshal(plain.Body.Bytes(), &all); err != nil {
				r.t.Error(err)
			}
			all["registration_endpoint"], all["revocation_endpoint"] = r.url+"/register", r.url+"/revoke"
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(all)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

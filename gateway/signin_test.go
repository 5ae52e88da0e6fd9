package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// signIn is a gateway with an upstream for each way to sign in, all with the same server.
type signIn struct {
	t      *testing.T
	http   http.Handler
	issuer *wiretest.Issuer
	audit  *bytes.Buffer
}

const toolScopes = "tools:run"

func newSignIn(t *testing.T) *signIn {
	t.Helper()
	s := newStage(t)
	s.up.Era, s.up.Raw = mcp.Modern, []byte(`{"capabilities":{"tools":{}}}`)
	issuer := wiretest.NewIssuer(t, "/tenant")
	c := config.Default()
	wiretest.WithKeys(c)
	keys := config.UpstreamAuth{Anonymous: config.Off, Keys: c.Auth.Keys}
	wiretest.WithTokens(c, issuer) // the auth of all
	c.Auth.JWT.Scopes = []string{"mcp:use"}
	for name, own := range map[string]*config.UpstreamAuth{
		"up": nil, "keys": &keys, "open": {Anonymous: config.On},
		"header": {Anonymous: config.Off, TrustedHeader: &config.TrustedHeader{Name: "X-User", From: []string{"192.0.2.0/24"}}},
	} {
		u := config.NewUpstream(name, "http://up.example/")
		u.Auth = own
		if name == "up" {
			rule := config.Rule{Match: config.ByName("run*"), Tool: u.Defaults}
			rule.Scopes = toolScopes
			u.Tools = []config.Rule{rule}
		}
		c.Upstreams = append(c.Upstreams, u)
	}
	wiretest.Check(t, c.Validate())
	var audit bytes.Buffer
	s.config, s.audit = c, slog.New(slog.NewTextHandler(&audit, nil))
	h := s.start()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.gateway.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return &signIn{t, h, issuer, &audit}
}

// send posts to an upstream, from 192.0.2.1.
func (s *signIn) send(upstream, body string, headers http.Header) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequest("POST", "/"+upstream+"/mcp", strings.NewReader(body))
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	if msg, err := jsonrpc.Parse([]byte(body)); err == nil {
		wiretest.CorrectHeaders(r.Header, msg)
	}
	maps.Copy(r.Header, headers)
	return serve(s.http, r)
}

// do sends a request without a body.
func (s *signIn) do(method, path string) *httptest.ResponseRecorder {
	return serve(s.http, httptest.NewRequest(method, path, nil))
}

func bearerOf(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// TestNoWayFallsIntoAnother: what one upstream takes, no other one takes, and who is refused by
// the way of an upstream is not served in another way.
func TestNoWayFallsIntoAnother(t *testing.T) {
	s := newSignIn(t)
	ways := map[string]http.Header{
		"up":     bearerOf(s.issuer.Token("alice", map[string]any{"scope": "mcp:use"})),
		"keys":   bearerOf(wiretest.AliceKey),
		"header": {"X-User": {"alice"}},
		"open":   {},
	}
	discover := `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{` + wiretest.Macros.Replace("$META") + `}}}`
	for upstream := range ways {
		for way, headers := range ways {
			w := s.send(upstream, discover, headers)
			if served := w.Code == http.StatusOK; served != (way == upstream || upstream == "open") {
				t.Errorf("%s by the way of %s: %d %s", upstream, way, w.Code, w.Body)
			}
			if w.Code != http.StatusOK && w.Code != http.StatusUnauthorized && w.Code != http.StatusForbidden {
				t.Errorf("%s by the way of %s: %d %s", upstream, way, w.Code, w.Body)
			}
		}
	}
}

// TestProtectedResourceMetadata: where it is, a client is told with 401, and nobody needs a token
// to read it (Z4).
func TestProtectedResourceMetadata(t *testing.T) {
	s := newSignIn(t)
	w := s.send("up", `{}`, nil)
	const at = "/.well-known/oauth-protected-resource/up/mcp"
	if want := `Bearer resource_metadata="` + wiretest.PublicURL + at + `", scope="mcp:use"`; w.Code != 401 || w.Header().Get("WWW-Authenticate") != want {
		t.Errorf("%d %q", w.Code, w.Header().Get("WWW-Authenticate"))
	}
	w = s.do("GET", at)
	var got any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || w.Header().Get("Content-Type") != mcp.TypeJSON {
		t.Fatalf("%d %v %s: %v", w.Code, w.Header(), w.Body, err)
	}
	want := map[string]any{
		"resource": wiretest.Audience, "authorization_servers": []any{s.issuer.URL},
		"scopes_supported": []any{"mcp:use"}, "bearer_methods_supported": []any{"header"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if w := s.do("POST", at); w.Code != http.StatusNotFound {
		t.Errorf("POST: %d", w.Code)
	}
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/keys/mcp"} {
		if w := s.do("GET", path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// TestMetadataOfTheRoot: nothing follows the address of the metadata for an upstream at /.
func TestMetadataOfTheRoot(t *testing.T) {
	c := config.FromFlags("http://up.example/")
	c.Upstreams[0].Path = "/"
	wiretest.WithTokens(c, wiretest.NewIssuer(t, ""))
	s := newStage(t)
	s.config = c
	w := serve(s.start(), httptest.NewRequest("GET", "/.well-known/oauth-protected-resource", nil))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"resource":"`+wiretest.PublicURL+`/"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestScopesOfTools: a call of a tool that needs a scope is refused before anything is done for
// it, and says which scopes a token needs.
func TestScopesOfTools(t *testing.T) {
	s := newSignIn(t)
	less, more := s.issuer.Token("alice", map[string]any{"scope": "mcp:use"}), s.issuer.Token("alice", map[string]any{"scope": "mcp:use " + toolScopes})
	meta := `"_meta":{` + wiretest.Macros.Replace("$META") + `}`
	call := func(name string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + name + `",` + meta + `}}`
	}
	const want = `Bearer resource_metadata="` + wiretest.PublicURL + `/.well-known/oauth-protected-resource/up/mcp", scope="mcp:use ` + toolScopes + `",` +
		` error="insufficient_scope", error_description="the token has not all scopes that this needs"`
	for name, body := range map[string]string{
		"modern":      call("run"),
		"legacy":      `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run-it"}}`,
		"escaped":     strings.Replace(call("run"), `"name":"run"`, `"n\u0061me":"r\u0075n"`, 1),
		"with a task": `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run","task":{}}}`,
	} {
		w := s.send("up", body, bearerOf(less))
		if w.Code != http.StatusForbidden || w.Header().Get("WWW-Authenticate") != want || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%s: %d %q %s", name, w.Code, w.Header().Get("WWW-Authenticate"), w.Body)
		}
		if w := s.send("up", body, bearerOf(more)); w.Code == http.StatusForbidden || w.Code == http.StatusUnauthorized {
			t.Errorf("%s with the scope: %d %s", name, w.Code, w.Body)
		}
	}
	if record := s.audit.String(); !strings.Contains(record, `msg="call refused"`) || !strings.Contains(record, "name=alice") || strings.Contains(record, "sign-in") {
		t.Errorf("the audit log has\n%s", record)
	}
	for name, body := range map[string]string{
		"modern": strings.Replace(call("walk"), `"name":`, `"NAME":"run","name":`, 1),
		"legacy": `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"walk","Name":"run"}}`,
	} {
		if w := s.send("up", body, bearerOf(less)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "-32602") {
			t.Errorf("%s, two names: %d %s", name, w.Code, w.Body)
		}
	}
	if w := s.send("up", call("walk"), bearerOf(less)); w.Code == http.StatusForbidden {
		t.Errorf("another tool: %d %s", w.Code, w.Body)
	}
	if w := s.send("up", call("run"), bearerOf(less)); !strings.Contains(w.Body.String(), `"id":7`) {
		t.Errorf("the answer is to no call: %s", w.Body)
	}
}

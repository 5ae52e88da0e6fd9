package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/internal/otlptest"
	"taskgate/internal/proc"
	"taskgate/internal/taskclient"
	"taskgate/internal/wiretest"
)

// watched is a gateway all of whose signals are kept: what it exports, and what it writes.
type watched struct {
	*gateway
	rec     *otlptest.Receiver
	written *output
}

// startWatched runs "taskgate serve" with these arguments.
func startWatched(t *testing.T, rec *otlptest.Receiver, args ...string) *watched {
	t.Helper()
	written := &output{}
	return &watched{startAt(t, freeAddr(t), proc.Command{Env: rec.Env(), Stdout: written, Stderr: written}, args...), rec, written}
}

// tellsNothingOf stops the gateway, so that it exports what is left, and fails the test if one of the
// secrets is in what it has exported or written.
func (w *watched) tellsNothingOf(t *testing.T, secrets map[string]string) {
	t.Helper()
	stops(t, w.Process, 30*time.Second)
	exported := w.rec.Raw()
	if len(w.rec.Spans()) == 0 || len(w.rec.Logs()) == 0 || len(w.rec.Metrics()) == 0 || w.written.count("level=DEBUG") == 0 {
		t.Errorf("a signal is missing: %d spans, %d records, %d metrics", len(w.rec.Spans()), len(w.rec.Logs()), len(w.rec.Metrics()))
	}
	for what, secret := range secrets {
		if at := bytes.Index(exported, []byte(secret)); at >= 0 {
			t.Errorf("%s was exported: %q", what, exported[max(0, at-300):at+len(secret)])
		}
		if w.written.count(secret) > 0 {
			t.Errorf("%s is in the log", what)
		}
	}
}

// choosy is a server that takes these tokens, and refuses any other in words of its own. The gateway's
// own header lets a request in, too. It keeps what it was sent.
type choosy struct {
	url   string
	takes map[string]bool // values of Authorization

	mu   sync.Mutex
	seen bytes.Buffer // headers
}

func startChoosy(t *testing.T, issuer string) *choosy {
	t.Helper()
	s := &choosy{takes: map[string]bool{}}
	server := newPeer("choosy")
	for _, tool := range []string{"quick", "slow"} {
		addWords(server, tool, func(context.Context, *sdk.CallToolRequest) string { return "done" })
	}
	s.url = guard(t, issuer, streamable(server, nil), func(r *http.Request) (int, string) {
		s.mu.Lock()
		_ = r.Header.Write(&s.seen)
		s.mu.Unlock()
		if !s.takes[r.Header.Get("Authorization")] && r.Header.Get("X-Own") == "" {
			return http.StatusUnauthorized, `, error="invalid_token", error_description="no"`
		}
		return http.StatusOK, ""
	})
	return s
}

// guard serves a server to requests for which judge returns 200. Others are refused with the status that it returns,
// and with more to the challenge. The metadata of the server names the issuer of its tokens.
func guard(t *testing.T, issuer string, server http.Handler, judge func(*http.Request) (status int, more string)) (url string) {
	t.Helper()
	const metadata = "/.well-known/oauth-protected-resource"
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := "http://" + r.Host
		if strings.HasPrefix(r.URL.Path, metadata) {
			_ = json.NewEncoder(w).Encode(map[string]any{"resource": at + "/mcp", "authorization_servers": []string{issuer}, "scopes_supported": []string{"openid"}})
			return
		}
		status, more := judge(r)
		if status != http.StatusOK {
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+at+metadata+`/mcp"`+more)
			http.Error(w, more, status)
			return
		}
		server.ServeHTTP(w, r)
	})) + "/mcp"
}

// everyWay has an upstream for each way to sign in, all with the same server.
const everyWay = `
admin: %[1]s
public_url: https://gateway.example
auth: {trusted_header: {name: X-User, from: [127.0.0.1]}}
log: {level: debug}
drain_delay: 0s
upstreams:
  - {name: passed, path: /passed, url: "%[2]s", auth: {passthrough: {}}, forward_headers: &forward [X-Tenant, Cookie], tools: &tools [{match: slow, tasks: always, poll_interval: 100ms}]}
  - name: asked
    path: /asked
    url: "%[2]s"
    auth: {passthrough: {introspection: {url: "%[3]s/introspect", client_id: gateway, client_secret: %[4]s}}}
    forward_headers: *forward
    tools: *tools
  - {name: tokens, path: /tokens, url: "%[2]s", headers: &own {X-Own: "1"}, auth: {jwt: {issuer: "%[3]s", audiences: [%[5]q]}}, forward_headers: *forward, tools: *tools}
  - {name: keys, path: /keys, url: "%[2]s", headers: *own, auth: {keys: [holder:%[6]s]}, forward_headers: *forward, tools: *tools}
  - {name: trusted, path: /trusted, url: "%[2]s", headers: *own, forward_headers: *forward, tools: *tools}
`

// What a client signs in by, a header that goes on to a server, what an issuer says of a token, and what
// the gateway signs in by at the introspection endpoint are in no span, record or metric, not on /metrics
// and not in the log, whether it is let in or refused, and while the issuer cannot be asked.
func TestWhatSignsInIsInNoSignal(t *testing.T) {
	t.Parallel()
	const subject, tenant, cookie, user = "subject-7411", "tenant-7411", "cookie-7411", "user-7411"
	issuer, admin := wiretest.NewIssuer(t, ""), freeAddr(t)
	server := startChoosy(t, issuer.URL)
	aud := []string{wiretest.Audience, server.url}
	token := func(more string) string { return issuer.Token(subject, map[string]any{"aud": aud, "jti": more}) }
	told := map[string]any{"aud": aud, "username": "known-to-introspection-7411"}
	known, unasked := issuer.Opaque(subject, told), issuer.Opaque(subject, told)
	old := issuer.Token(subject, map[string]any{"aud": aud, "exp": time.Now().Add(-time.Hour).Unix()})
	secrets := map[string]string{
		"the subject": subject, "a forwarded header": tenant, "a cookie": cookie, "a trusted header": user,
		"a claim of introspection": "known-to-introspection-7411", "a key": wiretest.AliceKey,
		"the secret of introspection": wiretest.IntrospectionSecret, "a token that nobody can be asked about": unasked,
		"it in Basic": base64.StdEncoding.EncodeToString([]byte("gateway:" + wiretest.IntrospectionSecret)),
	}
	good := map[string][]string{
		"passed": {"Bearer " + token("passed")}, "asked": {"Bearer " + token("asked"), "Bearer " + known},
		"tokens": {"Bearer " + token("tokens")}, "keys": {"Bearer " + wiretest.AliceKey}, "trusted": {user},
	}
	theirs := issuer.Token(subject, map[string]any{"aud": server.url, "jti": "refused"}) // it is good, but not for them
	refused := []string{"Bearer " + theirs, "Bearer " + old, "Bearer unknown-7411", "Basic YmFzaWMtNzQxMTpwdw==", "Bearer two-7411 three-7411", "broken-7411"}
	for at, values := range good {
		for _, value := range append(values, refused...) {
			_, value, _ = strings.Cut(value, " ")
			if value == "" || at == "trusted" {
				continue
			}
			secrets[value] = value
			if parts := strings.Split(value, "."); len(parts) == 3 {
				secrets["the claims of "+value], secrets["the signature of "+value] = parts[1], parts[2]
			}
		}
	}
	secrets["no credential"] = "broken-7411"
	for _, value := range append(good["passed"], good["asked"]...) {
		server.takes[value] = true
	}
	g := startWatched(t, otlptest.Start(t), configured(t, fmt.Sprintf(everyWay, admin, server.url, issuer.URL,
		wiretest.IntrospectionSecret, wiretest.Audience, config.HashKey(wiretest.AliceKey)))...)
	client := func(at string, values ...string) *taskclient.Client {
		shown := map[bool]string{true: "X-User", false: "Authorization"}[at == "trusted"]
		h := sending{"X-Tenant": {tenant}, "Cookie": {"c=" + cookie}, shown: values}
		return &taskclient.Client{URL: "http://" + g.addr + "/" + at, Tasks: true, HTTP: &http.Client{Transport: h}}
	}
	for at, values := range good {
		for _, value := range values {
			c := client(at, value)
			callPlain(t, c, "quick", map[string]any{})
			waitFor(t, c, callTask(t, c, "slow", map[string]any{}).ID, taskclient.Completed)
			inSession := connectOver(t, &sdk.StreamableClientTransport{Endpoint: c.URL, HTTPClient: c.HTTP}, "2025-11-25")
			inSession.call(t, "quick", none)
			_ = inSession.Close()
		}
	}
	for at := range good {
		for _, value := range refused {
			if _, _, err := client(at, value).CallTool(t.Context(), "quick", map[string]any{}); err == nil && at != "trusted" {
				t.Errorf("%s has let in %s", at, value)
			}
		}
		_, _, _ = client(at, good[at][0], refused[0]).CallTool(t.Context(), "quick", map[string]any{})
	}
	issuer.SetDown(true)
	for _, at := range []string{"passed", "asked"} {
		if _, _, err := client(at, "Bearer "+unasked).CallTool(t.Context(), "quick", map[string]any{}); err == nil {
			t.Errorf("%s has let somebody in whom nobody knows", at)
		}
	}
	server.mu.Lock()
	seen := server.seen.String()
	server.mu.Unlock()
	for _, value := range []string{tenant, "c=" + cookie, good["passed"][0], good["asked"][1], refused[0]} {
		if !strings.Contains(seen, value) {
			t.Errorf("the server has not seen %s", value)
		}
	}
	shown := metricsOf(t, admin)
	if !strings.Contains(shown, "taskgate_task") {
		t.Errorf("/metrics has nothing of tasks:\n%s", shown)
	}
	for what, secret := range secrets {
		if strings.Contains(shown, secret) {
			t.Errorf("%s is on /metrics", what)
		}
	}
	g.tellsNothingOf(t, secrets)
}

// metricsOf is what Prometheus is shown.
func metricsOf(t *testing.T, admin string) string {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return string(text)
}

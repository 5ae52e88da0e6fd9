package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// passed is a gateway in front of a server that signs its callers in.
func passed(t *testing.T, server http.Handler, change ...func(*config.Config)) (get func(method, path, body string) *httptest.ResponseRecorder, url string, g *Gateway) {
	t.Helper()
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	s := newStage(t)
	c := config.Default()
	s.config = c
	c.PublicURL, c.Auth.Passthrough = wiretest.PublicURL, config.NewPassthrough()
	c.Upstreams = []*config.Upstream{config.NewUpstream("up", web.URL+"/mcp")}
	for _, change := range change {
		change(c)
	}
	h := s.start()
	return func(method, path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Basic "+body)
		r.Header.Set("Cookie", "c=1")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return serve(h, r)
	}, web.URL, s.gateway
}

// TestRefusedTokenIsToldSo: whatever ends at the gateway is refused there if the server has refused the token, so that
// the client gets another one. All else goes on to the server, which may take the token again.
func TestRefusedTokenIsToldSo(t *testing.T) {
	_, _, g := passed(t, http.NotFoundHandler(), func(c *config.Config) { c.Upstreams[0].WithoutTasks = config.WithoutTasksHandle })
	u := g.now.Load().routes[0]
	r := httptest.NewRequest("POST", "/up/mcp", nil)
	r.Header = bearerOf("revoked")
	c, _ := u.methods.Of("up").Identify(r)
	c.Credential(nil).Hear("Bearer revoked", mcp.MethodToolsCall, time.Now(), http.StatusUnauthorized)
	for body, ends := range map[string]bool{
		`"method":"tasks/get","params":{"taskId":"1"}`:                                      true,
		`"method":"tools/call","params":{"name":"task_result","arguments":{}}`:              true,
		`"method":"tools/call","params":{"name":"t","requestState":"tg1.x","arguments":{}}`: true,
		`"method":"prompts/get","params":{"name":"p","requestState":"1"}`:                   false,
		`"method":"tools/call","params":{"name":"t","arguments":{"requestState":"none"}}`:   false,
		`"method":"prompts/get","params":{"name":"task_result"}`:                            false,
		`"method":"tools/list"`: false,
	} {
		msg, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,` + body + `}`))
		if refusal := u.mayRead(t.Context(), &c, msg); err != nil || (refusal != nil) != ends {
			t.Errorf("%s: %v, %v", body, refusal, err)
		}
	}
}

// TestMetadataIsPassedOn: the metadata of a server is served with the gateway's address where it was the
// server's, and otherwise as it is: with another name its client refuses it. If it cannot be had,
// nothing takes its place (Z4).
func TestMetadataIsPassedOn(t *testing.T) {
	const at = "/.well-known/oauth-protected-resource"
	for name, c := range map[string]struct {
		path, resource string // "" answers with status
		status         int
		want           string
		wantStatus     int
	}{
		"its own":           {at + "/mcp", "$URL/mcp", 200, wiretest.PublicURL + "/up/mcp", 200},
		"its origin":        {at, "$URL", 200, wiretest.PublicURL + "/up/mcp", 200},
		"another path":      {at + "/mcp", "$URL/other", 200, "", 502},
		"another server":    {at + "/mcp", "https://evil.example/mcp", 200, "", 502},
		"the gateway's":     {at + "/mcp", wiretest.PublicURL + "/up/mcp", 200, wiretest.PublicURL + "/up/mcp", 200},
		"the whole gateway": {at + "/mcp", wiretest.PublicURL, 200, "", 502},
		"another scheme":    {at + "/mcp", "https$HOST/mcp", 200, "", 502},
		"none":              {"/nowhere", "x", 200, "", 404},
		"not at the moment": {at + "/mcp", "", 503, "", 502},
		"no metadata":       {at + "/mcp", "", 200, "", 404},
	} {
		t.Run(name, func(t *testing.T) {
			var url string
			fill := func(s string) string {
				return strings.NewReplacer("$URL", url, "$HOST", strings.TrimPrefix(url, "http")).Replace(s)
			}
			get, at, _ := passed(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "":
					t.Errorf("the server was sent %v", r.Header)
				case r.URL.Path != c.path:
					http.NotFound(w, r)
				case c.resource == "":
					w.WriteHeader(c.status)
				default:
					_, _ = io.WriteString(w, `{ "scopes_supported": ["a"],"resource":"`+fill(c.resource)+`", "x":1.0}`)
				}
			}))
			url = at
			w := get("GET", "/.well-known/oauth-protected-resource/up/mcp", "")
			want := ""
			if c.want != "" {
				want = `{ "scopes_supported": ["a"],"resource":"` + fill(c.want) + `", "x":1.0}`
			}
			if w.Code != c.wantStatus || want != "" && w.Body.String() != want {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, c.wantStatus, want)
			}
		})
	}
}

// TestMetadataOfTheOrigin: where a server has its metadata at its origin, under a name that is the gateway's
// by now, it is there, as it is; for an address with a path there is none, as there is none at the server,
// unless the server says where it is.
func TestMetadataOfTheOrigin(t *testing.T) {
	const at, document = "/.well-known/oauth-protected-resource", `{"resource":"` + wiretest.PublicURL + `", "x":1.0}`
	get, url, g := passed(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != at {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, document)
	}), func(c *config.Config) {
		up := c.Upstreams[0]
		up.ForwardHost = config.On
		away := *up
		away.Name, away.Path, away.URL = "away", "/away", "http://127.0.0.1:1/"
		c.Upstreams = []*config.Upstream{&away, up}
	})
	if w := get("GET", at, ""); w.Code != 200 || w.Body.String() != document {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := get("GET", at+"/up/mcp", ""); w.Code != 404 {
		t.Errorf("with the path: %d %s", w.Code, w.Body)
	}
	g.now.Load().methods.Resource("up").Learn(url + at)
	if w := get("GET", at+"/up/mcp", ""); w.Code != 200 || w.Body.String() != document {
		t.Errorf("with the path, once a 401 has led there: %d %s", w.Code, w.Body)
	}
	get, _, _ = passed(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }), func(c *config.Config) { c.Upstreams[0].ForwardHost = config.On })
	if w := get("GET", at, ""); w.Code != 502 {
		t.Errorf("not at the moment: %d %s", w.Code, w.Body)
	}
}

package legacy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

const ofAlice = "Bearer of-alice"

func passthrough(c *config.Config) { c.Auth.Passthrough = config.NewPassthrough() }

// page is where the gateway has the metadata of the server.
const page = wiretest.PublicURL + "/.well-known/oauth-protected-resource/up/mcp"

// refuses has the server answer with a status and its challenge.
func (b *border) refuses(w http.ResponseWriter, status int) bool {
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(challengeOfServer, b.server))
	w.Header().Add("WWW-Authenticate", `DPoP algs="ES256"`)
	w.WriteHeader(status)
	return true
}

// wantRefused checks that the server's answer has come back whole.
func wantRefused(t *testing.T, what string, want, status int, h http.Header, body string) {
	t.Helper()
	challenge := strings.Replace(fmt.Sprintf(challengeOfServer, "X"), "X/.well-known/oauth-protected-resource/mcp", page, 1)
	if got := h.Values("WWW-Authenticate"); status != want || len(got) != 2 || got[0] != challenge || got[1] != `DPoP algs="ES256"` {
		t.Errorf("%s: %d %q %s", what, status, got, body)
	}
	if msg, err := jsonrpc.Parse([]byte(body)); err != nil || msg.Kind != jsonrpc.ErrorResponse {
		t.Errorf("%s: %s", what, body)
	}
}

// TestRefusalsComeBack: that a server wants its callers to sign in, or to sign in with more rights, is the
// answer to them, with its status and all of its challenges, whatever they have asked for. It says
// nothing about the era of the server.
func TestRefusalsComeBack(t *testing.T) {
	b := newBorder(t, passthrough)
	var refuse atomic.Int64
	refuse.Store(401)
	b.answer = func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) bool {
		status := int(refuse.Load())
		return status != 0 && r.URL.Path == "/mcp" && b.refuses(w, status)
	}
	signedIn := http.Header{"Authorization": {ofAlice}}
	for _, headers := range []http.Header{nil, signedIn} {
		for method, params := range map[string]string{
			"server/discover": "", "tools/list": "", "prompts/list": "", "resources/list": "", "x/foreign": "",
			"tools/call": `"name":"echo",`, "prompts/get": `"name":"p",`, "resources/read": `"uri":"file:///a",`,
			"completion/complete":  `"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":""},`,
			"subscriptions/listen": `"notifications":{"toolsListChanged":true},`,
		} {
			status, h, body := b.ask("POST", modernBody(method, params), headers)
			wantRefused(t, method, 401, status, h, body)
		}
		status, h, body := b.ask("POST", wiretest.InitializeBody, headers)
		wantRefused(t, "initialize", 401, status, h, body)
	}

	refuse.Store(0)
	_, h, _ := b.ask("POST", wiretest.InitializeBody, signedIn)
	in := http.Header{"Authorization": {ofAlice}, mcp.HeaderSession: h[mcp.HeaderSession]}
	if status, _, body := b.ask("POST", modernBody("tools/call", `"name":"echo",`), signedIn); status != 200 || !strings.Contains(body, "hello") {
		t.Fatalf("once it has signed in: %d %s", status, body)
	}
	for _, want := range []int{401, 403} {
		refuse.Store(int64(want))
		for method, params := range map[string]string{
			"tools/list": "", "tools/call": `"name":"echo"`, "prompts/get": `"name":"p"`, "logging/setLevel": `"level":"error"`,
			"resources/subscribe": `"uri":"file:///a"`, "x/foreign": "",
		} {
			status, h, body := b.ask("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s%d","method":%q,"params":{%s}}`, method, want, method, params), in)
			wantRefused(t, "in a session: "+method, want, status, h, body)
		}
		status, h, body := b.ask("POST", `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`, in)
		wantRefused(t, "in a session: a notification", want, status, h, body)
		status, h, body = b.ask("POST", modernBody("tools/call", `"name":"echo",`), signedIn)
		wantRefused(t, "tools/call", want, status, h, body)
	}
}

// TestRefusalOnAStream: where the answer has become an event stream, a refusal is an error on it.
func TestRefusalOnAStream(t *testing.T) {
	b := newBorder(t, func(c *config.Config) {
		passthrough(c)
		c.KeepAlive = 20 * time.Millisecond
	})
	slow := make(chan struct{})
	b.answer = func(w http.ResponseWriter, r *http.Request, msg jsonrpc.Message) bool {
		if msg.Method != mcp.MethodToolsCall {
			return false
		}
		<-slow
		return b.refuses(w, 401)
	}
	time.AfterFunc(200*time.Millisecond, func() { close(slow) })
	status, h, body := b.ask("POST", modernBody("tools/call", `"name":"echo",`), http.Header{"Authorization": {ofAlice}})
	if status != 200 || h.Get("WWW-Authenticate") != "" || !strings.Contains(body, `"message":"the server refused the client's sign-in (HTTP status 401)"`) {
		t.Errorf("%d %v %s", status, h, body)
	}
}

// TestTokensStayThere: a server that redirects, to its own origin or to another one, gets no token there.
func TestTokensStayThere(t *testing.T) {
	seen := make(chan string, 16)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("Authorization") }))
	t.Cleanup(other.Close)
	b := newBorder(t, passthrough)
	b.answer = func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) bool {
		http.Redirect(w, r, other.URL+"/mcp", http.StatusTemporaryRedirect)
		return true
	}
	status, _, body := b.ask("POST", modernBody("tools/call", `"name":"echo",`), http.Header{"Authorization": {ofAlice}})
	if len(seen) > 0 || !strings.Contains(body, `"error"`) {
		t.Errorf("%d %s; the other server has seen %d requests", status, body, len(seen))
	}
}

// TestTenantsAreApart: clients whose forwarded headers differ share no session with the server, and what
// it says of itself to one of them is not what another one is told.
func TestTenantsAreApart(t *testing.T) {
	b := newBorder(t, func(c *config.Config) {
		wiretest.WithKeys(c)
		c.Upstreams[0].ForwardHeaders = []string{"X-Tenant"}
	})
	in := map[string]string{} // the sessions with the server, by tenant
	for range 2 {
		for _, tenant := range []string{"a", "b", ""} {
			h := http.Header{"Authorization": {"Bearer " + wiretest.AliceKey}, "X-Tenant": {tenant}}
			if tenant == "" {
				h["X-Tenant"] = nil
			}
			b.seen()
			if status, _, body := b.ask("POST", modernBody("tools/call", `"name":"echo",`), h); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			for _, crossed := range strings.Split(b.seen(), "POST /mcp\n")[1:] {
				if has := strings.Contains(crossed, "X-Tenant: "+tenant+"\n"); has != (tenant != "") {
					t.Errorf("for %q: %s", tenant, crossed)
				}
				if _, rest, ok := strings.Cut(crossed, "Mcp-Session-Id: "); ok && strings.Contains(crossed, "tools/call") {
					id, _, _ := strings.Cut(rest, "\n")
					if in[tenant] != "" && in[tenant] != id {
						t.Errorf("%q has a second session: %s", tenant, id)
					}
					in[tenant] = id
				}
			}
		}
	}
	if in["a"] == "" || in["a"] == in["b"] || in["a"] == in[""] || in["b"] == in[""] {
		t.Errorf("the sessions are %v", in)
	}
}

// TestListeningCarriesHeaders: what the gateway listens to for a client, it asks for in the client's name.
func TestListeningCarriesHeaders(t *testing.T) {
	b := newBorder(t, func(c *config.Config) {
		passthrough(c)
		c.Upstreams[0].ForwardHeaders = []string{"X-Tenant"}
	})
	opened := make(chan http.Header, 4)
	b.answer = func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) bool {
		if r.Method != http.MethodGet || r.URL.Path != "/mcp" {
			return false
		}
		w.Header().Set("Content-Type", mcp.TypeSSE)
		_ = http.NewResponseController(w).Flush()
		opened <- r.Header
		<-r.Context().Done()
		return true
	}
	headers := http.Header{"Authorization": {ofAlice}, "X-Tenant": {"acme"}}
	_, h, _ := b.ask("POST", wiretest.InitializeBody, headers)
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.gateway, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Accept": {mcp.TypeSSE}, "Authorization": {ofAlice}, "X-Tenant": {"acme"}, mcp.HeaderSession: h[mcp.HeaderSession]}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer leave()
	got := wiretest.Await(t, opened, "the stream of the session with the server")
	if got.Get("Authorization") != ofAlice || got.Get("X-Tenant") != "acme" || got.Get(mcp.HeaderSession) != "session-1" {
		t.Errorf("the server was asked with %v", got)
	}
}

package legacy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// border is a gateway in front of a server that notes everything that crosses to it, byte by byte.
type border struct {
	t        *testing.T
	gateway  string
	server   string
	ended    chan struct{} // a signal: a session with the server is deleted
	sessions int
	modern   bool // the server is one of 2026
	// answer, if not nil, answers in place of the server; false leaves it to the server.
	answer func(w http.ResponseWriter, r *http.Request, msg jsonrpc.Message) bool

	mu      sync.Mutex
	crossed bytes.Buffer // in the order in which it has come
	ends    []string     // the ends of sessions, which come when they come
}

const challengeOfServer = `Bearer realm="a, b", scope="mcp:use files:read", error="invalid_token", resource_metadata="%s/.well-known/oauth-protected-resource/mcp", error_description="say \"please\""`

func newBorder(t *testing.T, change func(*config.Config)) *border {
	t.Helper()
	b := &border{t: t, ended: make(chan struct{}, 16)}
	web := httptest.NewServer(b)
	t.Cleanup(web.Close)
	b.server = web.URL
	server := upstream.Config{URL: web.URL + "/mcp", Headers: http.Header{"X-Of-The-Gateway": {"yes"}}}
	b.gateway = startAlone(t, server, func(c *config.Config) {
		c.PublicURL, c.Upstreams[0].URL = wiretest.PublicURL, server.URL
		change(c)
	}).url
	return b
}

// ServeHTTP is the server, with sessions, or modern. It wants nobody to sign in.
func (b *border) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.note(r, body)
	msg, _ := jsonrpc.Parse(body)
	if b.answer != nil && b.answer(w, r, msg) {
		return
	}
	result := ""
	switch {
	case r.Method == http.MethodDelete:
		b.ended <- struct{}{}
		return
	case r.Method != http.MethodPost:
		http.NotFound(w, r)
		return
	case msg.Kind == jsonrpc.Notification:
		w.WriteHeader(http.StatusAccepted)
		return
	case msg.Method == mcp.MethodDiscover && b.modern:
		result = `{"resultType":"complete","ttlMs":60000,"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`
	case msg.Method == mcp.MethodInitialize && !b.modern:
		b.mu.Lock()
		b.sessions++
		w.Header().Set(mcp.HeaderSession, fmt.Sprintf("session-%d", b.sessions))
		b.mu.Unlock()
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`
	case msg.Method == mcp.MethodToolsList:
		result = `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`
	case msg.Method == mcp.MethodToolsCall:
		result = `{"content":[{"type":"text","text":"hello"}]}`
	default:
		w.Header().Set("Content-Type", mcp.TypeJSON)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(jsonrpc.AppendError(nil, msg.ID, &jsonrpc.Error{Code: mcp.CodeMethodNotFound, Message: "no"}))
		return
	}
	w.Header().Set("Content-Type", mcp.TypeJSON)
	_, _ = w.Write(jsonrpc.AppendResult(nil, msg.ID, []byte(result)))
}

// note writes down a request as it is.
func (b *border) note(r *http.Request, body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var to bytes.Buffer
	fmt.Fprintf(&to, "%s %s\nHost: %s\n", r.Method, r.URL, r.Host)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		for _, value := range r.Header[name] {
			fmt.Fprintf(&to, "%s: %s\n", name, value)
		}
	}
	fmt.Fprintf(&to, "\n%s\n\n", body)
	if r.Method == http.MethodDelete {
		b.ends = append(b.ends, to.String())
	} else {
		b.crossed.Write(to.Bytes())
	}
}

// seen is what has crossed since the last call.
func (b *border) seen() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.ends)
	all := b.crossed.String() + strings.Join(b.ends, "")
	b.ends = nil
	b.crossed.Reset()
	return strings.NewReplacer(strings.TrimPrefix(b.server, "http://"), "SERVER", strings.TrimPrefix(strings.TrimSuffix(b.gateway, "/up/mcp"), "http://"), "GATEWAY").
		Replace(all)
}

// ask sends one request to the gateway, with headers that every client may send.
func (b *border) ask(method, body string, headers http.Header) (int, http.Header, string) {
	b.t.Helper()
	r := wiretest.Must(http.NewRequestWithContext(b.t.Context(), method, b.gateway, strings.NewReader(body)))(b.t)
	r.Header = http.Header{
		"Accept": {mcp.TypeAccept}, "Content-Type": {mcp.TypeJSON}, "User-Agent": {"the-client/1"},
		"Cookie": {"c=1"}, "X-Tenant": {"acme"}, "X-Other": {"other"}, "X-Hop": {"hop"}, "Connection": {"X-Hop"},
		"Proxy-Authorization": {"Basic eDp5"}, "X-Forwarded-For": {"192.0.2.7"}, "X-Forwarded-Proto": {"https"}, "Te": {"trailers"},
	}
	if msg, err := jsonrpc.Parse([]byte(body)); err == nil && strings.Contains(body, mcp.MetaProtocolVersion) {
		wiretest.CorrectHeaders(r.Header, msg)
	}
	maps.Copy(r.Header, headers)
	resp := wiretest.Must(http.DefaultClient.Do(r))(b.t)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Error(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// want is ask that wants this status, and these texts.
func (b *border) want(method, body string, headers http.Header, status int, texts ...string) http.Header {
	b.t.Helper()
	got, h, text := b.ask(method, body, headers)
	wantAnswer(b.t, got, text, status, texts...)
	return h
}

func modernBody(method, params string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `"_meta":{` + wiretest.Macros.Replace("$META") + `}}}`
}

// TestWhatCrosses: in each way to sign in exactly these bytes go to the server, of a client of each
// era that sends all kinds of headers. What a client signs in by does not, unless the server is the one
// that signs it in, and of its other headers only those go that are named.
func TestWhatCrosses(t *testing.T) {
	issuer := wiretest.NewIssuer(t, "")
	for name, c := range map[string]struct {
		change    func(*config.Config)
		headers   http.Header
		anonymous bool
	}{
		"anonymous": {func(*config.Config) {}, http.Header{"Authorization": {"Bearer nobody-asked"}}, true},
		"keys":      {wiretest.WithKeys, http.Header{"Authorization": {"Bearer " + wiretest.AliceKey}}, false},
		"jwt": {func(c *config.Config) { wiretest.WithTokens(c, issuer) },
			http.Header{"Authorization": {"Bearer " + issuer.Token("alice", nil)}}, false},
		"trusted_header": {func(c *config.Config) {
			c.Auth.TrustedHeader = &config.TrustedHeader{Name: "X-User", From: []string{"127.0.0.1"}}
		}, http.Header{"X-User": {"alice"}}, false},
		"passthrough":           {passthrough, http.Header{"Authorization": {ofAlice}}, false},
		"passthrough_anonymous": {passthrough, nil, true},
		"forward_headers": {func(c *config.Config) {
			c.Upstreams[0].ForwardHeaders = []string{"x-tenant", "X-Hop", "Cookie", "X-Missing", "Authorization"}
		}, http.Header{"Authorization": {ofAlice}, "X-Tenant": {"acme", "acme-2"}}, true},
		"forward_host": {func(c *config.Config) {
			c.Upstreams[0].ForwardHost, c.Upstreams[0].ForwardHeaders = config.On, []string{"X-Forwarded-Proto"}
			c.AllowedHosts = []string{"127.0.0.1"}
		}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBorder(t, c.change)
			// A client of each era, one after the other.
			b.want("POST", modernBody("tools/call", `"name":"echo",`), c.headers, 200, "hello")
			h := b.want("POST", wiretest.InitializeBody, c.headers, 200)
			headers := http.Header{}
			maps.Copy(headers, c.headers)
			headers[mcp.HeaderSession] = h[mcp.HeaderSession]
			for i, method := range []string{"tools/list", "tools/call"} {
				b.want("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"name":"echo"}}`, i+2, method), headers, 200, `"result"`)
			}
			b.want("DELETE", "", headers, 200)
			ends := 1 // of the session of the legacy client
			if c.anonymous {
				b.mu.Lock()
				ends = b.sessions // each call had one of its own
				b.mu.Unlock()
			}
			for range ends {
				wiretest.Await(t, b.ended, "the end of a session with the server")
			}
			file := filepath.Join("testdata", "crossing", name+".txt")
			got := b.seen()
			if *wiretest.Update {
				wiretest.Check(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			want := wiretest.Must(os.ReadFile(file))(t)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("what crosses (-want +got):\n%s", diff)
			}
		})
	}
}

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
	const at = `resource_metadata="` + page + `"`
	const bearer, dpop = `Bearer ` + at + `, error="invalid_token", error_description="say \"please\"", scope="mcp:use files:read", realm="a, b"`, `DPoP ` + at + `, algs="ES256"`
	if got := h.Values("WWW-Authenticate"); status != want || !slices.Equal(got, []string{bearer, dpop}) {
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
	b.want("POST", modernBody("tools/call", `"name":"echo",`), signedIn, 200, "hello")
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

// TestTokensStayThere: a server to which another one redirects gets no token.
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
			b.want("POST", modernBody("tools/call", `"name":"echo",`), h, 200)
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
	client := newRawClient(t, b.gateway)
	client.session = h.Get(mcp.HeaderSession)
	resp := wiretest.Must(client.do(ctx, http.MethodGet, "", "Authorization", ofAlice, "X-Tenant", "acme"))(t)
	defer resp.Body.Close()
	defer leave()
	got := wiretest.Await(t, opened, "the stream of the session with the server")
	if got.Get("Authorization") != ofAlice || got.Get("X-Tenant") != "acme" || got.Get(mcp.HeaderSession) != "session-1" {
		t.Errorf("the server was asked with %v", got)
	}
}

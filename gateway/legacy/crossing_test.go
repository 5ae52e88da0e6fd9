package legacy_test

import (
	"bytes"
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
	"testing"

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
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.gateway, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header = http.Header{
		"Accept": {mcp.TypeAccept}, "Content-Type": {mcp.TypeJSON}, "User-Agent": {"the-client/1"},
		"Cookie": {"c=1"}, "X-Tenant": {"acme"}, "X-Other": {"other"}, "X-Hop": {"hop"}, "Connection": {"X-Hop"},
		"Proxy-Authorization": {"Basic eDp5"}, "X-Forwarded-For": {"192.0.2.7"}, "X-Forwarded-Proto": {"https"}, "Te": {"trailers"},
	}
	if msg, err := jsonrpc.Parse([]byte(body)); err == nil && strings.Contains(body, mcp.MetaProtocolVersion) {
		wiretest.CorrectHeaders(r.Header, msg)
	}
	maps.Copy(r.Header, headers)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Error(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

func modernBody(method, params string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `"_meta":{` + wiretest.Macros.Replace("$META") + `}}}`
}

// visit is a client of each era, one after the other.
func (b *border) visit(headers http.Header, anonymous bool) {
	b.t.Helper()
	if status, _, body := b.ask("POST", modernBody("tools/call", `"name":"echo",`), headers); status != 200 || !strings.Contains(body, "hello") {
		b.t.Errorf("modern: %d %s", status, body)
	}
	status, h, body := b.ask("POST", wiretest.InitializeBody, headers)
	if status != 200 {
		b.t.Errorf("initialize: %d %s", status, body)
	}
	headers = maps.Clone(headers)
	if headers == nil {
		headers = http.Header{}
	}
	headers[mcp.HeaderSession] = h[mcp.HeaderSession]
	for i, method := range []string{"tools/list", "tools/call"} {
		if status, _, body := b.ask("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"name":"echo"}}`, i+2, method), headers); status != 200 || strings.Contains(body, `"error"`) {
			b.t.Errorf("%s: %d %s", method, status, body)
		}
	}
	if status, _, body := b.ask("DELETE", "", headers); status/100 != 2 {
		b.t.Errorf("DELETE: %d %s", status, body)
	}
	ends := 1 // of the session of the legacy client
	if anonymous {
		b.mu.Lock()
		ends = b.sessions // each call had one of its own
		b.mu.Unlock()
	}
	for range ends {
		wiretest.Await(b.t, b.ended, "the end of a session with the server")
	}
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
			b.visit(c.headers, c.anonymous)
			file := filepath.Join("testdata", "crossing", name+".txt")
			got := b.seen()
			if *wiretest.Update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("what crosses (-want +got):\n%s", diff)
			}
		})
	}
}

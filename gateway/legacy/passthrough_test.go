package legacy_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// eachOwner is eachHouse with the servers that sign callers in themselves as well: nothing of
// whose task is whose depends on that.
func eachOwner(t *testing.T, run func(t *testing.T, h *house)) {
	eachHouse(t, run)
	for name, token := range map[string]func(i *wiretest.Issuer, subject, server string) string{
		"passthrough, JWT": jwtOf, "passthrough, opaque": opaqueOf,
	} {
		t.Run(name, func(t *testing.T) {
			run(t, newHouseOf(t, func(h *house, c *config.Config) { h.withPassthrough(c, token) }))
		})
	}
}

func jwtOf(i *wiretest.Issuer, subject, server string) string {
	return i.Token(subject, map[string]any{"aud": server, "jti": time.Now().String()})
}

func opaqueOf(i *wiretest.Issuer, subject, server string) string {
	return i.Opaque(subject, map[string]any{"aud": server})
}

// nameIssuer is a server whose metadata name an issuer, for this resource, or itself.
func nameIssuer(t *testing.T, issuer *wiretest.Issuer, resource string) (url string) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/oauth-protected-resource" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"resource": cmp.Or(resource, "http://"+r.Host), "authorization_servers": []string{issuer.URL}})
	}))
	t.Cleanup(web.Close)
	return web.URL
}

// withPassthrough has the server sign callers in: its metadata names an issuer. Each key stands
// for a token of its own; what is no key is a token itself, and "" is none.
func (h *house) withPassthrough(c *config.Config, token func(i *wiretest.Issuer, subject, server string) string) {
	issuer := wiretest.NewIssuer(h.t, "")
	web := nameIssuer(h.t, issuer, "")
	c.PublicURL, c.Auth.Passthrough = wiretest.PublicURL, config.NewPassthrough()
	c.Auth.Passthrough.Introspection = &config.Introspection{URL: issuer.URL + "/introspect", ClientID: "gateway", ClientSecret: wiretest.IntrospectionSecret}
	c.Upstreams[0].URL = web
	h.issuer, h.server = issuer, web
	tokens := map[string]string{}
	for key, subject := range subjects {
		tokens[key] = token(issuer, subject, web)
	}
	h.sign = func(r *http.Request, key string) {
		if known := tokens[key]; known != "" {
			key = known
		}
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
	}
}

func newPassthroughHouse(t *testing.T) *house {
	return newHouseOf(t, func(h *house, c *config.Config) {
		h.withPassthrough(c, jwtOf)
		c.Auth.Passthrough.Unverified = config.UnverifiedBlock
	})
}

// TestNobodysTasks: who shows no token has tasks as where nobody is asked, and sees those of
// nobody who does.
func TestNobodysTasks(t *testing.T) {
	h := newPassthroughHouse(t)
	alice, nobody := h.caller(wiretest.AliceKey), h.caller("")
	hers, nobodys := alice.task(), nobody.task()
	nobody.awaitStatus(nobodys, "working")
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		foreign := nobody.modern(method, `"taskId":"`+hers+`",`)
		wantAlike(t, method, foreign, nobody.modern(method, `"taskId":"`+strange+`",`))
		wantTexts(t, []byte(foreign.body), "unknown task")
		wantAlike(t, method+" by alice", alice.modern(method, `"taskId":"`+nobodys+`",`), alice.modern(method, `"taskId":"`+strange+`",`))
	}
	alice.awaitStatus(hers, "working")
}

// TestUnverifiedCallersHaveNoTasks: their calls block, in both eras, and nothing offers them tasks.
func TestUnverifiedCallersHaveNoTasks(t *testing.T) {
	h := newPassthroughHouse(t)
	guest, alice := h.caller("of-nobody-knows-whom"), h.caller(wiretest.AliceKey)
	hers := alice.task()
	h.events.proceed <- struct{}{}
	alice.awaitStatus(hers, "completed")
	block := func(name string, call func() reply) {
		t.Helper()
		answer := make(chan reply, 1)
		go func() { answer <- call() }()
		wiretest.Await(t, h.events.started, "the tool")
		select {
		case r := <-answer:
			t.Fatalf("%s: it does not block: %v", name, r)
		case h.events.proceed <- struct{}{}:
		}
		if r := wiretest.Await(t, answer, "the answer"); !strings.Contains(r.body, `"content"`) || strings.Contains(r.body, "taskId") {
			t.Errorf("%s: %v", name, r)
		}
	}
	block("modern", func() reply { return guest.modern("tools/call", `"name":"wait",`) })
	foreign := guest.modern("tasks/get", `"taskId":"`+hers+`",`)
	wantAlike(t, "tasks/get", foreign, guest.modern("tasks/get", `"taskId":"`+strange+`",`))
	wantTexts(t, []byte(foreign.body), "unknown task")
	if r := guest.modern("server/discover", ""); strings.Contains(r.body, "io.modelcontextprotocol/tasks") {
		t.Errorf("tasks are offered: %v", r)
	}
	alice.modern("server/discover", "").want(t, http.StatusOK, "io.modelcontextprotocol/tasks")

	hello := guest.do("POST", wiretest.InitializeBody, nil)
	if _, offered := jsonrpc.Get([]byte(hello.body), "result", "capabilities", "tasks"); offered || hello.status != http.StatusOK {
		t.Errorf("tasks are offered: %v", hello)
	}
	guest.session = hello.header.Get("Mcp-Session-Id")
	if r := guest.legacy("tools/list", ""); strings.Contains(r.body, "taskSupport") || !strings.Contains(r.body, `"wait"`) {
		t.Errorf("tasks are offered: %v", r)
	}
	block("legacy", func() reply { return guest.legacy("tools/call", `"name":"wait","task":{}`) })
	guest.legacy("tasks/get", `"taskId":"`+hers+`"`).want(t, http.StatusOK, "unknown task")
	guest.legacy("tasks/list", "").want(t, http.StatusOK, `"tasks":[]`)
}

// TestRefreshKeepsTasks: a task and a session are those of whoever shows the next token. An old
// one is refused, and not told that its task does not exist.
func TestRefreshKeepsTasks(t *testing.T) {
	h := newPassthroughHouse(t)
	token := func(exp time.Time) *caller {
		return h.caller(h.issuer.Token("alice", map[string]any{"aud": h.server, "exp": exp.Unix(), "jti": time.Now().String()}))
	}
	soon := time.Now().Add(time.Hour)
	id, session := token(soon).task(), token(soon).initialize().session
	for range 3 {
		token(soon).awaitStatus(id, "working")
		next := token(soon)
		next.session = session
		if r := next.legacy("tasks/get", `"taskId":"`+id+`"`); !strings.Contains(r.body, `"working"`) {
			t.Fatalf("%v", r)
		}
	}
	old := token(time.Now().Add(-time.Hour))
	if r := old.modern("tasks/get", `"taskId":"`+id+`",`); r.status != http.StatusUnauthorized ||
		!strings.Contains(r.header.Get("Www-Authenticate"), `error="invalid_token"`) || strings.Contains(r.body, "unknown task") {
		t.Errorf("%v", r)
	}
	h.events.proceed <- struct{}{}
	token(soon).awaitStatus(id, "completed")
}

// TestOpenHandshake: a server that asks for a token after its handshake only can be signed in to. The 401 to
// the gateway's own discover is no answer to initialize, and the session that nobody has made becomes that
// of the first caller with a token who has its id.
func TestOpenHandshake(t *testing.T) {
	h := newPassthroughHouse(t)
	h.refuses = func(r *http.Request, body []byte) bool {
		msg, _ := jsonrpc.Parse(body)
		open := msg.Method == mcp.MethodInitialize || msg.Method == mcp.NotifyInitialized
		return !open && r.Header.Get("Authorization") == ""
	}
	client := h.caller("").initialize()
	if r := client.legacy(mcp.MethodToolsCall, `"name":"echo"`); r.status != http.StatusUnauthorized || r.header.Get("WWW-Authenticate") == "" {
		t.Errorf("without a token: %v", r)
	}
	client.key = wiretest.AliceKey
	client.legacy(mcp.MethodToolsCall, `"name":"echo"`).want(t, http.StatusOK, `"content"`)
	client.key = wiretest.AliceNext // after a refresh
	client.legacy(mcp.MethodToolsCall, `"name":"echo"`).want(t, http.StatusOK)
	for _, key := range []string{wiretest.BobKey, ""} {
		other := h.caller(key)
		other.session = client.session
		foreign := other.legacy(mcp.MethodToolsCall, `"name":"echo"`)
		other.session = strange
		wantAlike(t, "a session that was taken over", foreign, other.legacy(mcp.MethodToolsCall, `"name":"echo"`))
	}
}

// TestServerRefusesAudience: a server that takes tokens for its own address only cannot be signed in to at an
// address of the gateway's. The log says so once, and of no other refusal.
func TestServerRefusesAudience(t *testing.T) {
	h := newPassthroughHouse(t)
	h.refuses = func(r *http.Request, _ []byte) bool { return r.Header.Get("Authorization") != "" }
	h.caller(wiretest.AliceKey).modern(mcp.MethodToolsCall, `"name":"echo",`)
	const says = "meant for the gateway's address"
	if text := h.log.String(); strings.Contains(text, says) {
		t.Errorf("a token for the server: %s", text)
	}
	for range 2 {
		ours := h.issuer.Token("alice", map[string]any{"aud": wiretest.Audience, "jti": time.Now().String()})
		h.caller(ours).modern(mcp.MethodToolsCall, `"name":"echo",`).want(t, http.StatusUnauthorized)
	}
	if n := strings.Count(h.log.String(), says); n != 1 {
		t.Errorf("%d lines: %s", n, &h.log)
	}
	page, err := os.ReadFile("../../docs/security.md")
	_, section, _ := strings.Cut(string(page), "\n## Servers that sign their callers in\n")
	if !strings.Contains(h.log.String(), "docs/security.md#servers-that-sign-their-callers-in") || !strings.Contains(section, "401 after") {
		t.Errorf("what to do is not where the log says: %v, %s", err, &h.log)
	}
}

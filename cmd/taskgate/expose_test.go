package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// TestExposedHeaders: a client gets the named headers of the server's answer to its own request, in both eras, as JSON, as
// a stream and with a refusal; those of other requests that are made for it, and all others, stay at the gateway. A task
// has none that came after it was made.
func TestExposedHeaders(t *testing.T) {
	for name, mode := range map[string]fake.Mode{"legacy": fake.Stateful, "modern": fake.Modern} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, mode)
			limited := func(limit string, then fake.Behaviour) fake.Behaviour {
				return func(x *fake.Exchange) {
					h := x.W.Header()
					h.Set("X-RateLimit-Limit", limit)
					h.Set("X-Own", "stays")
					h.Set("X-RateLimit-Hop", "stays")
					h.Set("Connection", "X-RateLimit-Hop")
					h.Add("Set-Cookie", "a=b")
					then(x)
				}
			}
			s.Tool("plain", limited("10", fake.Text("done")))
			s.Tool("stream", limited("20", func(x *fake.Exchange) {
				x.Event(x.Progress(1, "half"))
				x.Event(x.Result(`{"content":[{"type":"text","text":"done"}]}`))
			}))
			s.Tool("refused", limited("30", fake.Status(http.StatusTooManyRequests, "text/plain", "too many")))
			handed := make(chan struct{}) // closed when the client has its handle
			hand := sync.OnceFunc(func() { close(handed) })
			defer hand()
			s.Tool("task", func(x *fake.Exchange) {
				<-handed
				limited("40", fake.Text("done"))(x)
			})
			r := runServer(t, s.URL, func(c *config.Config) {
				u := c.Upstreams[0]
				u.ExposeHeaders = []string{"x-ratelimit-*"}
				rule := config.Rule{Match: config.ByName("task"), Tool: u.Defaults}
				rule.Tasks = config.TasksAlways
				u.Tools = []config.Rule{rule}
				c.AllowedOrigins = []string{"https://page.example"}
			})
			_, _, opened := r.request("/mcp", "", wiretest.InitializeBody)
			session := opened.Get(mcp.HeaderSession)
			check := func(what, want string, h http.Header) {
				t.Helper()
				if got := strings.Join(h.Values("X-RateLimit-Limit"), ","); got != want || h.Get("X-Own") != "" || h.Get("X-RateLimit-Hop") != "" || h.Get("Set-Cookie") != "" {
					t.Errorf("%s has X-RateLimit-Limit %q, want %q, of\n%v", what, got, want, h)
				}
				told := h.Get("Access-Control-Expose-Headers")
				if !strings.Contains(told, mcp.HeaderSession) || strings.Contains(told, "X-Ratelimit-Limit") != (want != "") {
					t.Errorf("%s tells a page of %q", what, told)
				}
			}
			for tool, want := range map[string]string{"plain": "10", "stream": "20", "refused": "30", "task": ""} {
				_, _, h := r.request("/mcp", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":{},"_meta":{`+
					strings.Replace(wiretest.Macros.Replace("$META"), `"io.modelcontextprotocol/clientCapabilities":{`, `"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}`, 1)+`}}}`,
					"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", tool, "Origin", "https://page.example")
				check("the modern answer of "+tool, want, h)
				if tool == "task" {
					hand()
					continue
				}
				_, _, h = r.request("/mcp", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","_meta":{"progressToken":1}}}`,
					mcp.HeaderSession, session, "Origin", "https://page.example")
				check("the legacy answer of "+tool, want, h)
			}
		})
	}
}

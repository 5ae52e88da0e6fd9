package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// counted is a server behind a proxy that counts its requests.
func counted(t *testing.T, server string) (at string, requests *atomic.Int64) {
	t.Helper()
	to, err := url.Parse(server)
	must(t, err)
	requests = &atomic.Int64{}
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: to.Scheme, Host: to.Host})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	return web.URL + to.Path, requests
}

// askIn sends a request of 2025 as alice, in a session unless that is "". It returns the session of the answer.
func (c *changing) askIn(session, path, method, params string) (text, opened string) {
	var header []string
	if session != "" {
		header = []string{"Mcp-Session-Id", session}
	}
	_, text, h := c.request(path, wiretest.AliceKey, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, header...)
	return text, h.Get("Mcp-Session-Id")
}

// TestRemovedIsLeftAlone: nothing reaches the server of a removed upstream but the calls that are under way. The
// gateway introduces itself in its place, so that clients that come back can read their tasks.
func TestRemovedIsLeftAlone(t *testing.T) {
	one, _, _ := named(t, "one")
	two, called, letGo := named(t, "two")
	at, requests := counted(t, two)
	alice, a := keyed("alice", wiretest.AliceKey), "{name: a, url: '"+one+"'}"
	c := runChanging(t, time.Hour, alice+upstreamsOf(a, "{name: b, url: '"+at+"', defaults: {tasks: always}}"))
	const introduction = `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}`
	_, before := c.askIn("", "/b/mcp", "initialize", introduction)
	made, _ := c.askIn(before, "/b/mcp", "tools/call", `{"name":"slow","task":{}}`)
	task := made[strings.Index(made, `"taskId":"`)+10:]
	task = task[:strings.IndexByte(task, '"')]
	wiretest.Await(t, called, "a call")

	c.takes(alice + upstreamsOf(a))
	had := requests.Load()
	const gone = "this server is no longer offered"
	introduced, after := c.askIn("", "/b/mcp", "initialize", introduction)
	if !strings.Contains(introduced, gone) || !strings.Contains(introduced, `"tasks":{`) || after == "" {
		t.Errorf("initialize: %s", introduced)
	}
	if _, body := c.ask("/b/mcp", wiretest.AliceKey, "server/discover", ""); !strings.Contains(body, gone) || !strings.Contains(body, `/tasks":{`) {
		t.Errorf("server/discover: %s", body)
	}
	for _, method := range []string{"tools/list", "prompts/get", "some/other", "tools/call"} {
		if _, body := c.ask("/b/mcp", wiretest.AliceKey, method, "work"); !strings.Contains(body, gone) {
			t.Errorf("%s: %s", method, body)
		}
		for _, session := range []string{before, after} {
			if body, _ := c.askIn(session, "/b/mcp", method, `{"name":"work"}`); !strings.Contains(body, gone) {
				t.Errorf("%s of 2025: %s", method, body)
			}
		}
	}
	for _, session := range []string{before, after} {
		if body, _ := c.askIn(session, "/b/mcp", "tasks/get", `{"taskId":"`+task+`"}`); !strings.Contains(body, `"working"`) {
			t.Errorf("the task: %s", body)
		}
	}
	letGo()
	for _, session := range []string{before, after} {
		if body, _ := c.askIn(session, "/b/mcp", "tasks/result", `{"taskId":"`+task+`"}`); !strings.Contains(body, "two ") {
			t.Errorf("the result: %s", body)
		}
	}
	if n := requests.Load(); n != had {
		t.Errorf("the removed server got %d more requests", n-had)
	}
	client := newRenewable()
	client.removed.Store(true)
	if err := (offeredClient{client}).Listen(t.Context(), shim.Session{}, shim.Filter{}, nil, nil); !errors.Is(err, shim.ErrRemoved) {
		t.Errorf("who listens hears %v, and not that it is to try again", err)
	}
}

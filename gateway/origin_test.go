package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// startLogged is a gateway of a configuration, and its log.
func startLogged(t *testing.T, c *config.Config) (http.Handler, *bytes.Buffer) {
	t.Helper()
	wiretest.Check(t, c.Validate())
	s := newStage(t)
	var log bytes.Buffer
	s.config, s.log = c, slog.New(slog.NewTextHandler(&log, nil))
	s.up.Era, s.up.Raw = mcp.Modern, []byte(`{"capabilities":{"tools":{}}}`)
	h := s.start()
	t.Cleanup(func() { _ = s.gateway.Close(context.Background()) })
	return h, &log
}

func discoverAt(h http.Handler, host, path string) int {
	r := wiretest.ModernPost(mcp.MethodDiscover, `{"_meta":{$META}}`)
	r.Host, r.URL.Path = host, path
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// TestHosts: on a loopback address the names of the configuration are served. The operator of a proxy that
// keeps another one, or of a page of another origin, finds the reason in the log, once.
func TestHosts(t *testing.T) {
	c := config.FromFlags("http://up.example/")
	c.PublicURL, c.AllowedHosts = "https://gateway.example", []string{"inside.example"}
	h, log := startLogged(t, c)
	for host, want := range map[string]int{
		"127.0.0.1:8080": 200, "gateway.example": 200, "Gateway.example:443": 200, "inside.example": 200, "": 200, "evil.example": 403, "inside.example:evil.example": 403, "other.example": 403,
	} {
		if got := discoverAt(h, host, "/mcp"); got != want {
			t.Errorf("%s: %d, want %d", host, got, want)
		}
	}
	for range 2 {
		r := wiretest.ModernPost(mcp.MethodDiscover, `{"_meta":{$META}}`)
		r.Header.Set("Origin", "https://page.example")
		if w := serve(h, r); w.Code != http.StatusForbidden {
			t.Errorf("a foreign page: %d", w.Code)
		}
	}
	for _, key := range []string{"allowed_hosts lists", "allowed_origins lists"} {
		if n := strings.Count(log.String(), key); n != 1 {
			t.Errorf("%d lines with %s:\n%s", n, key, log)
		}
	}
}

// TestForwardedHosts: a server is asked by names of the configuration only, on every listener.
func TestForwardedHosts(t *testing.T) {
	c := config.FromFlags("http://up.example/")
	c.Listen, c.PublicURL, c.AllowedHosts = "0.0.0.0:0", "https://files.example", []string{"inside.example"}
	c.Upstreams[0].ForwardHost = config.On
	c.Upstreams = append(c.Upstreams, config.NewUpstream("plain", "http://up.example/"))
	h, log := startLogged(t, c)
	for host, want := range map[string]int{"files.example": 200, "inside.example:81": 200, "127.0.0.1": 403, "evil.example": 403} {
		if got := discoverAt(h, host, "/mcp"); got != want {
			t.Errorf("%s: %d, want %d", host, got, want)
		}
		if got := discoverAt(h, host, "/plain/mcp"); got != 200 {
			t.Errorf("%s where the host is not forwarded: %d", host, got)
		}
	}
	if !strings.Contains(log.String(), "allowed_hosts lists") {
		t.Errorf("the log does not say why:\n%s", log)
	}
}

// withPaths is a configuration with an upstream at each path.
func withPaths(paths ...string) *config.Config {
	c := config.FromFlags("http://up.example/")
	c.Upstreams = nil
	for i, path := range paths {
		u := config.NewUpstream(string(rune('a'+i)), "http://up.example/")
		u.Path = path
		c.Upstreams = append(c.Upstreams, u)
	}
	return c
}

// TestPathsLiveTogether: each upstream is at its own path, one at / included, and also there with a slash at its
// end. Of two paths that the check of the configuration lets through each is served.
func TestPathsLiveTogether(t *testing.T) {
	h, _ := startLogged(t, withPaths("/", "/a", "/a/b", "/a/mcp", "/A"))
	for path, want := range map[string]int{"/": 200, "/a": 200, "/a/b": 200, "/a/mcp": 200, "/A": 200, "/x": 404, "/a/": 200, "/a/b/": 200, "/a/b/c": 404, "/a/x/": 404} {
		if got := discoverAt(h, "127.0.0.1", path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	all := []string{
		"/", "//", "/a", "/a/", "/a/b", "/A", "/a.b", "/a-b/c", "/a//b", "/a/..", "/a/.", "/%61", "/a b", "/é", "/a?b", "/a#b", "/{$}", "/{a}", "/{a...}", "/a/{$}", "/a/{b}",
		"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/a", "GET /a", "a",
	}
	good := 0
	for i, one := range all {
		for _, other := range all[i+1:] {
			if withPaths(one, other).Validate() != nil {
				continue
			}
			good++
			h, _ := startLogged(t, withPaths(one, other))
			for _, path := range []string{one, other} {
				if got := discoverAt(h, "127.0.0.1", path); got != 200 {
					t.Errorf("%s beside %s: %s is %d", one, other, path, got)
				}
			}
		}
	}
	if good < 10 {
		t.Errorf("only %d pairs are good", good)
	}
}

package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// TestFrontPage: a browser at / is told what this is; somebody at this machine also where the console is.
func TestFrontPage(t *testing.T) {
	for _, one := range []struct {
		name, listen, host, accept, path string
		wants, not                       string
		status                           int
	}{
		{"at this machine", "127.0.0.1:8080", "localhost:8080", "text/html,*/*", "/up/mcp", `http://127.0.0.1:9090/console/`, "<script", 200},
		{"from elsewhere", ":8080", "gateway.example.com", "text/html", "/up/mcp", "gateway for MCP", "/up/mcp", 200},
		{"no browser", "127.0.0.1:8080", "localhost:8080", "*/*", "/up/mcp", "404", "gateway for MCP", 404},
		{"an upstream has the path", "127.0.0.1:8080", "localhost:8080", "text/html", "/", "", "gateway for MCP", 406},
	} {
		t.Run(one.name, func(t *testing.T) {
			c := config.Default()
			c.Listen, c.Admin = one.listen, "127.0.0.1:9090"
			u := config.NewUpstream("up", "http://127.0.0.1:1/mcp")
			u.Path = one.path
			c.Upstreams = []*config.Upstream{u}
			h, _ := startLogged(t, c)
			r := httptest.NewRequest("GET", "http://"+one.host+"/", nil)
			r.Header.Set("Accept", one.accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			body := w.Body.String()
			if w.Code != one.status || !strings.Contains(body, one.wants) || strings.Contains(body, one.not) {
				t.Errorf("%d: %s", w.Code, body)
			}
			if w.Code == http.StatusOK && !strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
				t.Error("the page may load what it likes")
			}
		})
	}
}

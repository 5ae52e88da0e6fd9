package gateway

import (
	"html"
	"net"
	"net/http"
	"strings"

	"taskgate/gateway/config"
)

// serveFrontPage answers a browser at / that this is a gateway for MCP. A person at this machine is told the addresses of the
// servers and of the console. It returns false for any other request, and where an upstream has that path.
func (t *table) serveFrontPage(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != "/" || !strings.Contains(r.Header.Get("Accept"), "text/html") || t.serves("/") {
		return false
	}
	page := "<!doctype html><meta charset=utf-8><title>taskgate</title><h1>taskgate</h1>" +
		"<p>This is a gateway for MCP. Programs that speak MCP use it at the address of a server; there is nothing to see in a browser."
	if t.isLocal(r) {
		page += "<p>Servers:<ul>"
		for _, u := range t.routes {
			if c := u.endpoint.Config; !c.Removed {
				page += "<li><bdi>" + html.EscapeString(c.Name) + "</bdi>: <code>" + html.EscapeString(c.Path) + "</code>"
			}
		}
		page += "</ul>" + t.consoleLink()
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(page)) // a browser that has gone needs none
	return true
}

// isLocal reports whether only this machine can connect, and this request came straight from it: a proxy on this machine
// passes on the name that it is called by.
func (t *table) isLocal(r *http.Request) bool {
	host, _, err := net.SplitHostPort(t.config.Listen)
	return err == nil && config.IsLoopback(host) && config.IsLoopback(hostOf(r.Host))
}

// consoleLink says where the console is.
func (t *table) consoleLink() string {
	_, port, err := net.SplitHostPort(t.config.Admin)
	switch {
	case t.config.Admin == "":
		return "<p>The console is off: <code>admin: 127.0.0.1:9090</code> or <code>--admin</code> opens it."
	case err != nil || port == "0":
		return "<p>The log has the address of the console."
	}
	at := html.EscapeString("http://" + t.config.Admin + "/console/")
	return `<p>Console: <a href="` + at + `">` + at + "</a>. The log has the link that signs you in."
}

package upstream

import (
	"context"
	"net"
	"net/http"
	"net/url"
)

// Reach finds out whether a connection to the server can be opened: to its host
// and port, or to those of the proxy that leads there. That is all it asks; no
// request is sent, so it costs the server next to nothing and starts no session.
func (h *HTTP) Reach(ctx context.Context) error {
	target := h.url
	if h.transport.Proxy != nil {
		proxy, err := h.transport.Proxy(&http.Request{URL: h.url})
		if err != nil {
			return err
		}
		if proxy != nil {
			target = proxy
		}
	}
	conn, err := h.transport.DialContext(ctx, "tcp", hostPort(target))
	if err != nil {
		return err
	}
	return conn.Close()
}

// hostPort is where a URL connects to.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

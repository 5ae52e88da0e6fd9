package main

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestLargeHeads: a head with too many fields is refused before it is complete, at every listener.
func TestLargeHeads(t *testing.T) {
	url, _, _ := named(t, "up")
	plain, secure := runServer(t, url, nil), runSecured(t, url, nil)
	overTLS, err := tls.Dial("tcp", secure.s.listener.Addr().String(), &tls.Config{RootCAs: secure.authority.Pool()})
	must(t, err)
	conns := map[string]net.Conn{"TLS": overTLS}
	for name, l := range map[string]net.Listener{"listen": plain.s.listener, "admin": plain.s.admin.listener} {
		conns[name], err = net.Dial("tcp", l.Addr().String())
		must(t, err)
	}
	for name, c := range conns {
		_, err := io.WriteString(c, "POST /mcp HTTP/1.1\r\nHost: x\r\n"+strings.Repeat("A:b\r\n", maxHeaderFields))
		must(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
		must(t, c.Close())
	}
	if n := refusalsIn([]byte(plain.scrape("text/plain")))["max_header"]; n != 2 {
		t.Errorf("%d were counted", n)
	}
}

package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/durable"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// secured is a gateway that is reached by https.
type secured struct {
	*running
	authority *wiretest.Authority
	cert, key string // files
}

func runSecured(t *testing.T, url string, change func(c *config.Config, a *wiretest.Authority)) *secured {
	t.Helper()
	dir, a := t.TempDir(), wiretest.NewAuthority(t)
	s := &secured{authority: a, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	a.Issue("gateway", s.cert, s.key)
	s.running = runServer(t, url, func(c *config.Config) {
		c.TLS.CertFile, c.TLS.KeyFile = s.cert, s.key
		if change != nil {
			change(c, a)
		}
		must(t, c.Validate())
	}, func(s *server) { s.lookEvery = 20 * time.Millisecond })
	return s
}

// ask sends server/discover on a connection of its own, and returns the status, the certificate
// that the gateway has shown, and what it said.
func (s *secured) ask(user string, pair ...tls.Certificate) (status int, shown *x509.Certificate, body string, err error) {
	s.t.Helper()
	text := `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{` + wiretest.Macros.Replace("$META") + `}}}`
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "https://"+s.s.listener.Addr().String()+"/mcp", strings.NewReader(text))
	must(s.t, err)
	for name, value := range map[string]string{"Content-Type": mcp.TypeJSON, "Accept": mcp.TypeAccept,
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover", "X-User": user} {
		r.Header.Set(name, value)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.authority.Pool(), Certificates: pair}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: patience}).Do(r)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.TLS.PeerCertificates[0], string(b), err
}

// TestTLS: with a certificate the gateway speaks https, and nothing else.
func TestTLS(t *testing.T) {
	url, _, _ := named(t, "up")
	s := runSecured(t, url, nil)
	if status, _, body, err := s.ask(""); status != http.StatusOK {
		t.Errorf("%d %s %v", status, body, err)
	}
	if resp, err := http.Get("http://" + s.s.listener.Addr().String() + "/mcp"); err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("without TLS: %s", resp.Status)
		}
	}
	if !strings.Contains(s.log.String(), "https://"+s.s.listener.Addr().String()+"/mcp") {
		t.Errorf("the log: %s", s.log)
	}
}

// TestNewCertificate: files that change are in use soon, without a restart; files that cannot be
// used leave what was there before.
func TestNewCertificate(t *testing.T) {
	t.Parallel()
	url, _, _ := named(t, "up")
	s := runSecured(t, url, nil)
	shown := func() *x509.Certificate {
		t.Helper()
		status, shown, body, err := s.ask("")
		if status != http.StatusOK {
			t.Fatalf("%d %s %v", status, body, err)
		}
		return shown
	}
	first := shown()
	must(t, durable.WriteFile(s.key, []byte("nonsense")))
	s.until("it is not said that the files are bad", func() bool {
		if !shown().Equal(first) {
			t.Fatal("another certificate")
		}
		return strings.Contains(s.log.String(), "cannot be used")
	})
	s.authority.Issue("gateway", s.cert, s.key)
	s.until("the new certificate is not shown", func() bool { return !shown().Equal(first) })
	if n := strings.Count(s.log.String(), "cannot be used"); n > 2 { // between the two files the pair may have been seen
		t.Errorf("said %d times:\n%s", n, s.log)
	}
}

// TestNewClientAuthority: when client_ca_file changes, clients of the authority that it names now can
// connect, and those of the old one cannot any more.
func TestNewClientAuthority(t *testing.T) {
	t.Parallel()
	url, _, _ := named(t, "up")
	next, file := wiretest.NewAuthority(t), filepath.Join(t.TempDir(), "clients.pem")
	believe := func(a *wiretest.Authority) {
		text, err := os.ReadFile(a.File)
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		must(t, err)
	}
	s := runSecured(t, url, func(c *config.Config, a *wiretest.Authority) {
		believe(a)
		c.TLS.ClientCAFile = file
	})
	connects := func(pair tls.Certificate) bool {
		status, _, _, _ := s.ask("", pair)
		return status == http.StatusOK
	}
	of, ofNext := s.authority.Pair("client"), next.Pair("client")
	if !connects(of) || connects(ofNext) {
		t.Error("another authority is believed")
	}
	believe(next)
	s.until("the new authority is not believed", func() bool { return connects(ofNext) })
	if connects(of) {
		t.Error("the old authority is still believed")
	}
}

// TestClientCertificates: without a certificate of the authority nobody connects.
func TestClientCertificates(t *testing.T) {
	url, _, _ := named(t, "up")
	s := runSecured(t, url, func(c *config.Config, a *wiretest.Authority) {
		c.TLS.ClientCAFile = a.File
		c.Auth.TrustedHeader = &config.TrustedHeader{Name: "X-User", From: []string{"127.0.0.1"}}
	})
	for name, c := range map[string]struct {
		user   string
		pair   []tls.Certificate
		status int // 0: not connected
	}{
		"the proxy":         {"alice", []tls.Certificate{s.authority.Pair("proxy")}, 200},
		"the proxy, nobody": {"", []tls.Certificate{s.authority.Pair("proxy")}, 403},
		"none":              {"alice", nil, 0},
		"another authority": {"alice", []tls.Certificate{wiretest.NewAuthority(t).Pair("proxy")}, 0},
	} {
		if status, _, body, err := s.ask(c.user, c.pair...); status != c.status {
			t.Errorf("%s: %d %s %v", name, status, body, err)
		}
	}
}

// TestTLSToAServer: a server with a certificate of an authority of one's own, which wants one of
// the gateway, is reached with the files for it, and not without.
func TestTLSToAServer(t *testing.T) {
	a, dir := wiretest.NewAuthority(t), t.TempDir()
	web := httptest.NewUnstartedServer(namedServer("up", nil, nil))
	web.TLS = &tls.Config{Certificates: []tls.Certificate{a.Pair("server")}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	web.StartTLS()
	t.Cleanup(web.Close)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.Issue("gateway", cert, key)
	for name, c := range map[string]struct {
		tls config.ClientTLS
		ok  bool
	}{
		"all of it":      {config.ClientTLS{CAFile: a.File, CertFile: cert, KeyFile: key}, true},
		"no certificate": {config.ClientTLS{CAFile: a.File}, false},
		"nothing":        {config.ClientTLS{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := runSecured(t, web.URL, func(cfg *config.Config, _ *wiretest.Authority) { cfg.Upstreams[0].TLS = c.tls })
			status, _, body, err := s.ask("")
			if served := status == http.StatusOK && strings.Contains(body, `"result"`); served != c.ok {
				t.Errorf("%d %s %v", status, body, err)
			}
		})
	}
}

// TestTLSFilesAtTheStart: files that cannot be used are said at the start.
func TestTLSFilesAtTheStart(t *testing.T) {
	a, dir := wiretest.NewAuthority(t), t.TempDir()
	cert, key, empty := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "empty.pem")
	a.Issue("gateway", cert, key)
	must(t, os.WriteFile(empty, nil, 0o600))
	for name, change := range map[string]func(c *config.Config){
		"no such file":      func(c *config.Config) { c.TLS = config.ListenerTLS{CertFile: cert + "x", KeyFile: key} },
		"not a pair":        func(c *config.Config) { c.TLS = config.ListenerTLS{CertFile: a.File, KeyFile: key} },
		"no authority":      func(c *config.Config) { c.TLS = config.ListenerTLS{CertFile: cert, KeyFile: key, ClientCAFile: empty} },
		"of an upstream":    func(c *config.Config) { c.Upstreams[0].TLS.CAFile = empty },
		"pair of the store": func(c *config.Config) { c.StoreTLS = config.ClientTLS{CertFile: cert, KeyFile: a.File} },
	} {
		c := config.FromFlags("https://127.0.0.1:1/mcp")
		c.Listen, c.Store = "127.0.0.1:0", config.StoreEmbedded
		change(c)
		if err := newServer(c, io.Discard).openServer(t.Context()); err == nil || !strings.Contains(err.Error(), "tls") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

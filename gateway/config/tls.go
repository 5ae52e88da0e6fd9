package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ListenerTLS has clients connect with TLS. Its files are read again when they change.
type ListenerTLS struct {
	// CertFile is the certificate of the gateway with those of the authorities between, in PEM
	// form, relative to the configuration file. With it, clients connect by https only.
	CertFile string `yaml:"cert_file"`

	// KeyFile is its private key, in PEM form.
	KeyFile string `yaml:"key_file"`

	// ClientCAFile are the authorities that sign certificates of clients, in PEM form. With it,
	// a client without such a certificate cannot connect.
	ClientCAFile string `yaml:"client_ca_file"`
}

// ClientTLS says how to connect with TLS. Its files are read at the start, and those of upstreams at a reload.
type ClientTLS struct {
	// CAFile are the authorities that are believed, in PEM form, in place of those of the
	// system. It is relative to the configuration file.
	CAFile string `yaml:"ca_file"`

	// CertFile is the certificate that the gateway shows, in PEM form.
	CertFile string `yaml:"cert_file"`

	// KeyFile is its private key, in PEM form.
	KeyFile string `yaml:"key_file"`
}

// resolveFiles makes the paths of files relative to the configuration file.
func (c *Config) resolveFiles(dir string) {
	paths := []*string{&c.TLS.CertFile, &c.TLS.KeyFile, &c.TLS.ClientCAFile, &c.StoreTLS.CAFile, &c.StoreTLS.CertFile, &c.StoreTLS.KeyFile}
	for _, u := range c.Upstreams {
		paths = append(paths, &u.TLS.CAFile, &u.TLS.CertFile, &u.TLS.KeyFile)
	}
	if c.Audit != AuditStdout && c.Audit != AuditOTel {
		paths = append(paths, &c.Audit)
	}
	for _, path := range paths {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
}

// checkTLS checks which files are named. Code that reads them checks their content.
func (p *problems) checkTLS(c *Config) {
	p.checkPair("tls", c.TLS.CertFile, c.TLS.KeyFile)
	if c.TLS.ClientCAFile != "" && c.TLS.CertFile == "" {
		p.addFor([]string{"tls.client_ca_file", "tls"}, "means nothing without cert_file")
	}
	p.checkPair("store_tls", c.StoreTLS.CertFile, c.StoreTLS.KeyFile)
	if c.StoreTLS != (ClientTLS{}) && !strings.HasPrefix(c.Store, "rediss") {
		p.addFor([]string{"store_tls", "store"}, "means nothing without a store whose URL begins with rediss")
	}
	for i, u := range c.Upstreams {
		if u.TLS == (ClientTLS{}) {
			continue
		}
		at := fmt.Sprintf("upstreams[%d].tls", i)
		p.checkPair(at, u.TLS.CertFile, u.TLS.KeyFile)
		if !strings.HasPrefix(u.URL, "https://") {
			p.addKey(at, "means nothing without a url that begins with https://")
		}
	}
}

func (p *problems) checkPair(at, cert, key string) {
	switch {
	case cert != "" && key == "":
		p.addFor([]string{at + ".cert_file", at}, "needs key_file")
	case cert == "" && key != "":
		p.addFor([]string{at + ".key_file", at}, "needs cert_file")
	}
}

// Files is a hash of the content of the files; "" without files.
func (c ClientTLS) Files() string { return hashFiles(c.CAFile, c.CertFile, c.KeyFile) }

// Files is a hash of the content of the files; "" without files.
func (l ListenerTLS) Files() string { return hashFiles(l.ClientCAFile, l.CertFile, l.KeyFile) }

func hashFiles(names ...string) string {
	if strings.Join(names, "") == "" {
		return ""
	}
	h := sha256.New()
	for _, name := range names {
		text, _ := os.ReadFile(name) // the code that needs an unreadable file reports it
		_ = json.NewEncoder(h).Encode(text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

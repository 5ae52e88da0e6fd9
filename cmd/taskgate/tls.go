package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"taskgate/gateway/config"
)

// fileCheck is the least time between two checks of the files of a listener. Handshakes check them.
const fileCheck = time.Second

// listenerTLS is the configuration of a listener with TLS; nil without TLS. Its files are read now,
// and again when they have changed.
func listenerTLS(c config.ListenerTLS, log *slog.Logger) (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	f := &tlsFiles{config: c, log: log}
	now, err := f.loadFiles()
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	f.now, f.loaded = now, f.stampFiles()
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.currentConfig(), nil },
	}, nil
}

// tlsFiles are the files of a listener. A handshake checks them, at most once in fileCheck, in place
// of a watcher.
type tlsFiles struct {
	config config.ListenerTLS
	log    *slog.Logger

	mu     sync.Mutex
	now    *tls.Config
	loaded string // the stamp of the files that now is from
	failed string // the stamp of files that failed
	looked time.Time
}

// currentConfig is the configuration for a handshake. Files that fail leave the old one in use.
func (f *tlsFiles) currentConfig() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < fileCheck {
		return f.now
	}
	f.looked = time.Now()
	stamp := f.stampFiles()
	if stamp == f.loaded {
		return f.now
	}
	next, err := f.loadFiles()
	switch {
	case err == nil:
		f.log.Info("the files of tls have changed and are in use")
		f.now, f.loaded, f.failed = next, stamp, ""
	case stamp != f.failed:
		f.log.Error("the files of tls have changed and cannot be used; those of before stay in use", "err", err)
		f.failed = stamp
	}
	return f.now
}

// stampFiles changes with the files. The caller takes it before it reads them, so that a change
// meanwhile leads to another read.
func (f *tlsFiles) stampFiles() string {
	return config.ClientTLS{CAFile: f.config.ClientCAFile, CertFile: f.config.CertFile, KeyFile: f.config.KeyFile}.Files()
}

func (f *tlsFiles) loadFiles() (*tls.Config, error) {
	pair, wrong := readPair(f.config.CertFile, f.config.KeyFile)
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if f.config.ClientCAFile != "" {
		pool, err := readCertificates(f.config.ClientCAFile)
		wrong = errors.Join(wrong, ofKey("client_ca_file", err))
		c.ClientCAs, c.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	if wrong != nil {
		return nil, wrong
	}
	return c, nil
}

// ofKey puts the key before the error of its file.
func ofKey(key string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", key, err)
	}
	return err
}

// readPair reads a certificate with its key. The error names what is wrong with either.
func readPair(certFile, keyFile string) (pair tls.Certificate, err error) {
	cert, noCert := os.ReadFile(certFile)
	key, noKey := os.ReadFile(keyFile)
	if err = errors.Join(ofKey("cert_file", noCert), ofKey("key_file", noKey)); err == nil {
		pair, err = tls.X509KeyPair(cert, key)
		err = ofKey("cert_file", err)
	}
	return pair, err
}

// readCertificates reads a file of certificates in PEM form.
func readCertificates(name string) (*x509.CertPool, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(name + " has no certificate in PEM form")
	}
	return pool, nil
}

// clientTLS is the configuration of connections to other hosts. It is nil if no key is set: then the
// default of the system holds.
func clientTLS(c config.ClientTLS) (*tls.Config, error) {
	if c == (config.ClientTLS{}) {
		return nil, nil
	}
	out, wrong := &tls.Config{MinVersion: tls.VersionTLS12}, error(nil)
	if c.CAFile != "" {
		pool, err := readCertificates(c.CAFile)
		wrong = ofKey("ca_file", err)
		out.RootCAs = pool
	}
	if c.CertFile != "" {
		pair, err := readPair(c.CertFile, c.KeyFile)
		wrong = errors.Join(wrong, err)
		out.Certificates = []tls.Certificate{pair}
	}
	if wrong != nil {
		return nil, wrong
	}
	return out, nil
}

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"taskgate/gateway/config"
)

// tlsFiles are the files of a listener with TLS. They are looked at as often as the configuration.
type tlsFiles struct {
	config config.ListenerTLS
	now    atomic.Pointer[tls.Config] // of the last good files
	seen   string                     // the stamp of the files that were read last; "" without TLS
}

// readFiles reads the files if they have changed. Files that fail leave the old ones in use.
func (f *tlsFiles) readFiles() (changed bool, err error) {
	// The stamp comes before the files are read, so that a change meanwhile leads to another read.
	stamp := f.config.Files()
	if stamp == f.seen {
		return false, nil
	}
	f.seen = stamp
	next, err := listenerTLS(f.config)
	if err == nil {
		f.now.Store(next)
	}
	return true, err
}

// takeFiles takes files that have changed.
func (f *tlsFiles) takeFiles(log *slog.Logger) {
	switch changed, err := f.readFiles(); {
	case err != nil:
		log.Error("the files of tls have changed and cannot be used; those of before stay in use", "err", err)
	case changed:
		log.Info("the files of tls have changed and are in use")
	}
}

// listenerTLS is the configuration of a listener with TLS, of its files as they are now.
func listenerTLS(of config.ListenerTLS) (*tls.Config, error) {
	pair, wrong := readPair(of.CertFile, of.KeyFile)
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if of.ClientCAFile != "" {
		pool, err := readCertificates(of.ClientCAFile)
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

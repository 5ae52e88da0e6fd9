package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// maxDocument bounds an answer of an issuer or a server, in bytes.
const maxDocument = 1 << 20

// fetcher gets documents. It refuses redirects: a document counts only at an address that the
// operator, the server or the issuer names.
type fetcher struct{ client *http.Client }

// newFetcher makes a fetcher; secure is nil for the authorities of the system.
func newFetcher(secure *tls.Config) fetcher {
	return fetcher{&http.Client{
		Timeout: fetchTimeout,
		Transport: documents{&http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: fetchTimeout, ResponseHeaderTimeout: fetchTimeout,
			TLSClientConfig: secure, IdleConnTimeout: 4 * time.Second, ForceAttemptHTTP2: true,
		}},
	}}
}

// documents answers only with documents of a bounded length. Any status but 200 is an error.
type documents struct{ web *http.Transport }

// RoundTrip implements http.RoundTripper.
func (d documents) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	resp, err := d.web.RoundTrip(r)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		resp.Body.Close()
		return nil, statusError(resp.StatusCode)
	}
	resp.Body = &bounded{resp.Body, maxDocument}
	return resp, nil
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work.
func (d documents) CloseIdleConnections() { d.web.CloseIdleConnections() }

// bounded is a body that ends with an error if it is too long.
type bounded struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, contentError(fmt.Sprintf("the document is larger than %d bytes", maxDocument))
	}
	return n, err
}

// readDocument reads the document at an address.
func (f fetcher) readDocument(ctx context.Context, at string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	return f.requestDocument(r)
}

// requestDocument makes a request and reads the answer. Its errors keep the answer secret.
func (f fetcher) requestDocument(r *http.Request) ([]byte, error) {
	resp, err := f.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// statusError is an HTTP status other than 200.
type statusError int

// Error names the status.
func (e statusError) Error() string { return fmt.Sprintf("the status is %d", int(e)) }

// contentError says what is wrong with a document.
type contentError string

func (e contentError) Error() string { return string(e) }

// isDefinite reports whether an error is an answer, which would be the same the next time: the
// document is missing. After any other error that is unknown.
func isDefinite(err error) bool {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(all.Unwrap(), func(one error) bool { return !isDefinite(one) })
	}
	if status, ok := errors.AsType[statusError](err); ok {
		return status < 500 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout
	}
	_, ok := errors.AsType[contentError](err)
	return ok
}

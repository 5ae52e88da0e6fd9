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

// maxDocument bounds what an issuer, or a server, may answer, in bytes.
const maxDocument = 1 << 20

// fetcher gets documents. It follows no redirect: what is believed has to be at an address
// that the operator, the server or the issuer names.
type fetcher struct{ client *http.Client }

// newFetcher makes a fetcher; secure is nil for the authorities of the system.
func newFetcher(secure *tls.Config) fetcher {
	return fetcher{&http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: fetchTimeout, ResponseHeaderTimeout: fetchTimeout,
			TLSClientConfig: secure, IdleConnTimeout: 4 * time.Second, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// get reads the document at an address.
func (f fetcher) get(ctx context.Context, at string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	return f.do(r)
}

// do makes a request and reads what is answered. Errors do not repeat any of it.
func (f fetcher) do(r *http.Request) ([]byte, error) {
	r.Header.Set("Accept", "application/json")
	resp, err := f.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxDocument:
		return nil, contentError(fmt.Sprintf("the document is larger than %d bytes", maxDocument))
	}
	return body, nil
}

// statusError is a status of HTTP that is no success.
type statusError int

// Error names the status.
func (e statusError) Error() string { return fmt.Sprintf("the status is %d", int(e)) }

// contentError says that a document is not what it should be.
type contentError string

// Error says what is wrong.
func (e contentError) Error() string { return string(e) }

// definite reports whether an error is an answer, which would be the same the next time: what
// was asked for is not there. Otherwise nobody knows.
func definite(err error) bool {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(all.Unwrap(), func(one error) bool { return !definite(one) })
	}
	if status, ok := errors.AsType[statusError](err); ok {
		return status < 500 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout
	}
	_, ok := errors.AsType[contentError](err)
	return ok
}

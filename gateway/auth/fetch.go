package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"

	"taskgate/internal/mcp"
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
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: fetchTimeout, ResponseHeaderTimeout: fetchTimeout,
			TLSClientConfig: secure, IdleConnTimeout: 4 * time.Second, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// readDocument reads the document at an address.
func (f fetcher) readDocument(ctx context.Context, at string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	return f.requestDocument(r)
}

// requestDocument makes a request and reads the answer. Any status but 200 is an error. Its errors keep the
// answer secret.
func (f fetcher) requestDocument(r *http.Request) ([]byte, error) {
	r.Header.Set("Accept", "application/json")
	resp, err := f.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp.StatusCode)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == mcp.TypeSSE {
		return nil, contentError("an event stream is no document") // mcp-go's handler answers every GET with one, without an end
	}
	document, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if len(document) > maxDocument {
		return nil, contentError(fmt.Sprintf("the document is larger than %d bytes", maxDocument))
	}
	return document, err
}

// statusError is an HTTP status other than 200.
type statusError int

// Error names the status.
func (e statusError) Error() string { return fmt.Sprintf("the status is %d", int(e)) }

// contentError says what is wrong with a document.
type contentError string

func (e contentError) Error() string { return string(e) }

// noDocument are the statuses with which servers say that there is nothing at an address for those who did not sign in.
var noDocument = []int{
	http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
	http.StatusNotAcceptable, http.StatusGone, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
}

// isDefinite reports whether an error is an answer, which would be the same the next time: the
// document is missing. So says a page or a redirect in its place, as web applications have for any address. After
// any other error that is unknown: then no token counts as one that nobody can verify, since its caller would be taken
// for another one.
func isDefinite(err error) bool {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(all.Unwrap(), func(one error) bool { return !isDefinite(one) })
	}
	if status, ok := errors.AsType[statusError](err); ok {
		return status < 400 || slices.Contains(noDocument, int(status))
	}
	_, ok := errors.AsType[contentError](err)
	return ok
}

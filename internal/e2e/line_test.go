package e2e

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// line is a client's way to a gateway. It is cut when its context ends: then nothing
// comes or goes any more, of requests on their way neither, and nobody says so.
type line struct{ up context.Context }

// RoundTrip sends a request as long as the line is not cut.
func (l line) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := l.up.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(l.up, cancel)
	resp, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	resp.Body = &lineBody{ReadCloser: resp.Body, end: sync.OnceFunc(func() { stop(); cancel() })}
	return resp, nil
}

// lineBody is an answer that comes by the line.
type lineBody struct {
	io.ReadCloser
	end func()
}

// Close lets go of the line.
func (b *lineBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
)

// response is the answer to one HTTP request. It collects a body of JSON, and hands out the messages of an event
// stream as they come.
type response struct {
	status int // 0 until the handler writes

	header http.Header
	each   func(message []byte) error // takes the messages of an event stream
	body   []byte                     // of JSON
}

var _ eventstream.Direct = (*response)(nil)

func (w *response) Header() http.Header { return w.header }

// WriteHeader begins the body.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		size, _ := strconv.Atoi(w.header.Get("Content-Length"))
		w.body = make([]byte, 0, max(size, 0))
	}
}

// Write takes a part of the body.
func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, b...)
	return len(b), nil
}

// Message implements eventstream.Direct.
func (w *response) Message(pieces ...[]byte) error { return w.each(slices.Concat(pieces...)) }

// Flush begins the body; Write and Message hand everything on at once.
func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

var errPanic = errors.New("the handler has panicked")

// serveHTTP has the gateway answer one request. each takes the messages of an event stream. A panic of the
// handler ends its request only, as in net/http.
func (c *Conn) serveHTTP(ctx context.Context, method, session string, body []byte, each func([]byte) error) (w *response, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+c.o.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	if session != "" {
		r.Header.Set(mcp.HeaderSession, session)
	}
	w = &response{header: make(http.Header), each: each}
	defer func() {
		if p := recover(); p != nil {
			c.o.Logger.Error("panic while a request was served", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	c.o.Handler.ServeHTTP(w, r)
	return w, nil
}

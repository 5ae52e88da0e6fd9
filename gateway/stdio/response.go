package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"taskgate/internal/eventstream"
	"taskgate/internal/mcp"
)

// maxEvent is no bound here: the gateway bounds its messages elsewhere.
const maxEvent = math.MaxInt / 2

// response is the answer to one HTTP request. It collects a body of JSON, and hands out the
// messages of an event stream as they come.
type response struct {
	status int // 0 until the handler writes

	header http.Header
	each   func(message []byte) error // takes the messages of an event stream
	body   []byte                     // of JSON
	events *io.PipeWriter             // nil without an event stream
	read   chan struct{}              // closed when all events have been taken
}

func (w *response) Header() http.Header { return w.header }

// WriteHeader begins the body.
func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	if !strings.HasPrefix(w.header.Get("Content-Type"), mcp.TypeSSE) {
		size, _ := strconv.Atoi(w.header.Get("Content-Length"))
		w.body = make([]byte, 0, max(size, 0))
		return
	}
	r, events := io.Pipe()
	w.events, w.read = events, make(chan struct{})
	go w.take(r)
}

// take hands out messages until the stream ends, or each fails.
func (w *response) take(r *io.PipeReader) {
	defer close(w.read)
	events := eventstream.NewReader(r, maxEvent)
	for {
		ev, err := events.Next()
		if err == nil && len(bytes.TrimSpace(ev.Data)) > 0 { // an event may have an id only
			err = w.each(ev.Data)
		}
		if err != nil {
			_ = r.CloseWithError(err) // its error is always nil
			return
		}
	}
}

// Write takes a part of the body.
func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.events != nil {
		return w.events.Write(b)
	}
	w.body = append(w.body, b...)
	return len(b), nil
}

// Flush begins the body; Write hands everything on at once.
func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

// finish is called when the handler has returned.
func (w *response) finish() {
	if w.events != nil {
		_ = w.events.Close() // its error is always nil
		<-w.read
	}
}

var errPanic = errors.New("the handler has panicked")

// do has the gateway answer one request. each takes the messages of an event stream. A panic of the
// handler ends its request only, as in net/http.
func (c *Conn) do(ctx context.Context, method, session string, body []byte, each func([]byte) error) (w *response, err error) {
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
		w.finish()
	}()
	c.o.Handler.ServeHTTP(w, r)
	return w, nil
}

package legacy_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// brittleWriter is a connection that can break.
type brittleWriter struct {
	*httptest.ResponseRecorder
	broken atomic.Bool
}

func newBrittleWriter(broken bool) *brittleWriter {
	w := &brittleWriter{ResponseRecorder: httptest.NewRecorder()}
	w.broken.Store(broken)
	return w
}

func (w *brittleWriter) Write(b []byte) (int, error) {
	if w.broken.Load() {
		return 0, errors.New("broken pipe")
	}
	return w.ResponseRecorder.Write(b)
}

// TestLegacyStreamBreaks: what could not be sent on a stream goes out on the next
// one, and a stream that cannot be written is given up.
func TestLegacyStreamBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`)}, nil)
		h := s.Handler()
		id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		get := func() *http.Request {
			return readRequest(t, []byte("GET\n"+mcp.HeaderSession+": "+id+"\n\n"))
		}
		w, gone := newBrittleWriter(false), make(chan struct{})
		go func() {
			defer close(gone)
			h.ServeHTTP(w, get())
		}()
		synctest.Wait()
		w.broken.Store(true)
		s.up.say(shim.Notification{Method: mcp.NotifyToolsListChanged})
		<-gone

		h.ServeHTTP(newBrittleWriter(true), get()) // not even the head

		ctx, leave := context.WithCancel(t.Context())
		streamed := make(chan *httptest.ResponseRecorder, 1)
		go func() { streamed <- serve(t, h, ctx, "GET", id, "") }()
		synctest.Wait()
		leave()
		if body := (<-streamed).Body.String(); !strings.Contains(body, mcp.NotifyToolsListChanged) {
			t.Errorf("the message is lost: %q", body)
		}
	})
}

// bufferless is a connection that cannot stream.
type bufferless struct {
	header http.Header
	status int
}

func (w *bufferless) Header() http.Header         { return w.header }
func (w *bufferless) Write(b []byte) (int, error) { return len(b), nil }
func (w *bufferless) WriteHeader(status int)      { w.status = status }

// TestLegacyStreamCannotFlush: where nothing can be streamed the client is told.
func TestLegacyStreamCannotFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`)}, nil)
		h := s.Handler()
		id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		w := &bufferless{header: http.Header{}}
		h.ServeHTTP(w, readRequest(t, []byte("GET\n"+mcp.HeaderSession+": "+id+"\n\n")))
		synctest.Wait() // what the opening of the stream began at the side has ended
		if w.status != http.StatusInternalServerError || tableOf(s.Gateway).Busy(id) {
			t.Errorf("status %d, in use %t", w.status, tableOf(s.Gateway).Busy(id))
		}
	})
}

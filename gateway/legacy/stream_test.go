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
			return (&taskClient{t: t, session: id}).request(t.Context(), http.MethodGet, "")
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

package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// blockingLeg is a server that never answers: it says when it was called, and with
// what cause the call ended.
type blockingLeg struct {
	*fakeLeg
	called chan struct{}
	ended  chan error
}

func (l blockingLeg) Call(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
	s.Progress(shim.Progress{Raw: []byte(`{"progressToken":"u","progress":1}`)})
	close(l.called)
	<-ctx.Done()
	l.ended <- context.Cause(ctx)
	return shim.Reply{}, context.Cause(ctx)
}

// TestClientLeaves closes a real connection while the upstream works: closing the
// stream is how a request is cancelled in this era (protocol.md 2.6), before the
// stream has begun and after.
func TestClientLeaves(t *testing.T) {
	for _, token := range []string{"", `,"progressToken":1`} {
		s := newStage(t)
		s.leg.Era, s.leg.Capabilities = mcp.Legacy, json.RawMessage(`{"prompts":{}}`)
		leg := blockingLeg{s.leg, make(chan struct{}), make(chan error, 1)}
		g, err := New(Options{Config: s.config, Shim: s.shim, Legs: map[string]Leg{"mcp": leg},
			Sessions: openSessions(t, s.config.MaxSessions, s.config.SessionIdle)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(g.Handler())
		r := modernPost("prompts/get", `{"name":"x","_meta":{$META`+token+`}}`)
		body, _ := io.ReadAll(r.Body)
		ctx, leave := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			req := clientRequest(ctx, server.URL+"/mcp", r.Header, body)
			if resp, err := server.Client().Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		<-leg.called
		leave()
		if err := <-leg.ended; err == nil {
			t.Error("the call ended without a cause")
		}
		<-done
		server.Close() // waits for the handler
	}
}

func clientRequest(ctx context.Context, url string, header http.Header, body []byte) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		panic(err) // the URL is the test's own
	}
	req.Header = header
	return req
}

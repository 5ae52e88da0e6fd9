package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http/httptest"
	"testing"

	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// blockingUpstream is a server that never answers: it says when it was called, and with
// what cause the call ended.
type blockingUpstream struct {
	*fakeUpstream
	called chan struct{}
	ended  chan error
}

func (l blockingUpstream) Call(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
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
		s.up.Era, s.up.Capabilities = mcp.Legacy, json.RawMessage(`{"prompts":{}}`)
		up := blockingUpstream{s.up, make(chan struct{}), make(chan error, 1)}
		g, err := New(Options{Config: s.config, Shim: s.shim, Upstreams: map[string]upstream.Client{"mcp": up},
			Sessions: wiretest.OpenSessions(t, s.config.MaxSessions, s.config.SessionIdle)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(g.Handler())
		r := wiretest.ModernPost("prompts/get", `{"name":"x","_meta":{$META`+token+`}}`)
		body, _ := io.ReadAll(r.Body)
		ctx, leave := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			req := wiretest.ClientRequest(ctx, server.URL+"/mcp", r.Header, body)
			if resp, err := server.Client().Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		<-up.called
		leave()
		if err := <-up.ended; err == nil {
			t.Error("the call ended without a cause")
		}
		<-done
		server.Close() // waits for the handler
	}
}

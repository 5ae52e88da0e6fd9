package legacy_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestReplicasUpstream: both replicas use one session with the server. When the
// server has lost it, one of them opens it anew for both, with the client's log
// level.
func TestReplicasUpstream(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	var mu sync.Mutex
	var saw []string
	stack.server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			mu.Lock()
			if method == "initialize" || method == "logging/setLevel" {
				saw = append(saw, method)
			}
			mu.Unlock()
			return next(ctx, method, r)
		}
	})
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		s := strings.Join(saw, " ")
		saw = nil
		return s
	}
	a, b := stack.beginBoth(t, "")
	if _, body := b.post(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}`); !strings.Contains(body, `"result"`) {
		t.Errorf("level: %s", body)
	}
	both := func() {
		t.Helper()
		var calls sync.WaitGroup
		for i, c := range []*rawClient{a, b, a, b} {
			calls.Go(func() {
				body := `{"jsonrpc":"2.0","id":` + string(rune('2'+i)) + `,"method":"tools/call","params":{"name":"echo"}}`
				if _, body := c.post(body); !strings.Contains(body, `echo `) {
					t.Errorf("call: %s", body)
				}
			})
		}
		calls.Wait()
		if n := stack.sessions(); n != 1 {
			t.Errorf("%d sessions with the server", n)
		}
	}
	both()
	if got := seen(); got != "initialize logging/setLevel" {
		t.Errorf("the server saw %s", got)
	}
	for ss := range stack.server.Sessions() {
		if err := ss.Close(); err != nil {
			t.Fatal(err)
		}
	}
	settled(t, "the session is lost", func() bool { return stack.sessions() == 0 })
	both()
	if got := seen(); got != "initialize logging/setLevel" {
		t.Errorf("afterwards the server saw %s", got)
	}
}

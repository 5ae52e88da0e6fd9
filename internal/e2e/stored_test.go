package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/redistest"
)

// The configured bounds on what one principal can have stored hold, on two gateways over a
// real Redis, and another principal does not notice.
func TestStoredBounds(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	const alice, bob = "alice-0123456789abcdef0123", "bob-0123456789abcdef01234"
	config := configured(t, fmt.Sprintf(`
store: %s
auth: {keys: [alice:%s, bob:%s]}
max_sessions_per_owner: 2
upstreams:
  - {name: slow, path: /mcp, url: "%s", defaults: {tasks: required}}
`, store.URL(), hashOf(t, alice), hashOf(t, bob), startServer(t, "slowserver")))
	gates := []*gateway{startGateway(t, config...), startGateway(t, config...)}

	initialize := func(i int, key, name string) (id, body string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gates[i%2].url, strings.NewReader(
			`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"`+name+`","version":"1"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := withKey(key).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Get("Mcp-Session-Id"), string(b)
	}
	for i := range 10 {
		id, body := initialize(i, alice, "c")
		if i < 2 && id == "" || i >= 2 && !strings.Contains(body, "too many sessions of this caller") {
			t.Errorf("session %d: %s", i, body)
		}
	}
	if id, body := initialize(0, bob, "c"); id == "" {
		t.Errorf("another principal: %s", body)
	}
	if _, body := initialize(1, bob, strings.Repeat("x", 64<<10)); !strings.Contains(body, "too many bytes in the state of this session") {
		t.Errorf("a long name: %s", body)
	}
}

package legacy_test

import (
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// TestSubscribedWhileAway: that a server cannot be listened to at the moment does not say that it never reports updates of
// a resource.
func TestSubscribedWhileAway(t *testing.T) {
	server := fake.New(t, fake.Modern)
	server.Capabilities(`{"resources":{"subscribe":true}}`)
	server.On(mcp.MethodListen, fake.Status(http.StatusServiceUnavailable, "text/plain", "away"))
	c := newRawClient(t, newBefore(t, server, nil)).initialize("")
	status, body := c.post(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a"}}`)
	if status != http.StatusOK || !strings.Contains(body, `-32603`) {
		t.Errorf("subscribed while the server is away: %d %s", status, body)
	}
}

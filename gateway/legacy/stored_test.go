package legacy_test

import (
	"fmt"
	"strings"
	"testing"

	"taskgate/gateway/endpoint"
	"taskgate/internal/mcp"
)

// subscribe subscribes to a resource, or ends that.
func (c *rawClient) subscribe(method, uri string) (refusal string) {
	c.t.Helper()
	_, body := c.post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"uri":"` + uri + `"}}`)
	if strings.Contains(body, `"result"`) {
		return ""
	}
	return body
}

// TestStoredSubscriptions: the subscriptions of a session are stored with it, and so there
// may only be so many, so long, and so large together. Whatever they take, they can be
// ended, and then there is room for others.
func TestStoredSubscriptions(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	go func() { // what the server is told of
		for range stack.session.subs {
		}
	}()
	t.Cleanup(func() { close(stack.session.subs) })
	uri := func(i, n int) string { return fmt.Sprint("test://", strings.Repeat("x", n), i) }
	refused := func(c *rawClient, uri, why string) {
		t.Helper()
		if got := c.subscribe(mcp.MethodResourcesSubscribe, uri); !strings.Contains(got, why) {
			t.Errorf("%.30q: %.200q, want %s", uri, got, why)
		}
	}
	taken := func(c *rawClient, method, uri string) {
		t.Helper()
		if got := c.subscribe(method, uri); got != "" {
			t.Errorf("%s of %.30q: %.200s", method, uri, got)
		}
	}

	c := stack.begin(t, 0, "")
	for i := range 3 {
		refused(c, uri(i, 500_000), "too many bytes in the URI of a subscription")
	}
	for i := range 7 {
		taken(c, mcp.MethodResourcesSubscribe, uri(i, 8000))
	}
	refused(c, uri(7, 8000), "too many bytes in the state of this session")
	taken(c, mcp.MethodResourcesSubscribe, uri(6, 8000)) // it is subscribed to that
	taken(c, mcp.MethodResourcesUnsubscribe, uri(6, 8000))
	taken(c, mcp.MethodResourcesSubscribe, uri(7, 8000))
	if state, _ := stack.store.Do("hstrlen", stack.store.Keys("*:c:" + c.session)[0], "state").(int64); state > 64<<10 {
		t.Errorf("the state has %d bytes", state)
	}

	many := stack.begin(t, 0, "")
	for i := range endpoint.MaxSubscriptions {
		taken(many, mcp.MethodResourcesSubscribe, uri(i, 10))
	}
	refused(many, uri(endpoint.MaxSubscriptions, 10), "too many subscriptions")
}

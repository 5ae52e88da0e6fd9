package legacy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/internal/wiretest"
)

// What one client can have stored with sessions is bounded. These tests are clients that
// try, over a real Redis, beside one that does not.

// measureKeys is how much memory all keys of a Redis that match take, in bytes.
func measureKeys(redis *redistest.Server, pattern string) (n int64) {
	for _, key := range redis.Keys(pattern) {
		size, _ := redis.Do("memory", "usage", key, "samples", "0").(int64)
		n += size
	}
	return n
}

// wantAlive fails the test unless the client's session is there.
func (c *rawClient) wantAlive() {
	c.t.Helper()
	if status, body := c.post(`{"jsonrpc":"2.0","id":99,"method":"ping"}`); status != http.StatusOK {
		c.t.Errorf("the session of a client that does nothing wrong: %d %s", status, body)
	}
}

// TestStoredIntroductions: what a client says of itself is stored with its session, and so
// it may only be so long.
func TestStoredIntroductions(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	quiet := stack.begin(t, 0, "")
	introduction := func(name string) string {
		return `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"` +
			name + `","version":"2"}}}`
	}
	long := introduction(strings.Repeat("x", 3_900_000))
	for i := range 4 {
		c := newRawClient(t, stack.at[i%2])
		if status, body := c.post(long); c.session != "" || !strings.Contains(body, `"too many bytes in the state of this session"`) {
			t.Fatalf("initialize %d: %d %.200s", i, status, body)
		}
	}
	if n := measureKeys(stack.store, "*"); n > 64<<10 {
		t.Errorf("Redis has %d bytes", n)
	}
	newRawClient(t, stack.at[1]).wantPost(introduction(strings.Repeat("x", 50<<10)), http.StatusOK)
	quiet.wantAlive()
}

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
	quiet := stack.begin(t, 1, "")
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
	if n := measureKeys(stack.store, "*"); n > 256<<10 {
		t.Errorf("Redis has %d bytes", n)
	}
	quiet.wantAlive()
}

// TestStoredSessions: a client that makes sessions without end has only so many, and takes
// none from another one, nor the room for it.
func TestStoredSessions(t *testing.T) {
	stack := newLegacyReplicas(t, func(c *config.Config) {
		wiretest.WithKeys(c)
		c.MaxSessions, c.MaxSessionsPerOwner = 40, 20
	})
	quiet := stack.on(t, 0, nil).as(wiretest.BobKey).initialize("")
	made := 0
	for i := range 30 {
		c := stack.on(t, i%2, nil).as(wiretest.AliceKey)
		switch status, body := c.post(wiretest.InitializeBody); {
		case c.session != "":
			made++
		case !strings.Contains(body, `"too many sessions of this caller"`):
			t.Fatalf("initialize %d: %d %s", i, status, body)
		}
	}
	if n := len(stack.store.Keys("*:c:*")); made != 20 || n != 21 {
		t.Errorf("%d sessions were made, and there are %d", made, n)
	}
	quiet.wantAlive()
	for range 19 {
		stack.on(t, 1, nil).as(wiretest.BobKey).initialize("")
	}
	quiet.wantAlive()
}

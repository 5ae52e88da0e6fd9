package legacy_test

import (
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest/fake"
)

// TestReplicasStayInTheirEra: a session goes on in the era in which its server was spoken to
// when it began, on replicas as well that meet the server when it has learned another one.
// Sessions that begin then are in the era of their client.
func TestReplicasStayInTheirEra(t *testing.T) {
	redis := redistest.Start(t)
	server := fake.New(t, fake.Modern)
	server.Tool("t", fake.Text("ok"))
	on := func(name, session string) *rawClient {
		store := func(c *config.Config) { c.Store = redis.URL() }
		c := newRawClient(t, startReplica(t, name, newConfig(store), parts{server: upstream.Config{URL: server.URL}}).url)
		c.session = session
		return c
	}
	calls := func(c *rawClient, want mcp.Era) {
		t.Helper()
		status, body := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`)
		if status != http.StatusOK || !strings.Contains(body, `"ok"`) {
			t.Errorf("call: %d %s", status, body)
		}
		sent := server.Seen(mcp.MethodToolsCall)
		if got := mcp.EraOf(sent[len(sent)-1].Header.Get(mcp.HeaderProtocolVersion)); got != want {
			t.Errorf("the server was called in %v, want %v", got, want)
		}
	}
	a := on("a", "")
	a.initialize("")
	calls(a, mcp.Modern)

	server.Become(fake.Both)
	calls(on("b", a.session), mcp.Modern)
	c := on("c", "")
	c.initialize("")
	calls(c, mcp.Legacy)
	calls(on("d", c.session), mcp.Legacy)
	calls(on("e", a.session), mcp.Modern)
	if n := len(server.Seen(mcp.MethodInitialize)); n != 2 {
		t.Errorf("%d handshakes, want one that is refused and one that is not", n)
	}
}

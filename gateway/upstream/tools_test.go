package upstream

import (
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// A call can do without the list of tools: it goes to a server that cannot list them, and waits a
// moment for one that is slow, whose list the next call has.
func TestCallWithoutTheList(t *testing.T) {
	for name, c := range map[string]struct {
		lists fake.Behaviour
		most  time.Duration
	}{
		"an error": {fake.RPCError(200, -32603, "no", ""), 0},
		"slow": {func(x *fake.Exchange) {
			<-time.After(20 * time.Second)
			fake.Result(`{"resultType":"complete","ttlMs":60000,"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)(x)
		}, listPatience},
	} {
		bubbleOf(t, name, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
			s.Tool("t", fake.Text("ok"))
			s.On(mcp.MethodToolsList, c.lists)
			began := time.Now()
			mustCall(t, h, in("a", ``))
			if d := time.Since(began); d > c.most {
				t.Errorf("answered after %s", d)
			}
			if name == "slow" {
				<-time.After(20 * time.Second)
				if _, ok, err := h.Tool(t.Context(), shim.Session{Key: "a"}, "t"); !ok || err != nil {
					t.Errorf("the list has the tool: %t, %v", ok, err)
				}
				asked(t, s, mcp.MethodToolsList, 1)
			}
		})
	}
}

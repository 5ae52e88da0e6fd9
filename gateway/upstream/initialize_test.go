package upstream

import (
	"errors"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// A server hears that the client of a session is ready when that has said so, or has sent a
// request; and it hears that once.
func TestInitializedIsTheClients(t *testing.T) {
	for name, ready := range map[string]func(*testing.T, *HTTP, shim.Request){
		"notification": func(t *testing.T, h *HTTP, r shim.Request) {
			if err := h.Notify(t.Context(), r.Session, shim.Notification{Method: mcp.NotifyInitialized}); err != nil {
				t.Error(err)
			}
		},
		"request": func(t *testing.T, h *HTTP, r shim.Request) { mustCall(t, h, r) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
				s.Tool("t", fake.Text("ok"))
				r := clientOf(mcp.Legacy, 0)
				if _, err := h.Describe(t.Context(), r.Session); err != nil {
					t.Fatal(err)
				}
				asked(t, s, mcp.NotifyInitialized, 0)
				ready(t, h, r)
				asked(t, s, mcp.NotifyInitialized, 1)
				mustCall(t, h, r)
				asked(t, s, mcp.NotifyInitialized, 1)
				asked(t, s, mcp.MethodInitialize, 1)
			})
		})
	}
}

// That a server refuses to open a session is said once, with the server's own words for the log, although its era is
// in doubt then.
func TestRefusedHandshakeIsWordedOnce(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
		s.On(mcp.MethodInitialize, fake.RPCError(200, -32000, "no seats left", ""))
		_, err := h.Describe(t.Context(), clientOf(mcp.Legacy, 0).Session)
		var ue *shim.UpstreamError
		if !errors.As(err, &ue) || ue.Error() != "protocol: the server refused to open a session (error -32000): no seats left (-32000)" {
			t.Errorf("%v", err)
		}
	})
}

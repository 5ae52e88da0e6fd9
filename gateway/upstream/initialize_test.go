package upstream

import (
	"cmp"
	"errors"
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// A server hears that the client of a session is ready when that has said so, or has sent a
// request; and it hears that once.
func TestInitializedIsTheClients(t *testing.T) {
	for name, ready := range map[string]func(*testing.T, *ServerClient, shim.Request){
		"notification": func(t *testing.T, h *ServerClient, r shim.Request) {
			check(t, h.Notify(t.Context(), r.Session, shim.Notification{Method: mcp.NotifyInitialized}))
		},
		"request": func(t *testing.T, h *ServerClient, r shim.Request) { mustCall(t, h, r) },
	} {
		bubbleOf(t, name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			r := clientOf(mcp.Legacy, 0)
			must(t, errorOf(h.Describe(t.Context(), r.Session)))
			asked(t, s, mcp.NotifyInitialized, 0)
			ready(t, h, r)
			asked(t, s, mcp.NotifyInitialized, 1)
			mustCall(t, h, r)
			asked(t, s, mcp.NotifyInitialized, 1)
			asked(t, s, mcp.MethodInitialize, 1)
		})
	}
}

// That a server refuses to open a session is said once, with the server's own words for the log, although its era is
// in doubt then.
func TestRefusedHandshakeIsWordedOnce(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On(mcp.MethodInitialize, fake.RPCError(200, -32000, "no seats left", ""))
		_, err := h.Describe(t.Context(), clientOf(mcp.Legacy, 0).Session)
		var ue *shim.UpstreamError
		if !errors.As(err, &ue) || ue.Error() != "protocol: the server refused to open a session (error -32000): no seats left (-32000)" {
			t.Errorf("%v", err)
		}
	})
}

// The client reads why the server refuses to open a session, whatever the status. Servers of the Python SDK give such
// an error an id of its own.
func TestRefusedHandshakeInTheServersWords(t *testing.T) {
	const body = `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32000,"message":"no seats left"}}`
	for name, refuse := range map[string]fake.Behaviour{
		"200":                 fake.RPCError(200, -32000, "no seats left", ""),
		"400":                 fake.RPCError(400, -32000, "no seats left", ""),
		"404":                 fake.RPCError(404, -32000, "no seats left", ""),
		"400 of another id":   fake.Status(400, "application/json", body),
		"405 of another id":   fake.Status(405, "application/json", body),
		"403":                 fake.RPCError(403, -32000, "no seats left", ""),
		"500":                 fake.RPCError(500, -32000, "no seats left", ""),
		"503 of another id":   fake.Status(503, "application/json", body),
		"402, as plain words": fake.Status(402, "text/plain", body),
	} {
		bubbleOf(t, name, fake.Stateful, Config{Era: EraLegacy}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.On(mcp.MethodInitialize, refuse)
			_, err := h.Describe(t.Context(), clientOf(mcp.Legacy, 0).Session)
			var ue *shim.UpstreamError
			if !errors.As(err, &ue) || !strings.HasSuffix(ue.TellClient(), ": no seats left") || strings.Contains(ue.TellClient(), "no MCP endpoint") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A server that refuses the latest version, in place of naming its own, is asked for one that it has.
func TestRefusedVersion(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		code    int
		message string // of the error; a plain one if it is ""
		data    string
		want    string // the versions asked for
	}{
		"its versions are named":        {200, mcp.CodeInvalidParams, "", `{"supported":["2024-11-05","2025-03-26","2026-07-28"],"requested":"2025-11-25"}`, "2025-11-25 2025-03-26"},
		"with a code of the modern era": {400, mcp.CodeUnsupportedVersion, "", `{"supported":["2025-03-26","2025-11-25"]}`, "2025-11-25 2025-03-26"},
		"by another name":               {400, mcp.CodeInvalidParams, "", `{"supportedVersions":["2025-06-18"]}`, "2025-11-25 2025-06-18"},
		"none is named":                 {200, mcp.CodeInvalidParams, "", ``, "2025-11-25"},
		"in the message":                {200, mcp.CodeInvalidRequest, "Unsupported version: 2025-11-25 (have 2024-11-05, 2025-06-18)", ``, "2025-11-25 2025-06-18"},
		"as a single one":               {400, mcp.CodeInvalidRequest, "", `{"expected":"2025-06-18"}`, "2025-11-25 2025-06-18"},
		"only modern ones":              {400, mcp.CodeInvalidParams, "", `{"supported":["2026-07-28"]}`, "2025-11-25"},
	} {
		bubbleOf(t, name, fake.Stateful, Config{Era: EraLegacy}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			refuse := fake.RPCError(c.status, c.code, cmp.Or(c.message, "unsupported protocol version"), c.data)
			s.On(mcp.MethodInitialize, func(x *fake.Exchange) {
				s.On(mcp.MethodInitialize, nil)
				refuse(x)
			})
			s.Tool("t", fake.Text("ok"))
			_, err := h.Call(t.Context(), in("a", ``), nil)
			var asked []string
			for _, seen := range s.Seen(mcp.MethodInitialize) {
				v, _ := jsonrpc.GetString(seen.Params, "protocolVersion")
				asked = append(asked, v)
			}
			if got := strings.Join(asked, " "); got != c.want || (err == nil) != (len(asked) == 2) {
				t.Errorf("asked for %s, %v", got, err)
			}
		})
	}
}

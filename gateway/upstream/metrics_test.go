package upstream

import (
	"context"
	"net/http"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/metrics/metricstest"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// TestClientMetrics: each request is measured as it ended, and nothing that a client or a server
// makes up is in the measurement.
func TestClientMetrics(t *testing.T) {
	const (
		of   = "mcp.client.operation.duration "
		call = " mcp.method.name=tools/call mcp.protocol.version="
		up   = " network.transport=tcp server.address=fake taskgate.upstream=up"
	)
	named := func(name string) string { return "gen_ai.operation.name=execute_tool gen_ai.tool.name=" + name }
	for name, c := range map[string]struct {
		mode fake.Mode
		do   fake.Behaviour
		want string
	}{
		"answered":   {fake.Modern, fake.Result(`{"content":[]}`), of + named("t") + call + mcp.Version20260728 + up},
		"legacy":     {fake.Stateful, fake.Result(`{"content":[]}`), of + named("t") + call + mcp.Version20251125 + up},
		"tool error": {fake.Modern, fake.Result(`{"isError":true,"content":[]}`), of + "error.type=tool_error " + named("t") + call + mcp.Version20260728 + up},
		"rpc error": {fake.Modern, fake.RPCError(200, -32602, "secret", ""),
			of + "error.type=-32602 " + named("t") + call + mcp.Version20260728 + " network.transport=tcp rpc.response.status_code=-32602 server.address=fake taskgate.upstream=up"},
		"odd code": {fake.Modern, fake.RPCError(200, 7411, "secret", ""),
			of + "error.type=_OTHER " + named("t") + call + mcp.Version20260728 + " network.transport=tcp rpc.response.status_code=_OTHER server.address=fake taskgate.upstream=up"},
		"page":    {fake.Modern, fake.HTML(), of + "error.type=protocol " + named("t") + call + mcp.Version20260728 + up},
		"refused": {fake.Modern, fake.Status(http.StatusUnauthorized, "", ""), of + "error.type=refused " + named("t") + call + mcp.Version20260728 + up},
		"cut":     {fake.Modern, func(x *fake.Exchange) { x.Cut() }, of + "error.type=closed " + named("t") + call + mcp.Version20260728 + up},
	} {
		t.Run(name, func(t *testing.T) {
			m, r := metricstest.New(t)
			bubble(t, c.mode, Config{Name: "up", Metrics: m}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", c.do)
				_, _ = h.Call(t.Context(), in("a", ``), nil)
				r.Want(map[string]float64{c.want: 1})
			})
		})
	}
}

// TestMetricsLearnNames: what a server lists has a series, also if it fails.
func TestMetricsLearnNames(t *testing.T) {
	m, r := metricstest.New(t)
	bubble(t, fake.Modern, Config{Name: "up", Metrics: m}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Result(`{"isError":true,"content":[]}`))
		if _, _, err := h.Tool(t.Context(), shim.Session{}, "made up"); err != nil {
			t.Fatal(err)
		}
		if got := m.Names.Bound("up", mcp.MethodToolsCall, "t"); got != "t" {
			t.Errorf("a tool that is listed is %q; there is %v", got, r.Points())
		}
		if got := m.Names.Bound("up", mcp.MethodToolsCall, "made up"); got != "_other" {
			t.Errorf("one that is not is %q", got)
		}
	})
}

// TestClientSessionMetrics: a session is measured when the gateway ends it, and when the server has
// lost it.
func TestClientSessionMetrics(t *testing.T) {
	const (
		of = "mcp.client.session.duration "
		up = "mcp.protocol.version=" + mcp.Version20251125 + " network.transport=tcp server.address=fake taskgate.upstream=up"
	)
	m, r := metricstest.New(t)
	bubble(t, fake.Stateful, Config{Name: "up", Metrics: m}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Result(`{"content":[]}`))
		must(t, errorOf(h.Call(t.Context(), in("a", ``), nil)))
		<-time.After(time.Minute)
		s.LoseSessions()
		must(t, errorOf(h.Call(t.Context(), in("a", ``), nil)))
		r.Want(map[string]float64{of + "error.type=session " + up: 1, of + "error.type=session " + up + " sum": 60})
		<-time.After(2 * time.Minute)
		h.EndSession(context.Background(), "a")
		<-time.After(time.Second)
		r.Want(map[string]float64{of + up: 1, of + up + " sum": 120})
	})
}

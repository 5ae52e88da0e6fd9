package legacy_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics/metricstest"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// TestLegacyMetrics: each request in a session is measured as it ended, and the session when its
// client ends it.
func TestLegacyMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			of   = "mcp.server.operation.duration "
			over = " mcp.protocol.version=2025-11-25 network.protocol.name=http network.transport=tcp "
			up   = "taskgate.upstream=up"
		)
		m, r := metricstest.New(t)
		m.Names.Learn("up", mcp.MethodToolsCall, "greet")
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`), Replies: map[string]scriptReply{
			"tools/call":     {IsError: true, Result: []byte(`{"content":[],"isError":true}`)},
			"resources/read": {Error: &shim.RPCError{Code: mcp.CodeResourceNotFound, Message: "none"}},
		}}, nil, func(o *gateway.Options) { o.Metrics = m })
		h := s.Handler()
		id := serve(t, h, t.Context(), http.MethodPost, "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"greet"}}`,
			`{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"made up"}}`,
			`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"a:b"}}`,
		} {
			if w := serve(t, h, t.Context(), http.MethodPost, id, body); w.Code >= http.StatusBadRequest {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		<-time.After(90 * time.Second)
		if w := serve(t, h, t.Context(), http.MethodDelete, id, ""); w.Code != http.StatusNoContent {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := serve(t, h, t.Context(), http.MethodDelete, id, ""); w.Code != http.StatusNotFound {
			t.Errorf("a second time: %d %s", w.Code, w.Body)
		}
		r.Want(map[string]float64{
			of + "mcp.method.name=initialize" + over + up: 1,
			of + "error.type=tool_error gen_ai.operation.name=execute_tool gen_ai.tool.name=greet mcp.method.name=tools/call" + over + up:  1,
			of + "error.type=tool_error gen_ai.operation.name=execute_tool gen_ai.tool.name=_other mcp.method.name=tools/call" + over + up: 1,
			of + "error.type=-32002 mcp.method.name=resources/read" + over + "rpc.response.status_code=-32002 " + up:                       1,
			"mcp.server.session.duration" + over + up:          1,
			"mcp.server.session.duration" + over + up + " sum": 90,
			"taskgate.sessions.active":                         0,
		})
	})
}

package gateway

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// The cost of a handler alone: the message in memory, an upstream client and a shim that answer at
// once. What the network and the store add is measured by make bench.
func BenchmarkModern(b *testing.B) {
	for name, c := range map[string]struct{ method, name, params string }{
		"tools-call": {mcp.MethodToolsCall, "greet", `"name":"greet","arguments":{"who":"you","n":[1,2,3]}`},
		"tasks-get":  {mcp.MethodTasksGet, benchTask, `"taskId":"` + benchTask + `"`},
	} {
		b.Run(name, func(b *testing.B) {
			handler := benchHandler(b)
			body := `{"jsonrpc":"2.0","id":1,"method":"` + c.method + `","params":{` + c.params + `,"_meta":{` +
				`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},` +
				`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
				r.Header.Set("Content-Type", mcp.TypeJSON)
				r.Header.Set("Accept", mcp.TypeAccept)
				r.Header.Set(mcp.HeaderProtocolVersion, mcp.Version20260728)
				r.Header.Set(mcp.HeaderMethod, c.method)
				r.Header.Set(mcp.HeaderName, c.name)
				r.Host = "127.0.0.1"
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

const benchTask = "00000000-0000-4000-8000-000000000001"

func benchHandler(b *testing.B) http.Handler {
	return benchGateway(b, func(*config.Config) {}).Handler()
}

func benchGateway(b *testing.B, change func(c *config.Config)) *Gateway {
	b.Helper()
	c := config.FromFlags("http://127.0.0.1:1/mcp")
	change(c)
	c.Upstreams[0].Defaults.Tasks = config.TasksNever
	c.Upstreams[0].Tools = []config.Rule{{Match: "slow", Tool: config.DefaultTool()}}
	up := &fakeUpstream{
		Era: mcp.Modern, Version: mcp.Version20260728, Capabilities: json.RawMessage(`{"tools":{}}`), Quiet: true,
		Replies: map[string]fakeReply{mcp.MethodToolsCall: {Result: json.RawMessage(`{"resultType":"complete","content":[{"type":"text","text":"hello"}]}`)}},
	}
	tasks := map[shim.ID]*fakeTask{benchTask: {Status: shim.Working, StatusMessage: "3/10", Created: time.Now()}}
	g, err := New(Options{
		Config: c, Upstreams: map[string]upstream.Client{"mcp": up}, Sessions: wiretest.OpenSessions(b, c.MaxSessions, c.SessionIdle),
		Shim: &fakeShim{up: up, policy: c.Upstreams[0].Tool, tasks: tasks}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	return g
}

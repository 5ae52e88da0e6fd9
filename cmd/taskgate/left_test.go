package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest"
)

// beginLegacy opens a session of 2025-11-25, and asks the server for its tools.
func (r *running) beginLegacy(path string) (session, said string) {
	_, said, h := r.request(path, "", wiretest.InitializeBody)
	if session = h.Get(mcp.HeaderSession); session != "" {
		_, said, _ = r.request(path, "", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcp.HeaderSession, session)
	}
	return session, said
}

// The process of a client that has left makes room for another one, though the session and its GET
// stream are kept for a while; that of a client which listens does not.
func TestClientsThatHaveLeftMakeRoom(t *testing.T) {
	startsProcesses(t)
	g := runServer(t, "", func(c *config.Config) {
		u := c.Upstreams[0]
		u.Command, u.Env, u.MaxProcesses, u.Era = self(), map[string]string{hangingVar: "http://127.0.0.1:1"}, 2, config.EraLegacy
		c.Admin, c.DrainTimeout = "", 0
	})
	url := "http://" + g.s.listener.Addr().String() + "/mcp"
	ctx, leave := context.WithCancel(t.Context())
	for range 2 {
		session, said := g.beginLegacy("/mcp")
		if !strings.Contains(said, `"hang"`) {
			t.Fatalf("tools: %s", said)
		}
		listen := wiretest.ClientRequest(ctx, url, http.Header{"Accept": {mcp.TypeAccept}, mcp.HeaderSession: {session}}, nil)
		listen.Method = http.MethodGet
		resp, err := http.DefaultClient.Do(listen)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("GET: %v, %v", resp, err)
		}
		t.Cleanup(func() { resp.Body.Close() })
	}
	if _, said := g.beginLegacy("/mcp"); !strings.Contains(said, "too many processes") {
		t.Errorf("while both are there: %s", said)
	}
	leave()
	shimtest.Eventually(t, func() bool {
		_, said := g.beginLegacy("/mcp")
		return strings.Contains(said, `"hang"`)
	})
}

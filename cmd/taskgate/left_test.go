package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest"
)

// legacyClient is a client of 2025-11-25 with a session of its own.
type legacyClient struct {
	t       *testing.T
	url     string
	session string
}

func (c *legacyClient) do(ctx context.Context, method, body string) (*http.Response, string) {
	c.t.Helper()
	header := http.Header{"Content-Type": {mcp.TypeJSON}, "Accept": {mcp.TypeAccept}}
	if c.session != "" {
		header.Set(mcp.HeaderSession, c.session)
	}
	req := wiretest.ClientRequest(ctx, c.url, header, []byte(body))
	req.Method = method
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	if method == http.MethodGet {
		return resp, ""
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(b)
}

// begin opens the session, and asks the server for something.
func (c *legacyClient) begin() string {
	resp, said := c.do(c.t.Context(), http.MethodPost, wiretest.InitializeBody)
	c.session = resp.Header.Get(mcp.HeaderSession)
	if c.session == "" {
		return said
	}
	_, said = c.do(c.t.Context(), http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	return said
}

// The process of a client that has left makes room for another one, though the session and its GET
// stream are kept for a while; that of a client which listens does not.
func TestClientsThatHaveLeftMakeRoom(t *testing.T) {
	g := runServer(t, "", func(c *config.Config) {
		u := c.Upstreams[0]
		u.Command, u.Env, u.MaxProcesses, u.Era = self(), map[string]string{hangingVar: "http://127.0.0.1:1"}, 2, config.EraLegacy
		c.Admin, c.DrainTimeout = "", 0
	})
	url := "http://" + g.s.listener.Addr().String() + "/mcp"
	ctx, leave := context.WithCancel(t.Context())
	for range 2 {
		c := &legacyClient{t: t, url: url}
		if said := c.begin(); !strings.Contains(said, `"hang"`) {
			t.Fatalf("tools: %s", said)
		}
		if resp, _ := c.do(ctx, http.MethodGet, ""); resp.StatusCode != http.StatusOK {
			t.Fatalf("GET: %s", resp.Status)
		}
	}
	said := (&legacyClient{t: t, url: url}).begin()
	if !strings.Contains(said, "too many processes") {
		t.Errorf("while both are there: %s", said)
	}
	leave()
	shimtest.Eventually(t, func() bool { return strings.Contains((&legacyClient{t: t, url: url}).begin(), `"hang"`) })
}

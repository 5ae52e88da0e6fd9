package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// Headers that go on to a server with the calls of their client are in memory only: not in Redis and
// not in a log. A task goes on with them when its client has gone, and fails when its replica is lost, in
// words that say why. A task of a client without such headers is taken over as ever.
func TestForwardedHeadersStayInMemory(t *testing.T) {
	t.Parallel()
	const secret = "a-tenant-that-nobody-else-should-know"
	server, proceed := newPeer("tenants"), make(chan struct{})
	addWords(server, "wait", func(ctx context.Context, r *sdk.CallToolRequest) string {
		select {
		case <-proceed:
		case <-ctx.Done():
		}
		return "tenant " + r.Extra.Header.Get("X-Tenant")
	})
	way := redistest.NewProxy(t, redistest.Start(t).Addr)
	way.Record()
	config := configured(t, fmt.Sprintf(`
store: %s
heartbeat: 1s
log: {level: debug}
upstreams:
  - name: slow
    path: /mcp
    url: %q
    forward_headers: [X-Tenant]
    defaults: {tasks: always, poll_interval: 100ms}
`, way.URL(), serve(t, streamable(server, resumable()))))
	lost, stays := startGateway(t, config...), startGateway(t, config...)
	tenant := func(g *gateway) *taskclient.Client {
		return &taskclient.Client{URL: g.url, Tasks: true, HTTP: &http.Client{Transport: sending{"X-Tenant": {secret}}}}
	}
	gone := callResumable(t, way, tenant(lost), map[string]any{})
	plain := callResumable(t, way, lost.client(true), map[string]any{})
	kept := callResumable(t, way, tenant(stays), map[string]any{})
	lost.Kill()

	end := waitFor(t, tenant(stays), gone.ID, "failed")
	if end.Error == nil || !strings.Contains(end.Error.Message, "the headers that the call came with were lost with the replica that ran it") {
		t.Errorf("the task that was lost: %+v", end)
	}
	close(proceed)
	if got := textOf(t, waitFor(t, tenant(stays), kept.ID, "completed").Result); got != "tenant "+secret {
		t.Errorf("the task that goes on: %q", got)
	}
	if got := textOf(t, waitFor(t, stays.client(true), plain.ID, "completed").Result); got != "tenant " {
		t.Errorf("the task without such headers: %q", got)
	}
	if n := way.Said(secret); n != 1 { // in the result: the server may say what it likes
		t.Errorf("the header was sent to Redis %d times", n)
	}
	for _, g := range []*gateway{lost, stays} {
		if strings.Contains(g.Output(), secret) {
			t.Errorf("the header is in the log:\n%s", g.Output())
		}
	}
}

// callResumable makes a task of the tool "wait", and returns once the record says where its call can
// be resumed. The event that says so is the only one of the call until the tool ends.
func callResumable(t *testing.T, way *redistest.Proxy, c *taskclient.Client, args map[string]any) *taskclient.Task {
	t.Helper()
	const checkpoint = `"last":"`
	before := way.Said(checkpoint)
	task := callTask(t, c, "wait", args)
	until(t, "the record says where the call can be resumed", func() bool { return way.Said(checkpoint) != before })
	return task
}

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/programtest"
)

// reloading has two servers that stay, of which one is changed all the time, and one that comes and goes.
const reloading = `
admin: %s
admin_auth: {keys: ["ops:%[5]s"]}
drain_delay: 0s
store: embedded
upstreams:
  - name: steady
    path: /mcp
    url: %[2]s
    defaults: {tasks: auto, grace: 300ms, poll_interval: 100ms}
  - name: moving
    path: /moving/mcp
    url: %[2]s
    headers: {X-Change: "%[3]d"}
    defaults: {tasks: auto, grace: %[4]s, poll_interval: 100ms}
`

// TestReloads: under load, one reload after the other changes an upstream, and adds or removes another one.
// No call fails, no task is lost, and no stream ends. What is left of a reload, TestReloadsLeaveNothing of
// cmd/taskgate counts.
func TestReloads(t *testing.T) {
	t.Parallel()
	times := 20
	if programtest.Whole() {
		times = 500
	}
	admin, server, file := freeAddr(t), startServer(t, "slowserver"), filepath.Join(t.TempDir(), "taskgate.yaml")
	write := func(n int) {
		t.Helper()
		text := fmt.Sprintf(reloading, admin, server, n, []string{"200ms", "400ms"}[n%2], config.HashKey("the-key-of-ops"))
		if n%3 == 0 {
			text += fmt.Sprintf("  - {name: guest, url: %q}\n", server)
		}
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	g := startGateway(t, "--config", file)
	moving := "http://" + g.addr + "/moving/mcp"
	session := connectAs(t, g.url, "2025-11-25")
	_, long, err := g.client(true).CallTool(t.Context(), "research", research(5))
	if err != nil {
		t.Fatal(err)
	}

	var done atomic.Int64
	all := map[string]func(context.Context) error{"SDK": func(ctx context.Context) error { return session.Ping(ctx, nil) }}
	for where, url := range map[string]string{"steady": g.url, "moving": moving} {
		for name, load := range loads(t, url) {
			all[where+", "+name] = load
			if name == "stream" {
				all[where+", "+name] = func(ctx context.Context) error { return cmp.Or(load(ctx), io.ErrUnexpectedEOF) }
			}
		}
	}
	defer keepUp(t, &done, all)()

	reload := func(n int) {
		t.Helper()
		write(n)
		q, err := http.NewRequest(http.MethodPost, "http://"+admin+"/reload", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer the-key-of-ops")
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", resp.Status, body)
		}
	}
	for n := range times {
		before := done.Load()
		reload(n + 1)
		until(t, "requests are made", func() bool { return done.Load() >= before+5 })
	}
	if end, err := g.client(true).Wait(t.Context(), long.ID, nil); err != nil || end.Status != "completed" {
		t.Errorf("the task that was there first ended as %q: %v", end.Status, err)
	}
}

// TestHangup: SIGHUP reads the file anew, and a bad one changes nothing.
func TestHangup(t *testing.T) {
	t.Parallel()
	server := startServer(t, "slowserver")
	args := configured(t, fmt.Sprintf("upstreams:\n  - {name: one, path: /mcp, url: %q}\n", server))
	g := startGateway(t, args...)
	for _, step := range []struct{ text, says string }{
		{"upstreams: 7\n", "the configuration is refused"},
		{fmt.Sprintf("upstreams:\n  - {name: two, path: /mcp, url: %q}\n", server), "upstream=two"},
	} {
		if err := os.WriteFile(args[1], []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		until(t, step.says, func() bool { return strings.Contains(g.Output(), step.says) })
		callPlain(t, g.client(true), "count_words", map[string]any{"text": "one"})
	}
	if strings.Contains(g.Output(), "draining") {
		t.Errorf("it drains: %s", g.Output())
	}
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFolderIsRemoved: a gateway whose folder was removed can keep nothing any more, and ends with the reason once it has
// to write. The next start makes a new folder.
func TestFolderIsRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	config := configured(t, fmt.Sprintf(`
store: "file:%s"
store_wait: 1s
drain_timeout: 1s
upstreams: [{name: slow, path: /mcp, url: "%s", defaults: {tasks: always}}]
`, dir, startServer(t, "slowserver")))
	g := startGateway(t, config...)
	callTask(t, g.client(true), "research", research(0.1))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, _, _ = g.client(true).CallTool(t.Context(), "research", research(0.1))
	if code := within(t, g.Process, time.Minute); code != 1 || !strings.Contains(g.Output(), "the store was removed while it was in use") {
		t.Errorf("exit code %d:\n%s", code, g.Output())
	}
	callTask(t, startGateway(t, config...).client(true), "research", research(0.1))
}

// TestFolderIsRemovedOverStdio: a gateway over stdio ends with that reason as well, and its client starts it anew.
func TestFolderIsRemovedOverStdio(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	command := stdioServer(t).command(t, "--store", "file:"+dir, "--grace", "300ms")
	c := startWire(t, command)
	desktopResult(t, c, desktopTask(t, c, "steps", `{}`))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	c.ask("tools/call", fmt.Sprintf(`{"name":"steps","arguments":{},%s}`, modernMeta))
	if err := c.endWithin(time.Minute); err == nil || !strings.Contains(fmt.Sprint(command.Stderr), "the store was removed while it was in use") {
		t.Errorf("it ended with %v", err)
	}
}

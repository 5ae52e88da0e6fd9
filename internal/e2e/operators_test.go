package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// readiness is what /readyz answers.
type readiness struct {
	status   int
	Draining bool
	Store    struct {
		Reachable   bool
		Kind, Error string
	}
}

// readyz asks the admin listener.
func readyz(addr, query string) (r readiness, err error) {
	client := &http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + addr + "/readyz" + query)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	r.status = resp.StatusCode
	return r, json.NewDecoder(resp.Body).Decode(&r)
}

// /readyz follows the store and the drain; /healthz only says that there is a
// process.
func TestProbes(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	admin := freeAddr(t)
	g := startGateway(t, "--upstream", startServer(t, "slowserver"), "--store", store.URL(), "--admin", admin)
	becomes := func(query string, status int, store bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("readyz%s is %d", query, status), func() error {
			r, err := readyz(admin, query)
			if err == nil && (r.status != status || r.Store.Reachable != store) {
				err = fmt.Errorf("%+v", r)
			}
			return err
		})
	}
	becomes("", 200, true)
	store.Stop()
	becomes("", 503, false)
	becomes("?exclude=store", 200, false)
	if resp, err := http.Get("http://" + admin + "/healthz"); err != nil || resp.StatusCode != 200 {
		t.Errorf("healthz without a store: %v %v", resp, err)
	}
	store.Restart()
	becomes("", 200, true)

	call := startCall(t, g.client(false), research(2))
	terminate(t, g.Process)
	until(t, "readyz says that it drains", func() bool {
		r, err := readyz(admin, "")
		return err == nil && r.status == 503 && r.Draining
	})
	<-call.done
	if call.err != nil {
		t.Errorf("the call failed: %v", call.err)
	}
	if code := within(t, g.Process, 10*time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// hashOf runs taskgate hash-key.
func hashOf(t *testing.T, key string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "taskgate"), "hash-key")
	cmd.Stdin = strings.NewReader(key + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// With keys, a task is its owner's: on every replica, by any of the owner's keys,
// and by nobody else's.
func TestKeys(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	const alice, next, bob = "alice-0123456789abcdef0123", "alice-next-0123456789abcdef", "bob-0123456789abcdef01234"
	config := configured(t, fmt.Sprintf(`
store: %s
auth:
  keys:
    - alice:%s
    - alice:%s
    - bob:%s
upstreams:
  - {name: slow, path: /mcp, url: "%s", defaults: {tasks: always}}
`, store.URL(), hashOf(t, alice), hashOf(t, next), hashOf(t, bob), startServer(t, "slowserver")))
	here, there := startGateway(t, config...), startGateway(t, config...)
	task := callTask(t, here.as(alice), "research", research(1))
	waitFor(t, there.as(next), task.ID, "completed")
	var refused *taskclient.Error
	if _, err := there.as(bob).Get(t.Context(), task.ID); !errors.As(err, &refused) || refused.Code != -32602 {
		t.Errorf("another's task: %v", err)
	}
	for _, key := range []string{"", "alice", alice + "0"} {
		if _, err := here.as(key).Get(t.Context(), task.ID); !errors.As(err, &refused) || refused.Status != 401 {
			t.Errorf("with the key %q: %v", key, err)
		}
	}
	for _, g := range []*gateway{here, there} {
		if out := g.Output(); strings.Contains(out, alice) || strings.Contains(out, bob) {
			t.Errorf("a key is in the log:\n%s", out)
		}
	}
}

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/balancer"
	"taskgate/internal/mcp"
	"taskgate/internal/proc"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// rolling is the configuration of a replica that is restarted under load.
const rolling = `
store: %s
heartbeat: 1s
admin: %s
drain_delay: 3s
upstreams:
  - name: slow
    path: /mcp
    url: %s
    defaults: {tasks: auto, grace: 300ms, poll_interval: 100ms}
`

// backend is a replica as a balancer sees it.
type backend struct {
	program     string // in bin
	addr, admin string
	args        []string
	process     *proc.Process
}

// start runs the replica at its address.
func (b *backend) start(t *testing.T) {
	t.Helper()
	b.process = start(t, b.addr, proc.Command{Name: b.program + " " + b.addr, Path: filepath.Join(bin, b.program), Args: append([]string{"serve", "--listen", b.addr}, b.args...)})
}

// rollingWorld is replicas behind a balancer that polls /readyz each second, and the load on them.
type rollingWorld struct {
	backends []*backend
	balancer *balancer.Balancer
	url      string
	done     atomic.Int64 // requests
}

// startRolling starts replicas of a program, each with the configuration for its admin address.
func startRolling(t *testing.T, program string, replicas int, yaml func(admin string) string) *rollingWorld {
	t.Helper()
	w := &rollingWorld{}
	var all []balancer.Replica
	for range replicas {
		b := &backend{program: program, addr: freeAddr(t), admin: freeAddr(t)}
		b.args = configured(t, yaml(b.admin))
		b.start(t)
		w.backends = append(w.backends, b)
		all = append(all, func() (string, string) { return b.addr, b.admin })
	}
	w.balancer = balancer.New(all...)
	w.url = serve(t, w.balancer)
	ctx, stop := context.WithCancel(context.Background())
	var polling sync.WaitGroup
	polling.Go(func() { w.balancer.Poll(ctx) })
	t.Cleanup(func() {
		stop()
		polling.Wait()
	})
	for i := range w.backends {
		w.becomes(t, i)
	}
	return w
}

// becomes waits until the balancer sees a replica.
func (w *rollingWorld) becomes(t *testing.T, i int) {
	t.Helper()
	until(t, "the balancer sees a replica", func() bool { return w.balancer.Ready(i) })
}

// load has clients do all that loads has, over and over, until stop is called.
func (w *rollingWorld) load(t *testing.T) (stop func()) {
	t.Helper()
	return keepUp(t, &w.done, loads(t, w.url+"/mcp"))
}

// keepUp does all of this over and over until stop is called, and counts it.
func keepUp(t *testing.T, done *atomic.Int64, loads map[string]func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for name, load := range loads {
		all.Go(func() {
			pause := time.NewTicker(20 * time.Millisecond)
			defer pause.Stop()
			for ctx.Err() == nil {
				if err := load(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", name, err)
				}
				done.Add(1)
				<-pause.C
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// restart stops one replica after the other, and starts a program in its place.
func (w *rollingWorld) restart(t *testing.T, program string) {
	t.Helper()
	for i, b := range w.backends {
		before := w.done.Load()
		b.program = program
		w.restartOne(t, i, 30*time.Second)
		if n := w.done.Load() - before; n < 20 {
			t.Errorf("only %d requests were made while it restarted", n)
		}
	}
}

// restartOne stops a replica, which has so much time to drain, and starts it again.
func (w *rollingWorld) restartOne(t *testing.T, i int, limit time.Duration) {
	t.Helper()
	b := w.backends[i]
	stops(t, b.process, limit)
	b.start(t)
	w.becomes(t, i)
}

// legacyPost sends a message in a session of 2025-11-25 and returns the session's id. Any
// answer but a result is an error.
func legacyPost(ctx context.Context, to, session, message string) (string, error) {
	resp, err := legacyRequest(ctx, http.MethodPost, to, session, message)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"result"`)) {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return resp.Header.Get(mcp.HeaderSession), err
}

// loads are what clients do over and over while replicas are restarted.
func loads(t *testing.T, to string) map[string]func(context.Context) error {
	session, err := legacyPost(t.Context(), to, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	plain, tasks := &taskclient.Client{URL: to}, &taskclient.Client{URL: to, Tasks: true}
	var serial atomic.Int64
	return map[string]func(context.Context) error{
		"plain": func(ctx context.Context) error {
			_, _, err := plain.CallTool(ctx, "count_words", map[string]any{"text": "one two"})
			return err
		},
		"blocking": func(ctx context.Context) error {
			result, _, err := plain.CallTool(ctx, "research", research(1))
			if err == nil && !json.Valid(result) {
				err = fmt.Errorf("result %s", result)
			}
			return err
		},
		"task": func(ctx context.Context) error {
			_, task, err := tasks.CallTool(ctx, "research", research(1))
			if err != nil {
				return err
			}
			end, err := tasks.Wait(ctx, task.ID, nil)
			if err == nil && end.Status != "completed" {
				err = fmt.Errorf("the task ended as %s: %s", end.Status, end.StatusMessage)
			}
			return err
		},
		"session": func(ctx context.Context) error {
			_, err := legacyPost(ctx, to, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"count_words","arguments":{"text":"a b"}}}`, serial.Add(1)))
			return err
		},
		"stream": func(ctx context.Context) error {
			resp, err := legacyRequest(ctx, http.MethodGet, to, session, "")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return errors.New(resp.Status)
			}
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		},
	}
}

// While two replicas behind a balancer that polls /readyz each second are restarted one
// after the other, no client sees an error.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	store, server := redistest.Start(t), startServer(t, "slowserver")
	w := startRolling(t, "taskgate", 2, func(admin string) string { return fmt.Sprintf(rolling, store.URL(), admin, server) })
	defer w.load(t)()
	w.restart(t, "taskgate")
}

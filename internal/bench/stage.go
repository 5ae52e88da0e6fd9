package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/work"
)

// stage is the running parties of a part, each by its address.
type stage struct {
	dir             string
	every           time.Duration // between two questions about a job
	processes       []*proc.Process
	redis, server   string
	proxy, pooled   string // bare proxies: one of them has a pool of buffers
	gateway, second string
	gatewayProcess  *proc.Process // of gateway
	proxyProcess    *proc.Process // of proxy
	pooledProcess   *proc.Process // of pooled
}

// startTimeout is how long the parties may take to listen.
const startTimeout = 20 * time.Second

// upstreamConfig is the upstream of a gateway, whose tools differ in their policy alone; what is said of these follows.
const upstreamConfig = `
log: {level: error}
upstreams:
  - name: bench
    path: /mcp
    url: http://%s/mcp
    era: %s
    max_tasks_per_owner: 10000000
    defaults: {tasks: never}
    tools:
`

// gatewayConfig is a gateway by itself.
const gatewayConfig = `
listen: %s
store: %s` + upstreamConfig + `
      - {match: always, tasks: always, ttl: 5s}
      - {match: keep, tasks: always, ttl: 1h}
      - {match: kilobyte, tasks: always, ttl: 1h}
      - {match: hold, tasks: always, ttl: 1h}
      - match: start_job
        tasks: always
        job: {id: $.id, status: {tool: job_status, arguments: {id: "{id}"}, value: $.state}, running: [running], done: [done], interval: %s, max_interval: %[5]s}
`

// newStage starts all parties, with a server of that era.
func newStage(ctx context.Context, s settings, era string) (*stage, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	st, err := emptyStage()
	if err != nil {
		return nil, err
	}
	st.every = s.every
	if err := st.start(ctx, s.taskgate, era); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// emptyStage has addresses for all parties, and no party.
func emptyStage() (*stage, error) {
	dir, err := os.MkdirTemp("", "taskgate-bench")
	st := &stage{dir: dir, every: 30 * time.Second}
	for _, addr := range []*string{&st.redis, &st.server, &st.proxy, &st.pooled, &st.gateway, &st.second} {
		if err == nil {
			*addr, err = proc.FreeAddr()
		}
	}
	return st, err
}

func (st *stage) start(ctx context.Context, taskgate, era string) error {
	if _, err := st.startRedis(ctx, "--appendonly", "no"); err != nil {
		return err
	}
	if err := st.startServers(ctx); err != nil {
		return err
	}
	for _, addr := range []string{st.second, st.gateway} {
		var err error
		if st.gatewayProcess, err = st.startGateway(ctx, taskgate, addr, "redis://"+st.redis+"/0", era); err != nil {
			return err
		}
	}
	return nil
}

// startRedis runs the Redis.
func (st *stage) startRedis(ctx context.Context, args ...string) (*proc.Process, error) {
	_, port, err := net.SplitHostPort(st.redis)
	if err != nil {
		return nil, err
	}
	return st.run(ctx, st.redis, "redis-server", append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", st.dir}, args...)...)
}

// startServers runs the server and the proxies in front of it.
func (st *stage) startServers(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := st.run(ctx, st.server, self, "-as", "server", "-listen", st.server); err != nil {
		return err
	}
	if st.proxyProcess, err = st.run(ctx, st.proxy, self, "-as", "proxy", "-listen", st.proxy, "-to", st.server); err != nil {
		return err
	}
	st.pooledProcess, err = st.run(ctx, st.pooled, self, "-as", "pooled", "-listen", st.pooled, "-to", st.server)
	return err
}

// startGateway runs a gateway over a store.
func (st *stage) startGateway(ctx context.Context, taskgate, addr, store, era string) (*proc.Process, error) {
	file := filepath.Join(st.dir, addr+".yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, gatewayConfig, addr, store, st.server, era, st.every), 0o600); err != nil {
		return nil, err
	}
	return st.run(ctx, addr, taskgate, "serve", "--config", file)
}

// run starts a program and waits until it listens.
func (st *stage) run(ctx context.Context, addr, path string, args ...string) (*proc.Process, error) {
	p, err := proc.Start(proc.Command{Name: filepath.Base(path), Path: path, Args: args})
	if err != nil {
		return nil, err
	}
	st.processes = append(st.processes, p)
	return p, p.WaitListening(ctx, addr)
}

// close ends the parties, the last one first.
func (st *stage) close() {
	for i := len(st.processes) - 1; i >= 0; i-- {
		st.processes[i].Stop(2 * time.Second)
	}
	_ = os.RemoveAll(st.dir)
}

// explain adds what the gateway logged to an error.
func (st *stage) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s", err, st.gatewayProcess.Output())
}

// held asks the server how many calls are open, or with ?polls how often it was asked for a job. query may have it
// release calls.
func (st *stage) held(ctx context.Context, query string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+st.server+"/"+query, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	number, bad := strconv.Atoi(string(body))
	return number, errors.Join(err, bad)
}

// waitHeld waits until n calls are open at the server.
func (st *stage) waitHeld(ctx context.Context, n int) error {
	return st.waitCount(ctx, "", n, answerTimeout)
}

// waitCount waits until a count of the server is n.
func (st *stage) waitCount(ctx context.Context, query string, n int, patience time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		have, err := st.held(ctx, query)
		if err != nil || have >= n {
			return err
		}
		if work.Pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the server has counted %d, not %d", have, n)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// parkedConfig is a gateway for calls that stay open. It forgets soon how tasks
// ended, so that the idle seconds have nothing to do with the load before them.
const parkedConfig = `
listen: %s
store: redis://%s/0
log: {level: warn}
settle: 1s
state_keys: [{id: bench, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}]
upstreams:
  - name: parked
    path: /mcp
    url: http://%s/mcp
    era: %s
    max_tasks: 10000000
    max_tasks_per_owner: 10000000
    defaults: {tasks: always, ttl: 1h}
    tools:
      - {match: quick, tasks: always, ttl: 5s}
`

// settled is how long after a load the gateway has nothing left to do of it.
const settled = 3 * time.Second

// parking is one gateway with a Redis and a server that holds its calls.
type parking struct {
	stage
	store *redis.Client
	pid   int
}

// level is what was found with so many parked tasks.
type level struct {
	parked int
	idle   usage
	length time.Duration // of the idle time
	rates  map[string]sample
	busy   int64 // resident after the rates, with what they left to the garbage collector
}

// Cells of the second part, as the report has them.
const (
	parkedCreate = "create"
	parkedPoll   = "poll"
	parkedCancel = "create and cancel"
)

// parkedConns is how many connections drive the other tasks.
const parkedConns = 16

// measureParked parks tasks at servers of both eras and writes the report.
func measureParked(ctx context.Context, out io.Writer, taskgate string, s settings) error {
	files, err := raiseFiles()
	if err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if files < s.parked+spare {
		fmt.Fprintf(os.Stderr, "the hard limit of open files is %d: only %d tasks are parked; raise it with ulimit -Hn %d\n", files, max(files-spare, 0), s.parked+spare)
		s.parked = max(files-spare, 0)
	}
	found := map[string][]level{}
	for _, era := range []string{"legacy", "modern"} {
		levels, err := parkAt(ctx, taskgate, era, s)
		if err != nil {
			return fmt.Errorf("parked at a %s server: %w", era, err)
		}
		found[era] = levels
	}
	return reportParked(out, found, s)
}

// parkAt measures a fresh gateway at one kind of server.
func parkAt(ctx context.Context, taskgate, era string, s settings) (levels []level, err error) {
	p, err := newParking(ctx, taskgate, era)
	if err != nil {
		return nil, err
	}
	defer p.close()
	defer p.store.Close()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, p.complaints())
		}
	}()
	for _, n := range []int{0, s.parked / 10, s.parked} {
		fmt.Fprintf(os.Stderr, "%d tasks parked at a %s server\n", n, era)
		l, err := p.level(ctx, n, s)
		if err != nil {
			return nil, err
		}
		levels = append(levels, l)
	}
	return levels, nil
}

func newParking(ctx context.Context, taskgate, era string) (*parking, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "taskgate-bench")
	if err != nil {
		return nil, err
	}
	p := &parking{stage: stage{dir: dir}}
	if err := p.begin(ctx, taskgate, era); err != nil {
		p.close()
		return nil, err
	}
	p.store = newRedis(p.redis, 1)
	p.pid = p.processes[len(p.processes)-1].PID()
	return p, nil
}

// begin starts the three parties, the gateway last.
func (p *parking) begin(ctx context.Context, taskgate, era string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := p.freeAddrs(); err != nil {
		return err
	}
	file := filepath.Join(p.dir, "taskgate.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, parkedConfig, p.gateway, p.redis, p.upstream, era), 0o600); err != nil {
		return err
	}
	return p.run(ctx, []party{
		p.redisParty(),
		{p.upstream, self, []string{"-as", "hold", "-listen", p.upstream}},
		{p.gateway, taskgate, []string{"serve", "--config", file}},
	})
}

// watch waits until n calls are open at the server, and looks at what the gateway uses
// while nothing happens.
func (p *parking) watch(ctx context.Context, n int, l *level) error {
	if err := p.open(ctx, n); err != nil {
		return err
	}
	if err := pause(ctx, settled); err != nil {
		return err
	}
	before, err := p.usageOf(ctx, p.pid)
	if err != nil {
		return err
	}
	if err := pause(ctx, l.length); err != nil {
		return err
	}
	after, err := p.usageOf(ctx, p.pid)
	if err != nil {
		return err
	}
	l.idle = after.since(before)
	return nil
}

// level parks tasks until there are n, watches them doing nothing, and then
// measures what else goes on.
func (p *parking) level(ctx context.Context, n int, s settings) (level, error) {
	l := level{parked: n, length: min(max(15*s.length, time.Second), 10*time.Second), rates: map[string]sample{}}
	if err := p.park(n); err != nil {
		return l, err
	}
	if err := p.watch(ctx, n, &l); err != nil {
		return l, err
	}
	if err := p.rates(ctx, s, &l); err != nil {
		return l, err
	}
	after, err := p.usageOf(ctx, p.pid)
	l.busy = after.resident
	return l, err
}

// rates measures what is done with other tasks.
func (p *parking) rates(ctx context.Context, s settings, l *level) error {
	client := &taskclient.Client{URL: "http://" + p.gateway + "/mcp", Tasks: true}
	_, task, err := client.CallTool(ctx, holdTool, map[string]any{})
	if err != nil {
		return err
	}
	if task == nil {
		return errors.New("the call did not become a task")
	}
	get := request(p.gateway, mcp.MethodTasksGet, task.ID, `"taskId":"`+task.ID+`"`, true)
	samples := map[string][]sample{}
	for range s.rounds {
		for _, v := range []variant{
			call(parkedCreate, p.gateway, quickTool, true, handled),
			over(parkedPoll, p.gateway, `"status":"working"`, get),
			{name: parkedCancel, want: []byte(`"resultType":"complete"`), dial: p.dialCancel},
		} {
			got, err := load(ctx, v, parkedConns, s.length)
			if err != nil {
				return err
			}
			samples[v.name] = append(samples[v.name], got)
		}
	}
	for name, list := range samples {
		l.rates[name] = median(list)
	}
	if err := client.Cancel(ctx, task.ID); err != nil {
		return err
	}
	return p.open(ctx, l.parked)
}

// park makes tasks until there are n.
func (p *parking) park(n int) error {
	return p.fill(n, call("park", p.gateway, holdTool, true, handled))
}

// fill makes calls until n are open at the server.
func (p *parking) fill(n int, v variant) error {
	have, err := p.held()
	if err != nil {
		return err
	}
	var left atomic.Int64
	left.Store(int64(n - have))
	errs := make([]error, parkedConns)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			w, err := v.dial()
			if err != nil {
				errs[i] = err
				return
			}
			defer w.Close()
			for left.Add(-1) >= 0 {
				if body, err := w.do(); err != nil || !bytes.Contains(body, v.want) {
					errs[i] = fmt.Errorf("%s: %.300q %w", v.name, body, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// held asks the server how many calls are open.
func (p *parking) held() (int, error) {
	resp, err := http.Get("http://" + p.upstream + "/")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(body))
}

// open waits until exactly n calls are.
func (p *parking) open(ctx context.Context, n int) error {
	ctx, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	for {
		have, err := p.held()
		if err != nil || have == n {
			return err
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("%d calls are open, not %d", have, n)
		}
	}
}

// cancelConn parks a task and cancels it.
type cancelConn struct {
	*httpConn
	addr   string
	create []byte
}

func (p *parking) dialCancel() (worker, error) {
	create := request(p.gateway, mcp.MethodToolsCall, holdTool, `"name":"`+holdTool+`","arguments":{}`, true)
	w, err := dialHTTP(p.gateway, create)
	if err != nil {
		return nil, err
	}
	return &cancelConn{w.(*httpConn), p.gateway, create}, nil
}

func (c *cancelConn) do() ([]byte, error) {
	c.request = c.create
	body, err := c.httpConn.do()
	if err != nil {
		return nil, err
	}
	id, err := taskID(body)
	if err != nil {
		return nil, err
	}
	c.request = request(c.addr, mcp.MethodTasksCancel, id, `"taskId":"`+id+`"`, true)
	return c.httpConn.do()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/proc"
)

// wakeConfig is one of two gateways over the same Redis.
const wakeConfig = `
listen: %s
store: redis://%s/0
log: {level: warn}
settle: 1s
upstreams:
  - name: wake
    path: /mcp
    url: http://%s/mcp
    era: modern
    max_tasks: 10000000
    max_tasks_per_owner: 10000000
    defaults: {tasks: always, ttl: 30s}
`

// wakeEvery is the time between two completions: a hundred each second.
const wakeEvery = 10 * time.Millisecond

// Kinds of waiters, as the report has them.
const (
	wakeResult = "tasks/result, 2025-11-25"
	wakeListen = "subscriptions/listen, 2026-07-28"
)

// waking is two gateways over one Redis and a server that releases its calls: the
// first gateway makes the tasks, the second has those who wait for them.
type waking struct {
	stage
	second string // the address of the second gateway
}

// woken is what was found.
type woken struct {
	length time.Duration
	times  map[string][]time.Duration // from the server's answer to the waiter's read, by kind
	cpu    map[string]time.Duration   // by party
}

// measureWake has tasks end on one replica while clients wait for them on another,
// and writes how long each took to hear of it.
func measureWake(ctx context.Context, out io.Writer, taskgate string, s settings) error {
	w, err := newWaking(ctx, taskgate)
	if err != nil {
		return err
	}
	defer w.close()
	fmt.Fprintf(os.Stderr, "%d clients waiting on another replica\n", s.waiters)
	found, err := w.measure(ctx, s)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, w.complaints())
	}
	if text := w.complaints(); text != "" {
		fmt.Fprintf(os.Stderr, "the second gateway logged:\n%s\n", text)
	}
	return reportWake(out, found, s)
}

func newWaking(ctx context.Context, taskgate string) (*waking, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "taskgate-bench")
	if err != nil {
		return nil, err
	}
	w := &waking{stage: stage{dir: dir}}
	if err := w.begin(ctx, taskgate); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// begin starts the four parties, the second gateway last.
func (w *waking) begin(ctx context.Context, taskgate string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := w.freeAddrs(); err != nil {
		return err
	}
	if w.second, err = proc.FreeAddr(); err != nil {
		return err
	}
	parties := []party{
		w.redisParty(),
		{w.upstream, self, []string{"-as", "release", "-listen", w.upstream}},
	}
	for i, addr := range []string{w.gateway, w.second} {
		file := filepath.Join(w.dir, fmt.Sprintf("taskgate%d.yaml", i))
		if err := os.WriteFile(file, fmt.Appendf(nil, wakeConfig, addr, w.redis, w.upstream), 0o600); err != nil {
			return err
		}
		parties = append(parties, party{addr, taskgate, []string{"serve", "--config", file}})
	}
	return w.run(ctx, parties)
}

// measure keeps s.waiters clients waiting, half of each kind: who has heard of its
// task waits for another one.
func (w *waking) measure(ctx context.Context, s settings) (*woken, error) {
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	tasks := make(chan string)
	for range parkedConns {
		running.Go(func() { stop(w.makeTasks(ctx, tasks)) })
	}
	waiters := make([]*waiter, s.waiters)
	var waiting sync.WaitGroup
	waiting.Add(len(waiters))
	for i := range waiters {
		waiters[i] = &waiter{addr: w.second, kind: []string{wakeResult, wakeListen}[i%2]}
		running.Go(func() { stop(waiters[i].run(ctx, tasks, waiting.Done)) })
	}
	waiting.Wait() // those whose client failed count too
	if err := pause(ctx, settled); err != nil {
		return nil, context.Cause(ctx)
	}
	found := &woken{length: max(15*s.length, time.Second)}
	before, err := w.cpu()
	if err == nil {
		err = w.release(ctx, wakeEvery)
	}
	if err == nil && pause(ctx, found.length) != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = w.release(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	if found.cpu, err = w.cpu(); err != nil {
		return nil, err
	}
	for party := range found.cpu {
		found.cpu[party] -= before[party]
	}
	if pause(ctx, time.Second) != nil { // what was released last is on its way
		return nil, context.Cause(ctx)
	}
	stop(nil)
	running.Wait()
	found.times = map[string][]time.Duration{}
	for _, one := range waiters {
		found.times[one.kind] = append(found.times[one.kind], one.times...)
	}
	for _, list := range found.times {
		slices.Sort(list)
	}
	return found, nil
}

// release has the server release a call after each such time; 0 stops it.
func (w *waking) release(ctx context.Context, every time.Duration) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.upstream+"/?every="+every.String(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if _, number := strconv.Atoi(string(body)); err == nil && number != nil {
		err = fmt.Errorf("the server answers %q", body)
	}
	return err
}

// cpu is the CPU time that each party has used.
func (w *waking) cpu() (map[string]time.Duration, error) {
	pids := map[string]int{"this program": os.Getpid()}
	for i, name := range []string{"Redis", "server", "first gateway", "second gateway"} {
		pids[name] = w.processes[i].PID()
	}
	used := map[string]time.Duration{}
	for name, pid := range pids {
		d, err := cpuOf(pid)
		if err != nil {
			return nil, err
		}
		used[name] = d
	}
	return used, nil
}

// makeTasks makes tasks on the first gateway, as fast as they are taken.
func (w *waking) makeTasks(ctx context.Context, tasks chan<- string) error {
	conn, err := call("make", w.gateway, holdTool, true, handled).dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		body, err := conn.do()
		if err != nil {
			return err
		}
		id, err := taskID(body)
		if err != nil {
			return err
		}
		select {
		case tasks <- id:
		case <-ctx.Done():
			return nil
		}
	}
}

// newSession begins a legacy client session and returns its id.
func newSession(ctx context.Context, addr string) (string, error) {
	resp, err := postLegacy(ctx, addr, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err != nil {
		return "", err
	}
	session := resp.Header.Get(mcp.HeaderSession)
	if session == "" {
		return "", errors.New("initialize gave no session")
	}
	_, err = postLegacy(ctx, addr, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return session, err
}

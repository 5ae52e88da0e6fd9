package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/proc"
	"taskgate/internal/taskclient"
)

// This file measures how long a partial result takes from the server's write to the
// client's read, for tasks that are listened to at the replica that runs them and at
// another one.

// talkTool reports progress whose message is the time it was written at.
const (
	talkTool  = "talk"
	talkTools = `{"resultType":"complete","tools":[{"name":"talk","inputSchema":{"type":"object"}}],"ttlMs":60000,"cacheScope":"public"}`
)

// talkEvery is the pause between two events of a task, streamFor how long a scene
// lasts.
const (
	talkEvery = 100 * time.Millisecond
	streamFor = 6 * time.Second
)

// streamConfig is a replica with one server at two paths: every piece by itself, and
// batched as by default.
const streamConfig = `
listen: %s
store: redis://%s/0
log: {level: warn}
upstreams:
  - {name: each, path: /each, url: "http://%s/mcp", era: modern, partial_interval: 0, max_tasks_per_owner: 10000, defaults: {tasks: always}}
  - {name: batched, path: /batched, url: "http://%s/mcp", era: modern, max_tasks_per_owner: 10000, defaults: {tasks: always}}
`

// scene is one measurement: so many tasks, and where their listeners are.
type scene struct {
	name, path string
	tasks      int
	other      bool
}

// scenes are those of the requirements, with n = 1,000: a tenth of the tasks without
// batching, 1,000 events a second, and all of them with it, 10,000.
func scenes(n int) []scene {
	few := max(n/10, 1)
	return []scene{
		{"not batched, same replica", "/each", few, false},
		{"not batched, other replica", "/each", few, true},
		{"batched, same replica", "/batched", n, false},
		{"batched, other replica", "/batched", n, true},
	}
}

// measureStream runs the scenes and writes a table.
func measureStream(ctx context.Context, out io.Writer, taskgate string, tasks int) error {
	s := &stage{}
	defer s.close()
	replicas, err := s.streamStage(ctx, taskgate)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nPartial results, from the server's write to the client's read\n\n%-28s %6s %9s %7s %7s %9s %9s %9s  %s\n",
		"", "tasks", "events/s", "events", "missed", "p50", "p99", "max", "CPU per event: Redis, server, runner, other, client")
	for _, sc := range scenes(tasks) {
		listenAt := replicas[0]
		if sc.other {
			listenAt = replicas[1]
		}
		took, used, err := sc.run(ctx, replicas[0]+sc.path, listenAt+sc.path, s.cpus)
		if err != nil {
			return fmt.Errorf("%s: %w", sc.name, err)
		}
		expected := sc.tasks * int(streamFor/talkEvery)
		slices.Sort(took)
		at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(10 * time.Microsecond) }
		fmt.Fprintf(out, "%-28s %6d %9d %7d %7d %9s %9s %9s  %s\n", sc.name, sc.tasks, sc.tasks*int(time.Second/talkEvery), len(took), expected-len(took), at(0.5), at(0.99), at(1), each(used, len(took)))
	}
	return nil
}

// streamStage starts a Redis, the talking server and two replicas, and returns the
// URLs of these.
func (s *stage) streamStage(ctx context.Context, taskgate string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "taskgate-bench"); err != nil {
		return nil, err
	}
	var other string
	for _, addr := range []*string{&s.redis, &s.upstream, &s.gateway, &other} {
		if *addr, err = proc.FreeAddr(); err != nil {
			return nil, err
		}
	}
	parties := []party{s.redisParty(), {s.upstream, self, []string{"-as", "talk", "-listen", s.upstream}}}
	for i, addr := range []string{s.gateway, other} {
		file := filepath.Join(s.dir, fmt.Sprintf("replica%d.yaml", i))
		if err := os.WriteFile(file, fmt.Appendf(nil, streamConfig, addr, s.redis, s.upstream, s.upstream), 0o600); err != nil {
			return nil, err
		}
		parties = append(parties, party{addr, taskgate, []string{"serve", "--config", file}})
	}
	return []string{"http://" + s.gateway, "http://" + other}, s.run(ctx, parties)
}

// cpus is what the parties of the stage, in the order of their start, and this process
// have used of the processors.
func (s *stage) cpus() ([]time.Duration, error) {
	var all []time.Duration
	for _, p := range s.processes {
		used, err := cpuOf(p.PID())
		if err != nil {
			return nil, err
		}
		all = append(all, used)
	}
	own, err := cpuOf(os.Getpid())
	return append(all, own), err
}

// each is what an event cost, party by party, and all together.
func each(used []time.Duration, events int) string {
	var b strings.Builder
	var sum time.Duration
	for _, d := range used {
		sum += d
		fmt.Fprintf(&b, "%s + ", (d / time.Duration(events)).Round(time.Microsecond))
	}
	return strings.TrimSuffix(b.String(), "+ ") + "= " + (sum / time.Duration(events)).Round(time.Microsecond).String()
}

// run makes the tasks at one replica, listens at the other, and returns how long each
// event took, and what the parties used of the processors from the first event on.
func (sc scene) run(ctx context.Context, callAt, listenAt string, cpus func() ([]time.Duration, error)) (all, used []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*streamFor)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: sc.tasks}
	defer transport.CloseIdleConnections()
	httpClient := &http.Client{Transport: transport}
	var mu sync.Mutex
	var failures []error
	var running sync.WaitGroup
	begin := time.Now().Add(time.Second + time.Duration(sc.tasks)*3*time.Millisecond)
	for i := range sc.tasks {
		running.Go(func() {
			// Spread over one pause, so that the tasks do not speak at once.
			at := begin.Add(talkEvery * time.Duration(i) / time.Duration(sc.tasks))
			took, err := listenTo(ctx, httpClient, callAt, listenAt, at)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			if err != nil {
				failures = append(failures, err)
			}
		})
	}
	before, err := usedAt(ctx, begin, cpus)
	running.Wait()
	if len(failures) > 0 || len(all) == 0 {
		return nil, nil, fmt.Errorf("%d of %d tasks: %w", len(failures), sc.tasks, errors.Join(failures[:min(3, len(failures))]...))
	}
	if err != nil {
		return nil, nil, err
	}
	if used, err = cpus(); err != nil {
		return nil, nil, err
	}
	for i := range used {
		used[i] -= before[i]
	}
	return all, used, nil
}

// usedAt is what the parties have used when a time has come.
func usedAt(ctx context.Context, at time.Time, cpus func() ([]time.Duration, error)) ([]time.Duration, error) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return cpus()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// listenTo makes one task that begins to talk at the given time, and hears it out.
func listenTo(ctx context.Context, httpClient *http.Client, callAt, listenAt string, begin time.Time) ([]time.Duration, error) {
	caller := &taskclient.Client{URL: callAt, HTTP: httpClient, Tasks: true, Partials: true}
	_, task, err := caller.CallTool(ctx, talkTool, map[string]any{"begin": begin.UnixNano()})
	if err != nil {
		return nil, err
	}
	if task == nil {
		return nil, errors.New("no task was made")
	}
	var took []time.Duration
	listener := &taskclient.Client{URL: listenAt, HTTP: httpClient, Tasks: true, Partials: true}
	listener.Trace = func(m taskclient.Message) {
		if m.Sent || !bytes.Contains(m.Body, []byte(mcp.NotifyTaskPartial)) {
			return
		}
		now := time.Now()
		for rest := m.Body; ; {
			_, after, ok := bytes.Cut(rest, []byte(`"text":"`))
			if !ok {
				return
			}
			text, more, _ := bytes.Cut(after, []byte(`"`))
			if nanos, err := strconv.ParseInt(string(text), 10, 64); err == nil {
				took = append(took, now.Sub(time.Unix(0, nanos)))
			}
			rest = more
		}
	}
	err = listener.Listen(ctx, task.ID)
	return took, err
}

// talk is an MCP server whose tool reports the time, again and again.
func talk(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Arguments struct{ Begin int64 }
			Meta      struct{ ProgressToken json.RawMessage } `json:"_meta"`
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch m.Method {
	case mcp.MethodDiscover:
		answer(w, m.ID, discoverResult)
	case mcp.MethodToolsList:
		answer(w, m.ID, talkTools)
	case mcp.MethodToolsCall:
		w.Header().Set("Content-Type", mcp.TypeSSE)
		_ = http.NewResponseController(w).Flush()
		begin := time.NewTimer(time.Until(time.Unix(0, m.Params.Arguments.Begin)))
		defer begin.Stop()
		select {
		case <-begin.C:
		case <-r.Context().Done():
			return
		}
		talkOn(w, r, m.ID, m.Params.Meta.ProgressToken)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// talkOn sends the events and the answer.
func talkOn(w http.ResponseWriter, r *http.Request, id, token json.RawMessage) {
	pause := time.NewTicker(talkEvery)
	defer pause.Stop()
	for i := range int(streamFor / talkEvery) {
		_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":{\"progressToken\":%s,\"progress\":%d,\"message\":\"%d\"}}\n\n",
			mcp.NotifyProgress, token, i+1, time.Now().UnixNano()) // a peer that is gone ends the request's context
		_ = http.NewResponseController(w).Flush()
		select {
		case <-pause.C:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id, callResult)
}

package agents

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

// longestOutage is how long Redis is away at most.
const longestOutage = 20 * time.Second

// fault is what goes wrong while clients wait for their tasks.
type fault struct {
	name   string
	config string // lines of the upstream in the configuration
	redis  func(t *testing.T) (url string, master *redistest.Server)
	harm   func(w *world, round int)
}

var faults = []fault{
	{name: "Redis is stopped", redis: alone, harm: func(w *world, round int) {
		w.redis.Stop()
		pause(outageOf(round))
		w.redis.Restart()
	}},
	{name: "Redis freezes", redis: alone, harm: func(w *world, round int) {
		w.redis.Freeze()
		pause(outageOf(round))
		w.redis.Thaw()
	}},
	{name: "Redis fails over", redis: watched, harm: func(w *world, round int) {
		if round%2 == 0 {
			w.redis.Kill()
			return
		}
		w.redis.Freeze() // a master that is replaced, and comes back
		pause(longestOutage)
		w.redis.Thaw()
	}},
	{name: "a replica is killed", redis: alone, config: "    defaults: {recover: retry}", harm: func(w *world, round int) {
		pause(rand.N(time.Second)) // the first polls of all clients come at once: those on their way break
		w.gateways[round%len(w.gateways)].Kill()
	}},
}

func pause(d time.Duration) { <-time.After(d) }

// outageOf is 20 s in the first round, and 4 s in the fifth.
func outageOf(round int) time.Duration {
	return longestOutage * time.Duration(5-round%5) / 5
}

// alone is one Redis that keeps its data.
func alone(t *testing.T) (string, *redistest.Server) {
	s := redistest.Start(t, "--appendonly", "yes")
	return s.URL(), s
}

// watched is a Redis with a replica and a sentinel.
func watched(t *testing.T) (string, *redistest.Server) {
	master := redistest.Start(t)
	redistest.Replica(t, master.Addr)
	return redistest.Sentinel(t, master, 1).SentinelURL(), master
}

// together is how many tasks of each client meet one fault together.
const together = 10

// TestOutages has clients wait for their tasks while Redis is away for up to 20 s, or one of
// two replicas is killed: each gets its result. "make outages" has 50 tasks of each client meet
// each fault.
func TestOutages(t *testing.T) {
	programtest.Long(t)
	needInstalled(t, programtest.NodeDir(t), "the TypeScript SDK")
	if _, err := exec.LookPath("haproxy"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	for _, f := range faults {
		for round, left := 0, *tries; left > 0; round, left = round+1, left-together {
			t.Run(fmt.Sprintf("%s/%d", f.name, round), func(t *testing.T) {
				t.Parallel()
				f.run(t, round, min(left, together))
			})
		}
	}
}

// run has so many tasks of each client meet the fault. Some end during it, and some after it.
func (f fault) run(t *testing.T, round, count int) {
	m := &meeting{world: newWorld(t, row{config: f.config, replicas: 2, store: f.redis}), ready: make(chan struct{}, 10*count)}
	m.balancer = balance(t, m.gateways)
	for i := range count {
		m.calls = append(m.calls, Call{"try_outlast", object{"seconds": 2 + 23*i/max(count-1, 1)}})
	}
	var clients sync.WaitGroup
	total := 0
	for _, peer := range []string{"sdk", "legacy", "modern"} {
		total += count
		clients.Go(func() { m.runNode(t, peer) })
	}
	if *all {
		total += count
		for _, call := range m.calls {
			clients.Go(func() { m.runClaude(t, call) })
		}
	}
	m.awaitReady(t, total)
	close(m.harmed)
	f.harm(m.world, round)
	clients.Wait()
	t.Logf("%d tasks met the fault", total)
}

// meeting is some clients that wait for their tasks together.
type meeting struct {
	*world
	balancer string // its address
	calls    []Call
	ready    chan struct{} // gets one for each client that has its task
}

// awaitReady waits until so many clients have their tasks.
func (m *meeting) awaitReady(t *testing.T, total int) {
	t.Helper()
	limit := time.After(patience)
	for n := range total {
		select {
		case <-m.ready:
		case <-limit:
			t.Errorf("%d of %d clients have their tasks after %s", n, total, patience)
			return
		}
	}
}

// runClaude has Claude Code make a call, and checks what its model is shown.
func (m *meeting) runClaude(t *testing.T, call Call) {
	w := &world{trials: m.trials, wire: newWire(m.balancer)}
	results := w.run(t, agents[0], []Call{call}, func(t *testing.T, w *world) {
		w.awaitTask(t)
		m.ready <- struct{}{}
	}, 2*patience)
	if len(results) != 1 || !strings.Contains(results[0].Text, worked) {
		t.Errorf("Claude Code has lost its task: %+v", results)
	}
}

// ofReplicas are the lines of the balancer's configuration that name the replicas of the compose file.
var ofReplicas = regexp.MustCompile(`(?m)^( *(option httpchk|http-check|default-server|server) .*|resolvers names\n.*)\n`)

// balance starts HAProxy before the gateways, as the compose file has it. It keeps both in, as they say nothing of the store.
func balance(t *testing.T, gateways []*gateway) (addr string) {
	t.Helper()
	shipped, err := os.ReadFile("../../deploy/compose/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	addr = programtest.FreeAddr(t)
	config := strings.Replace(ofReplicas.ReplaceAllString(string(shipped), ""), "bind :8080", "bind "+addr, 1)
	for i, g := range gateways {
		config += fmt.Sprintf("    server g%d %s\n", i, g.addr)
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	programtest.Start(t, proc.Command{Name: "haproxy", Path: "haproxy", Args: []string{"-db", "-f", file}}, 0, addr)
	return addr
}

// runNode has a script make all calls at once, each in a session of its own, and checks the
// results.
func (m *meeting) runNode(t *testing.T, peer string) {
	script, err := os.Open(filepath.Join("testdata", "tasks.mjs"))
	if err != nil {
		t.Error(err)
		return
	}
	defer script.Close()
	calls := make([]object, len(m.calls))
	for i, c := range m.calls {
		calls[i] = object{"name": c.Tool, "arguments": c.Args}
	}
	lines, out := io.Pipe()
	p, err := proc.Start(proc.Command{
		Name: peer, Path: node(t), Args: []string{"--input-type=module", "-"}, Dir: programtest.NodeDir(t), Stdin: script, Stdout: out,
		Env: []string{"PEER=" + peer, "URL=http://" + m.balancer + "/mcp", "CALLS=" + encode(calls)},
	})
	if err != nil {
		t.Error(err)
		return
	}
	defer p.Kill()
	go func() {
		<-p.Done()
		out.Close()
	}()
	ends := 0
	for scan := bufio.NewScanner(lines); scan.Scan(); {
		var line struct{ Task, End string }
		switch {
		case json.Unmarshal(scan.Bytes(), &line) != nil: // a warning of Node
		case line.Task != "":
			m.ready <- struct{}{}
		default:
			ends++
			if !strings.Contains(line.End, worked) {
				t.Errorf("%s has lost its task: %s", peer, line.End)
			}
		}
	}
	if ends != len(calls) {
		t.Errorf("%s: %d of %d calls have ended: %s", peer, ends, len(calls), p.Output())
	}
}

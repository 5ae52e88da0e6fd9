package chaos

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/redistest"
)

// fleetConfig is the configuration of every gateway.
const fleetConfig = `
listen: %s
store: %s
heartbeat: %s
drain_timeout: %s
wait_replicas: %d
resume_after: %s
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
log: {level: debug}
%supstreams:
`

// token is the key of all clients but those that flood, and authConfig the configuration
// that knows it.
const token = "key-of-the-chaos-suite"

var authConfig = fmt.Sprintf("auth: {keys: [chaos:%x]}\n", sha256.Sum256([]byte(token)))

// mostTasks is max_tasks_per_owner where nobody floods.
const mostTasks = 1_000_000

// upstreamConfig is the configuration of one upstream: its name, path and address, and how
// many tasks a principal may have, how many calls it takes at a time and how long its questions wait.
const upstreamConfig = `
  - name: %s
    path: %s
    url: %s
    max_tasks_per_owner: %d
    concurrency: %d
    defaults: {tasks: auto, grace: 300ms, poll_interval: 200ms, input_timeout: %s}
    tools:
      - {match: "auto_retry", recover: retry}
      - {match: "always_retry", tasks: always, recover: retry}
      - {match: "always_content", tasks: always, progress: content}
      - {match: "always_*", tasks: always}
      - {match: "auto_mrtr", early_input: mrtr}
`

// startTimeout is how long a gateway may take to listen; one on a busy machine,
// built with the race detector, takes its time.
const startTimeout = 30 * time.Second

// leaveTimeout is drain_timeout where gateways are to leave tasks behind.
const leaveTimeout = time.Second

// startsIn is how long a gateway takes to start on a machine that is not busy.
const startsIn = 300 * time.Millisecond

// slowness is how many times longer than that a gateway takes to start now, 1 at least.
// What goes wrong comes more slowly by that: else a busy machine would never have a
// gateway and a Redis up at the same time.
func (f *fleet) slowness() float64 { return max(1, float64(f.started.Load())/float64(startsIn)) }

// patience is how long a question may stay open after its time, as long as things go wrong:
// longer where the gateways that are to end it take long to start, or cannot store its end.
func (f *fleet) patience() time.Duration {
	return f.settings.away + time.Duration(float64(attention)*min(3, max(1, float64(f.slowest.Load())/float64(startsIn))))
}

// node is the place of one gateway, which several processes fill one after the
// other, each at an address of its own.
type node struct {
	fleet *fleet
	name  string
	store string // the URL of its store

	busy sync.Mutex // held by whoever does something to it

	mu      sync.Mutex
	addr    string
	admin   string // where there are probes, "" for none
	process *proc.Process
	starts  int
}

// settings are what scenarios configure differently.
type settings struct {
	replicas  int           // wait_replicas
	heartbeat time.Duration // short, so that a run sees many takeovers, where replicas die
	rounds    string        // the address of the modern upstream, "" for none
	principal bool          // clients have to say who they are
	floods    bool          // one of them floods (flood_test.go)
	// resumeAfter is how long a stream lasts before it can be resumed; 0 is the default.
	resumeAfter time.Duration
	places      int           // for calls to one upstream on one gateway; 0 for any number
	away        time.Duration // how long the store may be away, with moments between
}

// fleet is all gateways.
type fleet struct {
	t        *testing.T
	dir      string
	upstream string
	settings settings
	judge    *judge
	nodes    []*node
	front    string // the address of a balancer before them, "" for none
	// store is the Redis that has the tasks, when nothing goes wrong; or they are in a folder.
	store  func() *redistest.Server
	folder string
	// started is how long the last gateway took to start, slowest the longest that one has
	// taken, in nanoseconds.
	started, slowest atomic.Int64
}

// newFleet starts a gateway for each URL of a store. They end with the test.
func newFleet(t *testing.T, j *judge, upstream string, s settings, store func() *redistest.Server, stores ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), upstream: upstream, settings: s, judge: j, store: store}
	for i, store := range stores {
		n := &node{fleet: f, name: fmt.Sprintf("gateway-%d", i), store: store}
		f.nodes = append(f.nodes, n)
		t.Cleanup(n.kill)
		if err := n.start(); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// only is a store that stays the same.
func only(s *redistest.Server) func() *redistest.Server {
	return func() *redistest.Server { return s }
}

// any is the address at which a client asks: that of the balancer, else that of one of the
// gateways, whatever has become of it.
func (f *fleet) any(r *rand.Rand) string {
	if f.front != "" {
		return f.front
	}
	return pick(r, f.nodes).address()
}

func (n *node) address() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addr
}

// start runs a new process.
func (n *node) start() error {
	var err error
	for range 3 { // somebody else may take the address that was free
		if err = n.startOnce(); err == nil {
			return nil
		}
	}
	return err
}

func (n *node) startOnce() error {
	addr, err := proc.FreeAddr()
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.starts++
	title, path := fmt.Sprintf("%s-%d", n.name, n.starts), gatewayProgram()
	if *before != "" && (n.starts+int(n.name[len(n.name)-1]))%2 == 0 {
		path = *before
	}
	n.mu.Unlock()
	file := filepath.Join(n.fleet.dir, n.name+".yaml")
	config, admin, err := n.config(addr)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	command := proc.Command{Name: title, Path: path, Args: []string{"serve", "--config", file}}
	if *logs != "" {
		out, err := os.Create(filepath.Join(*logs, title+".log"))
		if err != nil {
			return err
		}
		n.fleet.t.Cleanup(func() { out.Close() })
		command.Stderr = out
	}
	begin := time.Now()
	p, err := startProcess(command, addr)
	if err != nil {
		return err
	}
	took := int64(time.Since(begin))
	n.fleet.started.Store(took)
	for most := n.fleet.slowest.Load(); took > most && !n.fleet.slowest.CompareAndSwap(most, took); most = n.fleet.slowest.Load() {
		continue
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addr, n.admin, n.process = addr, admin, p
	return nil
}

// startProcess starts a process, and waits until it listens.
func startProcess(command proc.Command, addr string) (*proc.Process, error) {
	p, err := proc.Start(command)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := p.WaitListening(ctx, addr); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// config is the configuration of a process that serves at this address, and where it is
// asked whether it is ready.
func (n *node) config(addr string) (config, admin string, err error) {
	s := n.fleet.settings
	drain, tasks, more := leaveTimeout, mostTasks, ""
	switch {
	case s.floods:
		if admin, err = proc.FreeAddr(); err != nil {
			return "", "", err
		}
		drain, tasks, more = floodDrain, floodTasks, fmt.Sprintf(floodConfig, admin)
	case s.principal:
		more = authConfig
	}
	config = fmt.Sprintf(fleetConfig, addr, n.store, s.heartbeat, drain, s.replicas, cmp.Or(s.resumeAfter, 5*time.Second), more)
	config += fmt.Sprintf(upstreamConfig, "chaos", pathChaos, n.fleet.upstream, tasks, s.places, inputTimeout)
	if s.rounds != "" {
		config += fmt.Sprintf(upstreamConfig, "rounds", pathRounds, s.rounds, tasks, s.places, inputTimeout)
	}
	return config, admin, nil
}

// place is the process that fills it, with its address.
func (n *node) place() (string, *proc.Process) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addr, n.process
}

// running are the nodes whose process has not ended.
func (f *fleet) running() []*node {
	return slices.DeleteFunc(slices.Clone(f.nodes), func(n *node) bool { return !n.up(n.current()) })
}

// up reports whether a process is the node's still, and has not ended.
func (n *node) up(p *proc.Process) bool {
	select {
	case <-p.Done():
		return false
	default:
		return p == n.current()
	}
}

func (n *node) current() *proc.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

// kill ends the process as a crash does.
func (n *node) kill() {
	if p := n.current(); p != nil {
		p.Kill()
		n.inspect(p)
	}
}

// stop ends the process as an operator does. It has to end by itself.
func (n *node) stop() {
	p := n.current()
	_ = p.Signal(syscall.SIGTERM) // one that has ended already is noticed below
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C:
		n.fleet.judge.blame("%s did not end on SIGTERM", p.Name)
	}
	p.Kill()
	n.inspect(p)
}

// inspect looks at what a process that has ended left behind.
func (n *node) inspect(p *proc.Process) {
	out := p.Output()
	for _, sign := range []string{"DATA RACE", "panic:", "fatal error:"} {
		if i := strings.Index(out, sign); i >= 0 {
			n.fleet.judge.blame("%s: %.3000s", p.Name, out[i:])
		}
	}
}

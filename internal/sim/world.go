package sim

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"taskgate/internal/disktest"
)

// Dial connects to an address.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Place is where a replica runs.
type Place struct {
	Config     func() string // the file of its configuration, as it is now
	Log        io.Writer
	Listener   net.Listener
	DialServer Dial
	DialStore  Dial
	Folder     *disktest.Folder // of the store; nil where that is a Redis
}

// Process is a replica that was started.
type Process interface {
	// Serve serves until ctx ends, then drains, and returns when everything is closed.
	Serve(ctx context.Context) error
	// Held returns how many bytes of requests and answers it holds.
	Held() int64
}

// Program starts a replica. An error ends the simulation.
type Program func(ctx context.Context, p Place) (Process, error)

// Options say what is simulated.
type Options struct {
	Seed  uint64
	Calls int
	// Log takes what the replicas log; nil discards it.
	Log io.Writer
	// Calm leaves out the faults.
	Calm bool
	// Folder has one replica, with its store in a folder, in place of three with a Redis.
	Folder bool
}

// World is a deployment with its clients.
type World struct {
	Judge *Judge

	opts    Options
	program Program
	net     *Network
	redis   *Redis
	disk    *disktest.Folder // of the store; nil where that is a Redis
	legacy  *legacyServer
	started int

	mu       sync.Mutex
	replicas map[string]*replica
	config   string
	ended    sync.WaitGroup // what replicas do after they were killed
	failed   error
}

// replica is a process on a host of its own.
type replica struct {
	name    string
	process Process
	stop    context.CancelFunc
	done    chan struct{}
}

// Report is what came out of a simulation.
type Report struct {
	Verdicts []Verdict
	Ends     string        // how calls ended
	Jobs     int           // of servers, that replicas asked for
	HandedOn int           // jobs that more than one replica asked for
	Took     time.Duration // in virtual time
}

// replicas is how many replicas there are.
const replicas = 3

// Nothing is done for a time before the judge looks what is left: longer than the time to live of a task or, for each
// tenth seed, than that of a session with a server.
const (
	rest     = 12 * time.Minute
	longRest = 70 * time.Minute
)

// Run simulates a deployment. It runs in a synctest bubble.
func Run(o Options, p Program) (Report, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	n := NewNetwork(o.Seed)
	w := &World{Judge: newJudge(), opts: o, program: p, net: n, redis: startRedis(n, o.Seed), replicas: map[string]*replica{}}
	w.legacy = newLegacyServer(w.Judge)
	w.setConfig(w.configWith("1s"))
	servers := []*http.Server{
		{Handler: w.legacy, ConnContext: knowPeer},
		{Handler: &modernServer{w.Judge, newOwnTasks(w.Judge, modernHost), newJobs(w.Judge, modernHost)}, ConnContext: knowPeer},
	}
	for i, host := range []string{legacyHost, modernHost} {
		l := n.Listen(host)
		go func() { _ = servers[i].Serve(l) }() // it ends by Close
	}
	begun := time.Now()
	if o.Folder {
		w.disk = disktest.NewFolder()
		w.start()
	} else {
		for range replicas {
			w.start()
		}
	}
	<-time.After(time.Minute)
	before := w.countLeft()
	stop := make(chan struct{})
	var faults sync.WaitGroup
	if !o.Calm {
		faults.Go(func() { w.breakThings(stop) })
	}
	w.makeCalls()
	close(stop)
	faults.Wait()
	if len(w.Judge.Verdicts()) == 0 {
		<-time.After(w.rest())
		w.judgeRest(before)
	}
	took := time.Since(begun)
	for _, name := range w.names() {
		w.kill(name, false)
	}
	w.ended.Wait()
	for _, s := range servers {
		_ = s.Close()
	}
	n.Close()
	w.redis.Close()
	<-time.After(time.Minute) // clients of Redis try again for a while
	report := Report{Verdicts: w.Judge.Verdicts(), Ends: w.Judge.Ends(), Took: took}
	report.Jobs, report.HandedOn = w.Judge.CountJobs()
	return report, w.failed
}

func (w *World) rest() time.Duration {
	if w.opts.Seed%10 == 0 {
		return longRest
	}
	return rest
}

// start starts a replica on a new host.
func (w *World) start() {
	w.mu.Lock()
	w.started++
	name := fmt.Sprintf("r%d", w.started)
	w.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	process, err := w.program(ctx, Place{
		Config: func() string { w.mu.Lock(); defer w.mu.Unlock(); return w.config },
		Log:    &prefixed{w: w.opts.Log, name: name},
		DialServer: func(ctx context.Context, _, address string) (net.Conn, error) {
			return w.net.Dial(ctx, name, serverAt(address))
		},
		DialStore: func(context.Context, string, string) (net.Conn, error) { return w.net.Connect(name, redisHost) },
		Listener:  w.net.Listen(name),
		Folder:    w.disk,
	})
	if err != nil {
		stop()
		w.mu.Lock()
		w.failed = err
		w.mu.Unlock()
		return
	}
	r := &replica{name: name, process: process, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		_ = process.Serve(ctx) // a killed replica fails
	}()
	w.mu.Lock()
	w.replicas[name] = r
	w.mu.Unlock()
	w.Judge.Note(name, "starts")
}

// serverAt is the host with an address that the configuration has.
func serverAt(address string) string {
	if strings.HasPrefix(address, "127.0.1.1:") {
		return legacyHost
	}
	return modernHost
}

// kill ends a replica as kill -9 does, or with silent as a power cut. What it still does reaches nobody.
func (w *World) kill(name string, silent bool) {
	r := w.take(name)
	if w.disk != nil {
		w.disk.CutPower(0)
	}
	w.net.Kill(name, silent)
	r.stop()
	w.ended.Go(func() { <-r.done })
}

// drain ends a replica as SIGTERM does.
func (w *World) drain(name string) {
	r := w.take(name)
	r.stop()
	<-r.done
	w.net.Kill(name, false)
}

// take takes a replica out of those that clients ask.
func (w *World) take(name string) *replica {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.replicas[name]
	delete(w.replicas, name)
	return r
}

// names lists the replicas.
func (w *World) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.replicas))
}

// pick chooses a replica.
func (w *World) pick(r *rand.Rand) string {
	all := w.names()
	if len(all) == 0 {
		return "r0"
	}
	return all[r.IntN(len(all))]
}

func (w *World) setConfig(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.config = text
}

// makeCalls makes all calls, or those until the first broken promise, and returns when their clients have ended.
func (w *World) makeCalls() {
	r := rand.New(rand.NewPCG(w.opts.Seed, 1))
	var clients sync.WaitGroup
	for i := range w.opts.Calls {
		if len(w.Judge.Verdicts()) > 0 {
			break
		}
		<-time.After(time.Duration(r.IntN(600)) * time.Millisecond)
		own := rand.New(rand.NewPCG(w.opts.Seed, uint64(i)+10))
		clients.Go(func() { w.makeCall(i, kinds, own) })
		if i%jobEach == 0 {
			clients.Go(func() { w.makeCall(firstJob+i, jobKinds, rand.New(rand.NewPCG(w.opts.Seed, uint64(firstJob+i)))) })
		}
	}
	clients.Wait()
}

// left is what a deployment has at rest.
type left struct {
	goroutines map[string]int // of the product, by what began them
	keys       map[string]int // in the store, by kind
	bytes      int64          // in the budgets
	conns      int            // of clients
	sessions   int            // at the server
}

// countLeft counts once nothing runs at this instant any more: the dump of a goroutine that runs may be cut.
func (w *World) countLeft() left {
	synctest.Wait()
	l := left{goroutines: countGoroutines(stacks()), keys: map[string]int{}, conns: w.net.Count(clientHost), sessions: w.legacy.Sessions()}
	for _, key := range w.redis.Snapshot().Keys() {
		l.keys[kindOf(key)]++
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.replicas {
		l.bytes += r.process.Held()
	}
	return l
}

// kindOf is the key without what names one task, session or replica.
func kindOf(key string) string {
	return digits.ReplaceAllString(braces.ReplaceAllString(key, "*"), "N")
}

// judgeRest holds what is left against what was there before the first call.
func (w *World) judgeRest(before left) {
	after := w.countLeft()
	for by, n := range after.goroutines {
		if n > before.goroutines[by]+replicas {
			w.Judge.Blame("%d goroutines that were %s are left, and %d were there before the first call", n, by, before.goroutines[by])
		}
	}
	if after.bytes != 0 {
		w.Judge.Blame("%d bytes of requests and answers are still held", after.bytes)
	}
	if after.conns != 0 {
		w.Judge.Blame("%d connections of clients are left", after.conns)
	}
	if after.sessions != 0 && w.rest() == longRest && w.opts.Calm {
		w.Judge.Blame("%d sessions are open at the server", after.sessions)
	}
	for kind, n := range after.keys {
		if w.Judge.hasForgotten() {
			break // what a client had ended may have come back
		}
		if untilIdle[kind] && w.rest() < longRest {
			continue
		}
		if n > before.keys[kind]+lasting[kind] {
			w.Judge.Blame("%d keys %s are left in the store", n, kind)
		}
	}
}

// lasting has the kinds of keys that outlive calls, and how many there may be: the sets of tasks are swept in turns, and
// the numbers of requests go on for ever. untilIdle are the sessions with a server that only a killed replica knew, which
// the others end when they have been idle for an hour, and the sets of changed sessions, which last as long as a rest.
var (
	lasting   = map[string]int{"tg:epoch": 1, "tg:numbers": 1, "tg:*:o": 1 << 10, "tg:*:all:": 16}
	untilIdle = map[string]bool{"tg:*:u:legacy:N": true, "tg:due:legacy": true, "tg:*:ch:": true}
)

// stacks returns all goroutines.
func stacks() string {
	b := make([]byte, 4<<20)
	return string(b[:runtime.Stack(b, true)])
}

// origin finds what began a goroutine.
var origin = regexp.MustCompile(`created by (\S+) in`)

// countGoroutines counts those of a dump that the simulator and the store have not begun.
func countGoroutines(dump string) map[string]int {
	counts := map[string]int{}
	for g := range strings.SplitSeq(dump, "\n\n") {
		by := origin.FindStringSubmatch(g)
		switch {
		case by == nil, !strings.Contains(g, "synctest bubble"):
		case strings.Contains(by[1], "/redis"), strings.Contains(by[1], "miniredis"), strings.Contains(by[1], "internal/"):
		default:
			counts["begun by "+by[1]]++
		}
	}
	return counts
}

// prefixed writes lines behind the name of their replica.
type prefixed struct {
	w    io.Writer
	name string
}

// Write implements io.Writer.
func (p *prefixed) Write(b []byte) (int, error) {
	_, err := fmt.Fprintf(p.w, "%s %s", p.name, b)
	return len(b), err
}

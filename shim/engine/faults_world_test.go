package engine_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// period is how long whoever waits may trust the silence of the store: nothing that
// goes wrong once holds anything up for longer, beyond what that took itself.
const period = 30 * time.Second

// settleFor is for how long a replica has ends written again that the store forgets.
const settleFor = 6 * time.Second

// slack is what repeats, heartbeats and adoptions take besides.
const slack = 10 * time.Second

// faultWorld is a Redis in the process with replicas over it, of which each has
// connections of its own, and one fault that is to happen.
type faultWorld struct {
	*testing.T
	*faults
	ctx      context.Context
	replicas []*replica
	clients  sync.WaitGroup
	server   *server
	breaks   atomic.Bool // a replica is lost, or stops, besides the fault
	until    time.Time   // when everything that is waited for must have happened
	base     time.Duration
	// unknown is how much longer a task may run that the store has forgotten whole: what
	// it waits for of its client cannot come.
	unknown time.Duration

	mu   sync.Mutex
	told map[shim.ID]shim.Status // ends that clients know
}

// replica is a Shim with what belongs to its process.
type replica struct {
	*engine.Shim
	name  string
	store *redisstore.Store
	link  *link
	stop  func() // ends its loops
	fault *faultStore
	gone  atomic.Bool
}

// link is the network between a replica and its Redis.
type link struct {
	memory *redistest.Memory
	mu     sync.Mutex
	cut    bool
	conns  []net.Conn
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func (l *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errRefused
	}
	c, err := l.memory.Dial(ctx, network, addr)
	if err == nil {
		l.conns = append(l.conns, c)
	}
	return c, err
}

// set cuts the link, or mends it.
func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// runFaults runs a scenario in a bubble, with one fault. base is how long it takes
// without one, 0 where that is to be found out.
func runFaults(t *testing.T, s scenario, f *faults, base time.Duration) *faultWorld {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	f.memory, f.over = redistest.NewMemory(), ctx
	f.away, f.owed = map[shim.Replica]time.Time{}, map[shim.Replica][]shim.Task{}
	w := &faultWorld{T: t, faults: f, ctx: ctx, base: base, until: time.Now().Add(time.Minute), told: map[shim.ID]shim.Status{}}
	defer func() {
		f.end()
		stop()
		w.clients.Wait()
		f.busy.Wait()
		for _, r := range w.replicas {
			w.close(r)
		}
		f.memory.Close()
		<-time.After(2 * time.Second) // go-redis looks once a second whether it still has to dial
		if t.Failed() {
			t.Logf("hit: %s", f.what())
			if testing.Verbose() {
				t.Log(f.spell())
			}
		}
	}()
	s.run(w)
	return w
}

// replica starts one that serves an upstream.
func (w *faultWorld) replica(name string, u shim.Upstream, p shim.Policy) *replica {
	w.Helper()
	r := &replica{name: name, link: &link{memory: w.memory}}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	var err error
	r.store, err = redisstore.Open(w.ctx, "redis://memory:6379", redisstore.Options{Dialer: r.link.dial, Logger: quiet, PoolSize: 8})
	if err != nil {
		w.Fatal(err)
	}
	r.fault = &faultStore{Store: r.store, faults: w.faults, replica: shim.Replica(name)}
	r.Shim, err = engine.New(engine.Options{
		Replica: shim.Replica(name), Heartbeat: 5 * time.Second, Settle: settleFor, Logger: quiet,
		Store:   r.fault,
		Servers: map[string]shim.Server{"up": {Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return p }}},
	})
	if err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { _ = r.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		stop()
		loops.Wait()
	})
	w.replicas = append(w.replicas, r)
	return r
}

// close ends a replica in good order.
func (w *faultWorld) close(r *replica) {
	r.stop()
	if !r.gone.Load() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := r.Close(ctx); err != nil {
			w.Errorf("close %s: %v", r.name, err)
		}
	}
	_ = r.store.Close()
}

// dies ends a replica as the loss of its process does: nobody hears of it.
func (w *faultWorld) dies(r *replica) {
	r.gone.Store(true)
	r.fault.dead.Store(true)
	r.link.set(true)
	r.stop()
	ctx, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	_ = r.Close(ctx)
}

// begin has the scenario begin: replicas have beaten for as long as they must to adopt.
func (w *faultWorld) begin() {
	pass(6 * time.Second)
	limit := 10 * time.Minute
	if w.kind != noFault {
		own, _ := w.kind.lasts()
		limit = w.base + own + period + slack
	}
	w.until = time.Now().Add(limit)
	w.faults.begin()
}

// wait waits for something that must come about in time.
func (w *faultWorld) wait(what string, so func() bool) {
	w.Helper()
	for !so() {
		if time.Now().After(w.until) && w.forgets() {
			w.until, w.unknown = w.until.Add(w.unknown), 0
		}
		if time.Now().After(w.until) {
			w.Fatalf("stands still for longer than %v: %s", period, what)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// done ends the scenario: nothing goes wrong from now on, and what did has come to its end.
func (w *faultWorld) done() {
	if w.kind == noFault && !w.begun.IsZero() {
		w.base = time.Since(w.begun)
	}
	w.faults.end()
	_, echo := w.kind.lasts()
	rest := max(0, echo-time.Since(w.hit))
	if w.kind == later || w.kind == frozen {
		rest += period // until what came late has been found
	}
	if w.kind.back() {
		rest = settleFor
	}
	pass(rest + 3*time.Second)
}

// unsaved reports whether the store has forgotten a task whole while a replica ran it
// that is gone now: nobody is left who could write it again.
func (w *faultWorld) unsaved(id shim.ID) bool {
	by, forgotten := w.forgotten(id)
	for _, r := range w.replicas {
		if r.name == by && !r.gone.Load() {
			return false
		}
	}
	return forgotten
}

// mayFail reports whether a task may end as failed although its call would have succeeded:
// the call was never sent, or there were two mishaps, of which the first had the store
// forget the task, or where its call can be gone on with (docs/operations.md, "Failover").
func (w *faultWorld) mayFail(id shim.ID) bool {
	_, forgotten := w.forgotten(id)
	unsent := has(w.server, func(s *server) bool { return s.runs == 0 })
	return unsent || w.breaks.Load() && (forgotten || w.unmarked(id))
}

// patiently repeats what the store was not available for, as a client does.
func (w *faultWorld) patiently(do func() error) error {
	for {
		err := do()
		if !errors.Is(err, shim.ErrUnavailable) || w.ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-w.ctx.Done():
		}
	}
}

// tells notes what a client is told of a task. An end never changes: of a store that has
// gone back a client may hear an earlier state, but no other end.
func (w *faultWorld) tells(t shim.Task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.told[t.ID]
	switch {
	case was == "":
		if t.Status.Final() {
			w.told[t.ID] = t.Status
		}
	case was != t.Status && (t.Status.Final() || !w.kind.back()):
		w.Errorf("the task was told to be %s, and now is %s (%s)", was, t.Status, t.StatusMessage)
	}
}

// client runs part of a client.
func (w *faultWorld) client(do func()) (over func() bool) {
	ended := make(chan struct{})
	w.clients.Go(func() {
		defer close(ended)
		do()
	})
	return func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
}

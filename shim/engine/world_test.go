package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(1000) // each world is new and small, and each script makes a Lua state anew
	os.Exit(m.Run())
}

// world is one store with gateways over it, inside a synctest bubble.
type world struct {
	heartbeat time.Duration // of its gateways, 5 s by default
	t         *testing.T
	store     *faultyStore
	stops     []func()
}

// newWorld opens the embedded store on the bubble's clock.
func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, store: &faultyStore{Store: openEmbedded(t)}}
}

// gateway starts a Shim named name over the world's store.
func (w *world) gateway(name string, u shim.Upstream, p shim.Policy) *engine.Shim {
	w.t.Helper()
	return w.gatewayFor(name, shim.Server{Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return p }, Queue: 10, QueueWait: 5 * time.Second})
}

func (w *world) gatewayFor(name string, srv shim.Server) *engine.Shim {
	w.t.Helper()
	return w.gatewayOf(name, srv, nil)
}

func (w *world) gatewayOf(name string, srv shim.Server, change func(*engine.Options)) *engine.Shim {
	w.t.Helper()
	s := w.still(name, srv, change)
	stop := run(s)
	end := sync.OnceFunc(func() {
		stop()
		if err := s.Close(context.Background()); err != nil {
			w.t.Errorf("close %s: %v", name, err)
		}
	})
	w.stops = append(w.stops, end)
	return s
}

// serves is a server with one policy for all of its tools.
func serves(u shim.Upstream, p shim.Policy) shim.Server {
	return shim.Server{Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return p }}
}

// still is a replica whose loops do not run, and which a test closes itself. Creating a task is what
// makes the store know it.
func (w *world) still(name string, srv shim.Server, change func(*engine.Options)) *engine.Shim {
	w.t.Helper()
	o := engine.Options{
		Replica: shim.Replica(name), Store: w.store, Heartbeat: cmp.Or(w.heartbeat, 5*time.Second),
		Servers: map[string]shim.Server{"up": srv}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if change != nil {
		change(&o)
	}
	s, err := engine.New(o)
	must(w.t, err)
	return s
}

// run runs the loops of a replica until it is stopped.
func run(s *engine.Shim) (stop func()) {
	ctx, end := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { _ = s.Run(ctx) })
	return func() {
		end()
		loops.Wait()
	}
}

// close ends all gateways; the bubble then fails on any goroutine left.
func (w *world) close() {
	for _, stop := range w.stops {
		stop()
	}
}

// anyone is an anonymous caller.
var anyone = shim.Principal{}

// call is a tools/call of a client that can take a task.
func call() shim.Call {
	return shim.Call{
		Upstream: "up", Origin: "ext", Handle: true,
		Request: shim.Request{Method: "tools/call", Name: "slow", Params: json.RawMessage(`{"name":"slow","arguments":{"n":9007199254740993}}`)},
	}
}

// policy is the configuration's default, in short.
func policy(mode shim.Mode) shim.Policy {
	return shim.Policy{
		Tasks: mode, Grace: 5 * time.Second, TTL: time.Hour,
		PollInterval: time.Second, Timeout: 24 * time.Hour, FoldProgress: true,
		InputTimeout: 10 * time.Minute,
	}
}

// result is what the scripted upstream answers; its bytes must survive.
const result = `{"content":[{"type":"text","text":"\u003cdone"}],"n":9007199254740993,"f":1.0, "x-unknown":null}`

// scripted is an Upstream whose calls are functions.
type scripted struct {
	shim.Upstream // nothing else is asked of it

	call   func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error)
	resume func(ctx context.Context, r shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error)
	calls  atomic.Int64 // how often a call was begun
	// cause is that with which the context of the last call ended.
	mu    sync.Mutex
	cause error
}

// exchange is what a scripted upstream does with a request.
type exchange = func(context.Context, shim.Request, shim.Sink) (shim.Reply, error)

// sending says that the call is sent, and then does what follows.
func sending(then exchange) exchange {
	return func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
		if err := s.Checkpoint(json.RawMessage(`{"sent":true}`))(ctx); err != nil {
			return shim.Reply{}, err
		}
		return then(ctx, r, s)
	}
}

// takes answers with result after d, having said that the call was sent.
func takes(d time.Duration) *scripted {
	return &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		if err := s.Checkpoint(json.RawMessage(`{"sent":true}`))(ctx); err != nil {
			return shim.Reply{}, &shim.UpstreamError{Kind: "unreachable", Message: "not sent", Err: err, Unsent: true}
		}
		return after(ctx, d)
	}}
}

func after(ctx context.Context, d time.Duration) (shim.Reply, error) {
	select {
	case <-time.After(d):
		return shim.Reply{Result: json.RawMessage(result)}, nil
	case <-ctx.Done():
		return shim.Reply{}, context.Cause(ctx)
	}
}

func (u *scripted) Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
	u.calls.Add(1)
	defer u.note(ctx)
	return u.call(ctx, r, s)
}

func (u *scripted) Resume(ctx context.Context, r shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
	defer u.note(ctx)
	if u.resume == nil {
		return shim.Reply{}, shim.ErrNotResumable
	}
	return u.resume(ctx, r, cp, s)
}

// Resumable: as far as its script goes.
func (u *scripted) Resumable(json.RawMessage) bool { return u.resume != nil }

func (u *scripted) note(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cause = context.Cause(ctx)
}

func (u *scripted) ended() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.cause
}

// faultyStore is a Store whose operations can be made to fail, before or after
// they took place.
type faultyStore struct {
	shim.Store
	down    atomic.Bool  // every operation fails and does nothing
	deaf    atomic.Bool  // writes take place, and then fail
	stalled atomic.Bool  // creating and reading get no answer
	mute    atomic.Bool  // watchers hear nothing after the first Synced
	ops     atomic.Int64 // reads and writes of tasks
	appends atomic.Int64 // writes of batches
	reads   atomic.Int64 // reads of batches
	creates atomic.Int64
	// failover, once set, is what the tasks are read from and written to.
	failover atomic.Pointer[shim.Store]
}

func (f *faultyStore) current() shim.Store {
	if other := f.failover.Load(); other != nil {
		return *other
	}
	return f.Store
}

var errDown = errors.Join(shim.ErrUnavailable, errors.New("connection refused"))

func (f *faultyStore) Create(ctx context.Context, t shim.Task, b ...shim.Batch) (shim.Task, error) {
	f.ops.Add(1)
	f.creates.Add(1)
	if f.stalled.Load() {
		<-ctx.Done()
		return shim.Task{}, ctx.Err()
	}
	if f.down.Load() {
		return shim.Task{}, errDown
	}
	out, err := f.current().Create(ctx, t, b...)
	if f.deaf.Load() {
		return shim.Task{}, errDown
	}
	return out, err
}

func (f *faultyStore) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	f.ops.Add(1)
	if f.stalled.Load() {
		<-ctx.Done()
		return shim.Task{}, ctx.Err()
	}
	if f.down.Load() {
		return shim.Task{}, errDown
	}
	return f.current().Get(ctx, id, part)
}

func (f *faultyStore) Apply(ctx context.Context, id shim.ID, l *shim.Lease, c shim.Change) (shim.Task, error) {
	if c.Tail != nil {
		f.appends.Add(1)
	} else {
		f.ops.Add(1)
	}
	if f.down.Load() {
		return shim.Task{}, errDown
	}
	out, err := f.current().Apply(ctx, id, l, c)
	if f.deaf.Load() {
		return shim.Task{}, errDown
	}
	return out, err
}

func (f *faultyStore) Batches(ctx context.Context, id shim.ID, skip int64) ([]json.RawMessage, error) {
	f.reads.Add(1)
	if f.down.Load() {
		return nil, errDown
	}
	return f.current().Batches(ctx, id, skip)
}

func (f *faultyStore) Watch(ctx context.Context, ids ...shim.ID) iter.Seq2[shim.Event, error] {
	return func(yield func(shim.Event, error) bool) {
		for e, err := range f.Store.Watch(ctx, ids...) {
			if f.mute.Load() && !e.Synced {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func (f *faultyStore) Beat(ctx context.Context, r shim.Replica, ttl time.Duration) error {
	if f.down.Load() {
		return errDown
	}
	return f.Store.Beat(ctx, r, ttl)
}

// pass lets time go by on the bubble's clock, and everything happen that is due.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

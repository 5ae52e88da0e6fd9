package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/metrics"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
	"taskgate/shim/runner"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/trace"
)

// Options configure a Shim.
type Options struct {
	Replica   shim.Replica // unique to this process and start
	Store     shim.Store
	Repeats   shim.Repeats           // of the Store; nil if no call is picked up by a repeat
	Pauses    shim.Pauses            // of the Store; nil if nothing is ever paused
	Servers   map[string]shim.Server // by configured name; Serve replaces them
	Heartbeat time.Duration          // expiry of this replica's heartbeat, default 5s
	// Settle is how long this replica keeps the end of a task, and an answer, in case the store forgets it in
	// a failover; default 30s, negative for no time. SettleBytes bounds the memory for that; default
	// 64 MiB.
	Settle      time.Duration
	SettleBytes int64
	// MaxKeptBytes bounds the bytes that the store keeps of tasks that ended here, and MaxKeptBytesPerOwner those of
	// one owner; 0 for none. Kept is what it has of ended tasks at the start.
	MaxKeptBytes, MaxKeptBytesPerOwner int64
	Kept                               []shim.KeptTask
	// StoreTimeout bounds each operation on the store that a caller waits for;
	// default 3s.
	StoreTimeout time.Duration
	// StoreWait is how long a client that reads, answers or cancels a task waits for an unavailable
	// store; default 0, which means StoreTimeout.
	StoreWait time.Duration
	// CheckAnswer says what is wrong with a result as the answer to a question of this method,
	// quoting none of it; "" for a good one. Only a good one reaches a server. nil takes
	// everything.
	CheckAnswer func(method string, result json.RawMessage) (wrong string)
	// Budget bounds the bytes of calls that this replica adopts; nil for no bound. The bytes of
	// other calls are added to the hold of the context of Call, which lasts until the call has
	// ended and is recorded.
	Budget *budget.Bytes
	Logger *slog.Logger // default slog.Default()
	Tracer trace.Tracer // default none
	// MarkKeys mark the ids of tasks, to tell a task that the store has lost from an id that was
	// never given out. The first key marks; all are known. All replicas of a deployment need the
	// same keys. Without keys the mark tells only accidental ids apart.
	MarkKeys [][]byte
	// Metrics measures calls and tasks; nil for none.
	Metrics *metrics.Metrics
}

// Shim runs calls, and tasks until they end. Its goroutines are those of the calls in flight and of
// Run. It wires its parts, which each have a state and a lock of their own: a goroutine that holds
// the lock of a part calls only life.
//
// All methods that name a Principal check it first: a task of another owner or another upstream is
// ErrNotFound, exactly as an unknown one is (design.md 0.7).
type Shim struct {
	// Heart is this replica's heartbeat, which beats during Run.
	Heart *node.Heart

	*node.Core
	serverTable
	metrics   *metrics.Metrics
	storeWait time.Duration
	waiting   shim.Bound // requests that wait for the store for as long as storeWait
	check     func(method string, result json.RawMessage) (wrong string)
	budget    *budget.Bytes
	draining  atomic.Bool

	runs     *node.Runs[runner.Run]
	recovery recovery
	pauses   pauses
	shown    *lru.Cache[shim.ID, shown] // used by readOwn
}

// New returns a Shim that takes calls at once. Run keeps its tasks alive and adopts those of lost
// replicas.
func New(o Options) (*Shim, error) {
	if o.Replica == "" || o.Store == nil {
		return nil, errors.New("shim: a replica name and a store are needed")
	}
	c := node.NewCore(node.Settings{
		Replica: o.Replica, Store: o.Store, Heartbeat: o.Heartbeat, StoreTimeout: o.StoreTimeout,
		Settle: o.Settle, SettleBytes: o.SettleBytes, MarkKeys: o.MarkKeys, Logger: o.Logger, Tracer: o.Tracer,
		Repeats: o.Repeats, Kept: node.NewKept(o.MaxKeptBytes, o.MaxKeptBytesPerOwner, o.Kept),
	})
	s := &Shim{
		Core:        c,
		Heart:       c.Heart,
		serverTable: serverTable{known: make(map[string]*node.Served)},
		metrics:     o.Metrics,
		storeWait:   o.StoreWait,
		waiting:     shim.Bound{Most: maxWaiting},
		check:       o.CheckAnswer,
		budget:      o.Budget,
		runs:        node.NewRuns[runner.Run](),
	}
	s.shown, _ = lru.New[shim.ID, shown](maxShown) // the only error is a size of 0
	s.recovery = recovery{s: s, wake: make(chan struct{}, 1)}
	s.pauses.s, s.pauses.store, s.pauses.tried, s.pauses.turn = s, o.Pauses, make(chan struct{}), work.NewTurn()
	s.Serve(o.Servers)
	s.metrics.ReadLoads(s.readLoads)
	s.metrics.ReadPaused(s.readPaused)
	return s, nil
}

// Serve replaces the servers. Calls and tasks under way go on as they began. Those of a server that
// stays count towards its new limits; a server that is left out is unknown from now on. Serve is
// called by one goroutine at a time.
func (s *Shim) Serve(servers map[string]shim.Server) {
	next := make(map[string]*node.Served, len(servers))
	s.Kept.Halve(slices.ContainsFunc(slices.Collect(maps.Values(servers)), func(one shim.Server) bool { return one.Halved }))
	for name, srv := range servers {
		next[name] = node.NewServer(name, srv, s.known[name])
		if s.known[name] == nil {
			next[name].Metrics = s.metrics.Tasks(name)
		}
		s.known[name] = next[name]
	}
	s.servers.Store(&next)
}

// Run keeps this replica alive in the store, follows the changes that others make to its tasks, and
// adopts the tasks of lost replicas. It returns when ctx ends.
func (s *Shim) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.Heart.Run(ctx) })
	loops.Go(func() { s.recovery.adoptAndAudit(ctx) })
	loops.Go(func() { s.recovery.listenForChanges(ctx) })
	loops.Wait()
	return context.Cause(ctx)
}

// Drain takes no new calls from now on and waits until all calls in flight and all running tasks
// have ended, or ctx is done.
func (s *Shim) Drain(ctx context.Context) error {
	s.refuseCalls()
	return s.Life.Work.Wait(ctx)
}

// refuseCalls takes no new calls. A call that has just been taken is waited for.
func (s *Shim) refuseCalls() {
	s.draining.Store(true)
	s.Life.Work.Refuse()
}

// Halt lets go of all calls still in flight. If another replica can go on with a task, the task is
// left to it and its call goes on upstream; any other task fails with a reason, and its call is
// cancelled (design.md 0.6). A caller whose call was sent is told that the server may have finished
// it; all others get ErrDraining. Outcomes are still recorded until ctx ends.
func (s *Shim) Halt(ctx context.Context) error {
	s.refuseCalls()
	s.Life.Cancel(shim.ErrDetached)
	defer s.Life.EndWrites()
	return s.Life.Work.Close(ctx)
}

// Close halts and says goodbye, so that another replica adopts this one's tasks at once. Run stops
// beating then. If the goodbye fails, Close may be called again.
func (s *Shim) Close(ctx context.Context) error {
	return errors.Join(s.Halt(ctx), s.Heart.SayGoodbye(ctx))
}

// readsTasksOf reports whether the tasks of a server can be read at an upstream.
func (s *Shim) readsTasksOf(upstream, server string) bool {
	srv := (*s.servers.Load())[upstream]
	return server == upstream || srv != nil && slices.Contains(srv.Before, server)
}

// serverTable has the servers by their names.
type serverTable struct {
	servers atomic.Pointer[map[string]*node.Served]
	known   map[string]*node.Served // each server so far: its counts go on if it comes back
}

func (t *serverTable) findServer(name string) (*node.Served, error) {
	srv, ok := (*t.servers.Load())[name]
	if !ok {
		return nil, fmt.Errorf("shim: no upstream %q", name)
	}
	return srv, nil
}

// IsSlow reports whether most of the last calls that this replica has made at a server were longer than their grace.
func (t *serverTable) IsSlow(upstream string) bool {
	srv, err := t.findServer(upstream)
	return err == nil && srv.Graces.IsSlow()
}

package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Server is an upstream as the shim needs to know it.
type Server struct {
	Upstream Upstream
	// Policy is what the operator wants of a tool. It is asked once per call.
	Policy func(tool string) Policy
	// Other is the policy of requests that are no tools/call: they never become
	// tasks, but can have questions as well.
	Other Policy
	// Concurrency bounds the calls in flight (0 = unbounded), Queue how many more
	// may wait, and QueueWait how long a caller waits that cannot take a task.
	Concurrency int
	Queue       int
	QueueWait   time.Duration
	// MaxTasks and MaxTasksPerOwner bound the tasks that this replica runs here;
	// 0 = unbounded.
	MaxTasks         int
	MaxTasksPerOwner int
}

// Options are what a Shim is made of.
type Options struct {
	Replica   Replica // unique to this process and start
	Store     Store
	Servers   map[string]Server // by configured name
	Heartbeat time.Duration     // expiry of this replica's heartbeat, default 5s
	// Settle is how long the end of a task is kept here in case the store forgets
	// it in a failover; default 30s, negative for not at all. SettleBytes bounds what
	// that may take of memory; default 64 MiB.
	Settle      time.Duration
	SettleBytes int64
	// StoreTimeout bounds each operation on the store that a caller waits for;
	// default 3s.
	StoreTimeout time.Duration
	// CheckAnswer says what is wrong with a result as the answer to a question of this
	// method, "" for nothing, without repeating any of it. Only what is not wrong
	// reaches a server. nil takes everything.
	CheckAnswer func(method string, result json.RawMessage) (wrong string)
	Logger      *slog.Logger // default slog.Default()
	Tracer      trace.Tracer // default none
}

// Shim runs calls, and tasks until they end. Its goroutines are those of the
// calls in flight and of Run.
type Shim struct {
	replica   Replica
	store     Store
	servers   map[string]*server
	heartbeat time.Duration
	log       *slog.Logger
	tracer    trace.Tracer

	ops      atomic.Int64 // numbers this replica's operations on the store
	draining atomic.Bool

	// ctx is the life of everything that is not a request; it ends with
	// ErrDetached.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// writes is the life of outcomes on their way to the store, which outlasts ctx
	// by as long as Halt is given.
	writes    context.Context
	endWrites context.CancelFunc
	work      *group // runs and their pending writes

	// wake has tend look for orphans, and audit what is due, at once; ticked does so after
	// each beat.
	wake, ticked chan struct{}
	// hindered: the latest Adopt that found no task has failed. It is tend's alone.
	hindered bool
	pulse    pulse
	// epoch counts how often events may have been lost, or the store have gone back: only
	// versions of one epoch can be compared.
	epoch atomic.Int64
	// beats is held for reading while the heart beats, and guards gone: no beat may
	// come after the goodbye.
	beats sync.RWMutex
	gone  bool

	mu   sync.Mutex // guards all below
	runs map[ID]*run
	// coming are tasks that are about to have a run here: they are being created, or their
	// run before is ending. true says that an event came meanwhile.
	coming map[ID]bool
	due    int            // parts to be audited at once
	tasks  map[string]int // tasks run here, by owner and by server
	// beaten is when the last heartbeat that got through began.
	beaten time.Time
	// held are the endings that have not settled yet.
	held        map[ID]ending
	heldBytes   int64
	settle      time.Duration
	settleBytes int64

	storeTimeout time.Duration
	check        func(method string, result json.RawMessage) (wrong string)
}

var _ API = (*Shim)(nil)

// New returns a Shim that takes calls at once; Run keeps its tasks alive and takes
// over those of others.
func New(o Options) (*Shim, error) {
	if o.Replica == "" || o.Store == nil {
		return nil, errors.New("shim: a replica name and a store are needed")
	}
	s := &Shim{
		replica:   o.Replica,
		store:     o.Store,
		servers:   make(map[string]*server, len(o.Servers)),
		heartbeat: cmp.Or(o.Heartbeat, 5*time.Second),
		log:       cmp.Or(o.Logger, slog.Default()),
		tracer:    o.Tracer,

		settle: cmp.Or(o.Settle, defaultSettle), settleBytes: cmp.Or(o.SettleBytes, defaultSettleBytes),
		storeTimeout: cmp.Or(o.StoreTimeout, 3*time.Second),
		check:        o.CheckAnswer,
		runs:         make(map[ID]*run),
		tasks:        make(map[string]int),
		held:         make(map[ID]ending),
		work:         newGroup(),
		coming:       make(map[ID]bool),
		wake:         make(chan struct{}, 1),
		ticked:       make(chan struct{}, 1),
	}
	if s.tracer == nil {
		s.tracer = noop.NewTracerProvider().Tracer("")
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.writes, s.endWrites = context.WithCancel(context.Background())
	for name, srv := range o.Servers {
		s.servers[name] = newServer(name, srv)
	}
	return s, nil
}

// Drain takes no new calls from now on and waits until those in flight and all
// running tasks have ended, or ctx is done.
func (s *Shim) Drain(ctx context.Context) error {
	s.drain()
	return s.work.Wait(ctx)
}

// drain takes no new calls. One that has just been taken is waited for.
func (s *Shim) drain() {
	s.draining.Store(true)
	s.work.Refuse()
}

// Halt lets go of all calls still in flight. A task that another replica can go on
// with is left to it, and its call is not cancelled upstream; any other fails and says
// why, and its call is cancelled (design.md 0.6). Callers that wait get ErrDraining.
// Outcomes are still recorded, as long as ctx lasts.
func (s *Shim) Halt(ctx context.Context) error {
	s.drain()
	s.cancel(ErrDetached)
	defer s.endWrites()
	return s.work.Close(ctx)
}

// Close halts and says goodbye, so that another replica adopts this one's tasks at
// once. Run does not beat any more from then on. Where the goodbye fails, Close may be
// called again.
func (s *Shim) Close(ctx context.Context) error {
	return errors.Join(s.Halt(ctx), s.goodbye(ctx))
}

// op names an operation, for the store to recognise its repeat.
func (s *Shim) op() string { return fmt.Sprintf("%s-%d", s.replica, s.ops.Add(1)) }

// server is a Server with what this replica counts about it.
type server struct {
	Server
	name  string
	slots *slots

	mu    sync.Mutex
	tools map[string]*toolEntry // by tool, only where the policy bounds it
}

func newServer(name string, s Server) *server {
	return &server{Server: s, name: name, slots: newSlots(s.Concurrency, s.Queue), tools: make(map[string]*toolEntry)}
}

// callTool is the one method whose requests may become tasks.
const callTool = "tools/call"

// policyFor is what the operator wants of a request.
func (s *server) policyFor(r Request) Policy {
	if r.Method == callTool {
		return s.Policy(r.Name)
	}
	p := s.Other
	p.Tasks, p.Concurrency = Never, 0
	return p
}

// server finds an upstream by its configured name.
func (s *Shim) server(name string) (*server, error) {
	srv, ok := s.servers[name]
	if !ok {
		return nil, fmt.Errorf("shim: no upstream %q", name)
	}
	return srv, nil
}

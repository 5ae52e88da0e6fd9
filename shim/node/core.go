package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"taskgate/internal/patience"
	"taskgate/shim"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Core is what the runs of a replica share, and all that a run knows of its replica.
type Core struct {
	Replica      shim.Replica
	Store        shim.Store
	Heart        *Heart
	StoreTimeout time.Duration
	Log          *slog.Logger
	Observer     Observer
	Life         *Life
	Outcomes     Outcomes
	Marks        *Marker
	Kept         *Kept
	Repeats      *Repeats
	ops          atomic.Int64 // numbers this replica's operations on the store
	// Epoch counts how often events may have been lost, or the store may have gone back: only versions
	// of one epoch can be compared.
	Epoch atomic.Int64
}

// Settings configure a replica; each but the first two has a default. engine.Options has their meaning.
type Settings struct {
	Replica      shim.Replica
	Store        shim.Store
	Heartbeat    time.Duration
	StoreTimeout time.Duration
	Settle       time.Duration
	SettleBytes  int64
	MarkKeys     [][]byte
	Kept         *Kept
	Repeats      shim.Repeats
	Logger       *slog.Logger
	Tracer       trace.Tracer
}

// NewCore returns what the runs of a replica share.
func NewCore(s Settings) *Core {
	life, log := newLife(), cmp.Or(s.Logger, slog.Default())
	c := &Core{
		Replica:      s.Replica,
		Store:        s.Store,
		Heart:        NewHeart(s.Store, s.Replica, cmp.Or(s.Heartbeat, 5*time.Second), log),
		StoreTimeout: cmp.Or(s.StoreTimeout, 3*time.Second),
		Log:          log,
		Observer:     Observer{Replica: s.Replica, life: life, Tracer: cmp.Or[trace.Tracer](s.Tracer, noop.Tracer{}), log: log},
		Life:         life,
		Marks:        newMarker(s.Store, s.MarkKeys),
		Kept:         s.Kept,
		Repeats:      newRepeats(s.Repeats),
		Outcomes: Outcomes{
			store: s.Store, life: life, held: make(map[shim.ID]Ending),
			settle: cmp.Or(s.Settle, DefaultSettle), most: cmp.Or(s.SettleBytes, defaultSettleBytes),
		},
	}
	c.Outcomes.observer = &c.Observer
	return c
}

// NewOp names an operation, so that the store recognises its repeat.
func (c *Core) NewOp() string { return fmt.Sprintf("%s-%d", c.Replica, c.ops.Add(1)) }

// ReadRecord reads a record for a caller that waits.
func (c *Core) ReadRecord(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	return WithPatience(ctx, c, func(ctx context.Context) (shim.Task, error) { return c.Store.Get(ctx, id, part) })
}

// ChangeRecord makes one change of a record for a caller that waits; lease is nil for any other than
// the runner.
func (c *Core) ChangeRecord(ctx context.Context, id shim.ID, lease *shim.Lease, change shim.Change) (shim.Task, error) {
	return WithPatience(ctx, c, func(ctx context.Context) (shim.Task, error) { return c.Store.Apply(ctx, id, lease, change) })
}

// WithPatience does a store operation that a caller waits for. It has the patience of the request, or
// else the store timeout, and becomes ErrUnavailable when that is over.
func WithPatience[T any](ctx context.Context, c *Core, do func(context.Context) (T, error)) (T, error) {
	ctx, done := patience.Use(patience.Or(ctx, c.StoreTimeout))
	out, err := do(ctx)
	over := errors.Is(context.Cause(ctx), patience.ErrOver)
	done(!errors.Is(err, shim.ErrUnavailable))
	if err != nil && over {
		err = fmt.Errorf("%w: no answer in %v", shim.ErrUnavailable, c.StoreTimeout)
	}
	return out, err
}

// CancelUntold cancels a task whose id is unknown to its client. Such a record would otherwise stay
// working for ever, if the replica of its lease is alive but does not run it. token is the result of
// Shim.bringToken.
func (c *Core) CancelUntold(id shim.ID, message string, retain time.Duration, token string) {
	change := shim.Change{Op: c.NewOp(), To: shim.Cancelled, StatusMessage: &message, Retain: retain, Token: token, Moments: []shim.Moment{{Kind: shim.KindCancelled, Detail: message}}}
	_, err := Retry(c.Life.Writes, func(ctx context.Context) (shim.Task, error) { return c.Store.Apply(ctx, id, nil, change) })
	if err != nil && !errors.Is(err, shim.ErrNotFound) && !errors.Is(err, shim.ErrFinal) {
		c.Log.Warn("a task that nobody was told of may remain", "task_id", id, "err", err)
	}
}

// NewTaskID makes the id of a task, with its mark.
func (c *Core) NewTaskID(ctx context.Context, t shim.Task) shim.ID {
	ctx, done := patience.Use(patience.Or(ctx, c.StoreTimeout))
	defer done(true)
	return c.Marks.newID(ctx, t.Owner, t.Upstream, t.Retain)
}

// RetryCreate is the pause before creating a task is tried again while the store is down (design.md
// 0.13).
const RetryCreate = time.Second

// Never is the grace of a call that blocks however long it takes.
const Never = time.Duration(math.MaxInt64)

// LeftMessage is the status message of a task whose client left before it got the handle.
const LeftMessage = "the client left before it was given the task"

// MessageCancelled is the status message of a task that its owner cancelled.
const MessageCancelled = "cancelled by the client"

// ErrTaskCancelled is the cause that ends the context of the call of a cancelled task.
var ErrTaskCancelled = errors.New("the task was cancelled")

// leastTTL is the shortest retention of a task that a caller can ask for.
const leastTTL = 2 * time.Second

// RetainFor returns how long a task is kept after its end: as the caller wishes, within bounds (L10).
// With a shorter time, clients that poll would miss the end.
func RetainFor(c shim.Call, p shim.Policy) time.Duration {
	d := p.TTL
	if c.TTL > 0 {
		d = max(c.TTL, leastTTL, 2*cmp.Or(p.PollInterval, shim.LongestPoll))
	}
	return min(d, p.TTL)
}

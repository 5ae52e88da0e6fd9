package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"taskgate/internal/patience"
)

// core is the state that the runs of a replica share. It is all that a run knows of the Shim.
type core struct {
	replica      Replica
	store        Store
	heart        *Heart
	storeTimeout time.Duration
	log          *slog.Logger
	observer     observer
	life         *life
	outcomes     outcomes
	marks        *marker
	ops          atomic.Int64 // numbers this replica's operations on the store
	// epoch counts how often events may have been lost, or the store may have gone back: only versions
	// of one epoch can be compared.
	epoch atomic.Int64
}

// newOp names an operation, so that the store recognises its repeat.
func (c *core) newOp() string { return fmt.Sprintf("%s-%d", c.replica, c.ops.Add(1)) }

// readRecord reads a record for a caller that waits.
func (c *core) readRecord(ctx context.Context, id ID, part Part) (Task, error) {
	return withPatience(ctx, c, func(ctx context.Context) (Task, error) { return c.store.Get(ctx, id, part) })
}

// changeRecord makes one change of a record for a caller that waits; lease is nil for any other than
// the runner.
func (c *core) changeRecord(ctx context.Context, id ID, lease *Lease, change Change) (Task, error) {
	return withPatience(ctx, c, func(ctx context.Context) (Task, error) { return c.store.Apply(ctx, id, lease, change) })
}

// withPatience does a store operation that a caller waits for. It has the patience of the request, or
// else the store timeout, and becomes ErrUnavailable when that is over.
func withPatience[T any](ctx context.Context, c *core, do func(context.Context) (T, error)) (T, error) {
	ctx, done := patience.Use(patience.Or(ctx, c.storeTimeout))
	out, err := do(ctx)
	over := errors.Is(context.Cause(ctx), patience.ErrOver)
	done(!errors.Is(err, ErrUnavailable))
	if err != nil && over {
		err = fmt.Errorf("%w: no answer in %v", ErrUnavailable, c.storeTimeout)
	}
	return out, err
}

// cancelUntold cancels a task whose id is unknown to its client. Such a record would otherwise stay
// working for ever, if the replica of its lease is alive but does not run it. token is the result of
// Shim.bringToken.
func (c *core) cancelUntold(id ID, message string, retain time.Duration, token string) {
	change := Change{Op: c.newOp(), To: Cancelled, StatusMessage: &message, Retain: retain, Token: token, Moments: []Moment{{Kind: KindCancelled, Detail: message}}}
	_, err := retry(c.life.writes, func(ctx context.Context) (Task, error) { return c.store.Apply(ctx, id, nil, change) })
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrFinal) {
		c.log.Warn("a task that nobody was told of may remain", "task_id", id, "err", err)
	}
}

func (c *core) newTaskID(ctx context.Context, t Task) ID {
	ctx, done := patience.Use(patience.Or(ctx, c.storeTimeout))
	defer done(true)
	return c.marks.newID(ctx, t.Owner, t.Upstream, t.Retain)
}

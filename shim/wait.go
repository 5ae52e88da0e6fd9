package shim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"taskgate/internal/patience"
	"taskgate/internal/work"
)

// Pauses between attempts on a store that is unavailable.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
	opTimeout  = 10 * time.Second // of one attempt
)

// retry repeats an operation of the store, with growing pauses, until that has answered or ctx ends, free of any
// client's patience. Every operation of a Store may be repeated (design.md 0.12).
func retry[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	return retryUntil(ctx, isAnswer, do)
}

// retryUntil is retry of an operation with final errors of its own.
func retryUntil[T any](ctx context.Context, final func(error) bool, do func(context.Context) (T, error)) (T, error) {
	ctx = patience.Without(ctx)
	for d := retryFirst; ; d = min(2*d, retryMost) {
		attempt, stop := context.WithTimeoutCause(ctx, attemptTime(ctx), ErrUnavailable)
		out, err := do(attempt)
		stop()
		if err == nil || final(err) {
			return out, err
		}
		if work.Pause(ctx, spreadPause(d)) != nil {
			return out, context.Cause(ctx)
		}
	}
}

// answers are the errors that a repeat would get again: the answers of a Store, and the end of a replica.
var answers = []error{ErrNotFound, ErrFinal, ErrLeaseLost, ErrPosition, ErrCursor, ErrDraining, ErrDetached}

// isAnswer reports whether an error is one of them. No other error is taken for final: it may pass, and the
// store, or what stands before it, may have words that nobody here knows.
func isAnswer(err error) bool {
	return slices.ContainsFunc(answers, func(known error) bool { return errors.Is(err, known) })
}

// attemptTime returns how long one attempt may take: at most half of the time that is left, since it
// may go out on a dead connection.
func attemptTime(ctx context.Context) time.Duration {
	if end, bounded := ctx.Deadline(); bounded {
		return min(opTimeout, time.Until(end)/2)
	}
	return opTimeout
}

// spreadPause returns a pause of about d, so that many that began together go on apart.
func spreadPause(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// life has the contexts and the work that a Shim ends in stages. The Shim owns it and ends it.
type life struct {
	// ctx is the life of everything but requests; it ends with ErrDetached.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// writes is the life of outcomes on their way to the store, which outlasts ctx by the time that
	// Halt is given.
	writes    context.Context
	endWrites context.CancelFunc
	work      work.Group // runs and their pending writes
}

func newLife() *life {
	l := &life{}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.writes, l.endWrites = context.WithCancel(context.Background())
	return l
}

// later runs f after d, unless the work is over by then.
func (l *life) later(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(max(0, d), func() { l.work.Do(f) })
}

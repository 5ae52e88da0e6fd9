package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"taskgate/internal/patience"
	"taskgate/internal/work"
	"taskgate/shim"
)

// Pauses between attempts on a store that is unavailable.
const (
	RetryFirst = 100 * time.Millisecond
	RetryMost  = 5 * time.Second
	OpTimeout  = 10 * time.Second // of one attempt
)

// Retry repeats an operation of the store, with growing pauses, until that has answered or ctx ends, free of any
// client's patience. Every operation of a Store may be repeated (design.md 0.12).
func Retry[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	return RetryUntil(ctx, IsAnswer, do)
}

// RetryUntil is Retry of an operation with final errors of its own.
func RetryUntil[T any](ctx context.Context, final func(error) bool, do func(context.Context) (T, error)) (T, error) {
	ctx = patience.Without(ctx)
	for d := RetryFirst; ; d = min(2*d, RetryMost) {
		attempt, stop := context.WithTimeoutCause(ctx, attemptTime(ctx), shim.ErrUnavailable)
		out, err := do(attempt)
		stop()
		if err == nil || final(err) {
			return out, err
		}
		if work.Pause(ctx, SpreadPause(d)) != nil {
			return out, context.Cause(ctx)
		}
	}
}

// answers are the errors that a repeat would get again: the answers of a Store, and the end of a replica.
var answers = []error{shim.ErrNotFound, shim.ErrFinal, shim.ErrLeaseLost, shim.ErrPosition, shim.ErrCursor, shim.ErrDraining, shim.ErrDetached}

// IsAnswer reports whether an error is one of them. No other error is taken for final: it may pass, and the
// store, or what stands before it, may have words that nobody here knows.
func IsAnswer(err error) bool {
	return slices.ContainsFunc(answers, func(known error) bool { return errors.Is(err, known) })
}

// attemptTime returns how long one attempt may take: at most half of the time that is left, since it
// may go out on a dead connection.
func attemptTime(ctx context.Context) time.Duration {
	if end, bounded := ctx.Deadline(); bounded {
		return min(OpTimeout, time.Until(end)/2)
	}
	return OpTimeout
}

// SpreadPause returns a pause of about d, so that many that began together go on apart.
func SpreadPause(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Life has the contexts and the work that a Shim ends in stages. The Shim owns it and ends it.
type Life struct {
	// Ctx is the life of everything but requests; it ends with ErrDetached.
	Ctx    context.Context
	Cancel context.CancelCauseFunc
	// Writes is the life of outcomes on their way to the store, which outlasts ctx by the time that
	// Halt is given.
	Writes    context.Context
	EndWrites context.CancelFunc
	Work      work.Group // runs and their pending writes

	ends [16]context.Context // end with Ctx: what thousands of calls register at one context waits for its lock
}

// newLife returns one that has begun.
func newLife() *Life {
	l := &Life{}
	ctx, end := context.WithCancelCause(context.Background())
	all := []context.CancelCauseFunc{end}
	l.Ctx = ctx
	for i := range l.ends {
		l.ends[i], end = context.WithCancelCause(context.Background())
		all = append(all, end)
	}
	l.Cancel = func(cause error) {
		for _, end := range all {
			end(cause)
		}
	}
	l.Writes, l.EndWrites = context.WithCancel(context.Background())
	return l
}

// AfterEnd runs f in a goroutine of its own once Ctx has ended. stop reports whether it keeps f from that.
func (l *Life) AfterEnd(f func()) (stop func() bool) {
	return context.AfterFunc(l.ends[rand.N(len(l.ends))], f)
}

// Later runs f after d, unless the work is over by then.
func (l *Life) Later(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(max(0, d), func() { l.Work.Do(f) })
}

package shim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"taskgate/internal/patience"
)

// Pauses between attempts on a store that is unavailable.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
	opTimeout  = 10 * time.Second // of one attempt
)

// retry repeats an operation, with growing pauses, while the store is unavailable
// and ctx lasts: no client's patience bounds it. Every operation of a Store may be repeated
// (design.md 0.12).
func retry[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx = patience.Without(ctx)
	for d := retryFirst; ; d = min(2*d, retryMost) {
		attempt, stop := context.WithTimeoutCause(ctx, attemptTime(ctx), ErrUnavailable)
		out, err := do(attempt)
		stop()
		if err == nil || !errors.Is(err, ErrUnavailable) {
			return out, err
		}
		if !pause(ctx.Done(), spread(d)) {
			return out, context.Cause(ctx)
		}
	}
}

// attemptTime is how long one attempt may take: at most half of the time that is left, since
// it may go out on a connection that is dead.
func attemptTime(ctx context.Context) time.Duration {
	if end, bounded := ctx.Deadline(); bounded {
		return min(opTimeout, time.Until(end)/2)
	}
	return opTimeout
}

// spread is a pause of about d, so that many who began together do not go on together.
func spread(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// pause waits for d and reports whether what ends it, such as the Done of a context, lasted
// that long.
func pause(end <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-end:
		return false
	}
}

// signal wakes the one who waits on a channel that holds one signal. Signals that nobody
// has seen yet are one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// apart runs f on a goroutine of its own and waits for its end. The goroutine of a
// parked call keeps the stack that it has grown to, and a write to the store grows it
// to the double of what waiting takes.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

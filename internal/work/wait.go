package work

import (
	"context"
	"time"
)

// Pause waits for d. It returns why ctx ended, if that comes first.
func Pause(ctx context.Context, d time.Duration) error { return PauseFor(ctx, nil, d) }

// PauseUntil waits for d, or until end is closed. It reports whether it waited for all of d.
func PauseUntil(end <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-end:
		return false
	}
}

// PauseFor is Pause, which also ends, with nil, when event is closed.
func PauseFor(ctx context.Context, event <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-event:
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Signal wakes the goroutine that waits on a channel that holds one signal. Signals that are still
// unread become one.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// IsClosed reports whether a channel is closed that nothing is sent on.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Apart runs f on a goroutine of its own and waits for its end. A goroutine that waits for long
// afterwards would keep the stack that f made it grow to: that of a call at the server would be
// twice as large after a write to the store.
func Apart(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

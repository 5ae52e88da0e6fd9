package shim

import "context"

// Waiter is a call as the code sees it that signs its requests in, below the Upstream.
type Waiter interface {
	// SayWaiting tells the readers of the call's task that it waits for its owner to sign in, until over is called.
	SayWaiting() (over func())
}

// waiterKey is the context key of a Waiter.
type waiterKey struct{}

// WithWaiter returns the context in which an Upstream is asked for the call of w.
func WithWaiter(ctx context.Context, w Waiter) context.Context {
	return context.WithValue(ctx, waiterKey{}, w)
}

// SayWaiting is that of the Waiter of ctx. Without one, nobody is told.
func SayWaiting(ctx context.Context) (over func()) {
	w, ok := ctx.Value(waiterKey{}).(Waiter)
	if !ok {
		return func() {}
	}
	return w.SayWaiting()
}

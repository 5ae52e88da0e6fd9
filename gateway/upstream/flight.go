package upstream

import (
	"context"
	"time"
)

// flight is work that several callers wait for and none of them owns: a probe,
// a handshake, a listing. That one caller leaves does not end it for the others.
type flight[T any] struct {
	done chan struct{}
	val  T
	err  error
}

// wait blocks until the work is done or the caller's own context ends.
func (f *flight[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-f.done:
		return f.val, f.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

// fly starts work under the life of the leg. It keeps the values of the first
// caller's context (its trace), but not its end.
func fly[T any](h *HTTP, ctx context.Context, work func(context.Context) (T, error)) *flight[T] {
	f := &flight[T]{done: make(chan struct{})}
	ok := h.spawn(ctx, func(ctx context.Context) {
		defer close(f.done)
		f.val, f.err = work(ctx)
	})
	if !ok {
		f.err = fail(kindUnreachable, "the gateway is shutting down", errClosed)
		close(f.done)
	}
	return f
}

// spawn runs f in a goroutine that Close waits for, with the values of ctx and
// the life of the leg. It reports false once the leg is closed.
func (h *HTTP) spawn(ctx context.Context, f func(context.Context)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.running.Add(1)
	go func() {
		defer h.running.Done()
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(h.life, func() { cancel(errClosed) })()
		f(ctx)
	}()
	return true
}

// slow bounds one request of a handshake.
func (h *HTTP) slow(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, h.cfg.ProbeTimeout, errSlow)
}

// aside bounds a message that nobody waits for: a cancellation, the end of a
// session. It outlives the request that it is about.
func aside(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

package upstream

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"taskgate/internal/budget"
)

// workers are the goroutines of a client that outlive the caller who needs them: a probe,
// a handshake, the GET stream of a session, a farewell. The client owns them and waits
// for their end when it closes.
type workers struct {
	life context.Context // ends with the client
	end  context.CancelCauseFunc

	mu      sync.Mutex // guards closed, and that nothing is added to running after it
	closed  bool
	running sync.WaitGroup
}

func newWorkers() *workers {
	w := &workers{}
	w.life, w.end = context.WithCancelCause(context.Background())
	return w
}

// spawn runs f in a goroutine, with the values of ctx (its trace) and the life of the
// client. It reports false once the client is closed.
func (w *workers) spawn(ctx context.Context, f func(context.Context)) bool {
	if !w.enter() {
		return false
	}
	go w.run(ctx, f)
	return true
}

// enter makes room for one run; it reports false once the client is closed.
func (w *workers) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.running.Add(1)
	}
	return !w.closed
}

func (w *workers) run(ctx context.Context, f func(context.Context)) {
	defer w.running.Done()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	ctx = budget.With(ctx, nil) // what it reads is not for the first caller alone
	defer context.AfterFunc(w.life, func() { cancel(errClosed) })()
	f(ctx)
}

// close ends the life of the client, and waits until ctx ends for its goroutines.
func (w *workers) close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends when the goroutines do: all of them are bounded
		w.running.Wait()
		close(done)
	}()
	w.end(errClosed)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// once does work that several callers wait for and none of them owns. That one caller
// leaves does not end it for the others. It has the values of the first caller's context.
func once[T any](ctx context.Context, w *workers, g *singleflight.Group, key string, work func(context.Context) (T, error)) (T, error) {
	done := g.DoChan(key, func() (any, error) {
		var v T
		if !w.enter() {
			return v, fail(kindUnreachable, "the gateway is shutting down", errClosed)
		}
		var err error
		w.run(ctx, func(ctx context.Context) { v, err = work(ctx) })
		return v, err
	})
	select {
	case r := <-done:
		return r.Val.(T), r.Err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

// outlive bounds a message that nobody waits for: a cancellation, the end of a session.
// It outlives the request that it is about.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// pause waits. It returns why ctx ended, if that comes first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// signal wakes one waiter; signals that nobody has seen yet are one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// apart runs f on a goroutine of its own and waits for its end: a goroutine that waits for
// long afterwards would keep the stack to which f has made it grow.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

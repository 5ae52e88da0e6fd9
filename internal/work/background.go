package work

import (
	"context"

	"golang.org/x/sync/singleflight"

	"taskgate/internal/budget"
)

// Background is work that outlives the caller that began it, because other callers wait for it too,
// or none does. Its owner closes it.
type Background struct {
	running Group
	life    context.Context
	end     context.CancelCauseFunc
	over    error
}

// NewBackground makes a Background. over is the cause with which its work ends when it is closed,
// and the error of Once from then on.
func NewBackground(over error) *Background {
	b := &Background{over: over}
	b.life, b.end = context.WithCancelCause(context.Background())
	return b
}

// Life ends when the Background is closed.
func (b *Background) Life() context.Context { return b.life }

// Go runs f in a goroutine, with the values of ctx (its trace) and the life of the Background. It
// reports false once the Background is closed.
func (b *Background) Go(ctx context.Context, f func(context.Context)) bool {
	if !b.running.Enter() {
		return false
	}
	go b.run(ctx, f)
	return true
}

func (b *Background) run(ctx context.Context, f func(context.Context)) {
	defer b.running.Leave()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	ctx = budget.With(ctx, nil) // all callers share what it reads
	defer context.AfterFunc(b.life, func() { cancel(b.over) })()
	f(ctx)
}

// Close refuses new work, ends the life of the running work, and waits for its end, or that of ctx.
func (b *Background) Close(ctx context.Context) error {
	b.running.Refuse()
	b.end(b.over)
	return b.running.Wait(ctx)
}

// Once does work that several callers share: all that ask for the same key of g at the same time
// get the result of the same work. It goes on for the others if a caller leaves. It has the values
// of the first caller's context.
func Once[T any](ctx context.Context, b *Background, g *singleflight.Group, key string, do func(context.Context) (T, error)) (T, error) {
	done := g.DoChan(key, func() (any, error) {
		var v T
		if !b.running.Enter() {
			return v, b.over
		}
		var err error
		b.run(ctx, func(ctx context.Context) { v, err = do(ctx) })
		return v, err
	})
	var none T
	if ctx.Err() != nil { // it has begun what others may want, and waits for nothing
		return none, context.Cause(ctx)
	}
	select {
	case r := <-done:
		return r.Val.(T), r.Err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

package work

import (
	"context"

	"golang.org/x/sync/singleflight"

	"taskgate/internal/budget"
)

// Background is work that outlives the caller who began it, since others wait for it as well,
// or nobody does. Its owner closes it.
type Background struct {
	running Group
	life    context.Context
	end     context.CancelCauseFunc
	over    error
}

// NewBackground makes a Background. over is why its work ends when it is closed, and the error
// of Once from then on.
func NewBackground(over error) *Background {
	b := &Background{over: over}
	b.life, b.end = context.WithCancelCause(context.Background())
	return b
}

// Life ends when the Background is closed.
func (b *Background) Life() context.Context { return b.life }

// Go runs f in a goroutine, with the values of ctx (its trace) and the life of the Background.
// It reports false once the Background is closed.
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
	ctx = budget.With(ctx, nil) // what it reads is not for the first caller alone
	defer context.AfterFunc(b.life, func() { cancel(b.over) })()
	f(ctx)
}

// Close lets nothing more begin, ends the life of what runs, and waits for its end, or that
// of ctx.
func (b *Background) Close(ctx context.Context) error {
	b.running.Refuse()
	b.end(b.over)
	return b.running.Wait(ctx)
}

// Once does something that several callers wait for and none of them owns: all who ask for
// the same key of g at the same time get what one of them has begun. That one caller leaves
// does not end it for the others. It has the values of the first caller's context.
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
	select {
	case r := <-done:
		return r.Val.(T), r.Err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

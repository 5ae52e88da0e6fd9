// Package patience bounds how long a request waits for the store: all its uses of the store
// together, however many parts of the gateway make them. The edge gives each request its
// patience, in the context, and whoever uses the store for the request counts that with Use.
//
// What has no patience in its context is no client's: it waits as long as it has to.
package patience

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrOver is the cause with which the context of a use ends when the patience is over.
var ErrOver = errors.New("the time to wait for the store is over")

// key is that of the patience in a context: *patience, inUse, or nil where there is none.
type key struct{}

// inUse stands for the patience in the context of a use: it is counted already.
type inUse struct{}

// patience is what is left of one. Time that is spent in uses of the store is taken from it,
// and as much comes back as is spent on anything else: a request may last for hours.
type patience struct {
	most time.Duration

	mu   sync.Mutex
	left time.Duration // when the present uses began, or the last ones ended
	at   time.Time     // when that was
	uses int           // that are going on
}

// With gives a context a patience of its own.
func With(ctx context.Context, most time.Duration) context.Context {
	return context.WithValue(ctx, key{}, &patience{most: most, left: most, at: time.Now()})
}

// Or is With for a context that has none yet.
func Or(ctx context.Context, most time.Duration) context.Context {
	if ctx.Value(key{}) != nil {
		return ctx
	}
	return With(ctx, most)
}

// Without is the context of what goes on when the request's patience is over.
func Without(ctx context.Context) context.Context {
	if ctx.Value(key{}) == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, nil)
}

// Use begins a use of the store, which ends with done, and whether the store has answered. Its
// context ends when the patience is over. A use within a use is the same one.
func Use(ctx context.Context) (use context.Context, done func(answered bool)) {
	p, ok := ctx.Value(key{}).(*patience)
	if !ok {
		return ctx, func(bool) {}
	}
	ctx, stop := context.WithDeadlineCause(context.WithValue(ctx, key{}, inUse{}), p.begin(), ErrOver)
	return ctx, func(answered bool) {
		stop()
		p.end(answered)
	}
}

// Waits reports whether this is the context of a use: somebody waits for the store.
func Waits(ctx context.Context) bool {
	_, ok := ctx.Value(key{}).(inUse)
	return ok
}

// begin counts a use, and returns when the patience is over.
func (p *patience) begin() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uses == 0 {
		now := time.Now()
		p.left, p.at = min(p.left+now.Sub(p.at), p.most), now
	}
	p.uses++
	return p.at.Add(p.left)
}

// end takes a use out of the count. If it was answered while others go on, these begin to wait
// anew: the uses of a busy stream may follow each other without a pause.
func (p *patience) end(answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uses--; p.uses == 0 {
		now := time.Now()
		p.left, p.at = max(p.left-now.Sub(p.at), 0), now
	} else if answered {
		p.left, p.at = p.most, time.Now()
	}
}

// Package patience bounds how long a request waits for the store: all its uses of the store
// together, in all parts of the gateway. The edge puts the patience of each request into its
// context, and code that uses the store for the request counts that with Use.
//
// Work without a patience in its context has no client that waits: it takes as long as it has to.
package patience

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrOver is the cause with which the context of a use ends when the patience is over.
var ErrOver = errors.New("the time to wait for the store is over")

// key is that of the patience in a context: *patience, inUse, or nil for none.
type key struct{}

// inUse replaces the patience in the context of a use, which is counted already.
type inUse struct{}

// patience is the time that is left. Time in uses of the store is taken from it, and time between
// them is given back, because a request may last for hours.
type patience struct {
	most time.Duration

	mu   sync.Mutex
	left time.Duration // when the present uses began, or the last ones ended
	at   time.Time     // when that was
	uses int           // that are in progress
}

// With gives a context a patience of its own.
func With(ctx context.Context, most time.Duration) context.Context {
	return context.WithValue(ctx, key{}, &patience{most: most, left: most, at: time.Now()})
}

// Or is With for a context without a patience.
func Or(ctx context.Context, most time.Duration) context.Context {
	if ctx.Value(key{}) != nil {
		return ctx
	}
	return With(ctx, most)
}

// Without returns a context without the patience, for work that goes on when the patience is over.
func Without(ctx context.Context) context.Context {
	if ctx.Value(key{}) == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, nil)
}

// Use begins a use of the store. The caller ends it with done, and says whether the store has
// answered. The context of the use ends when the patience is over. A use within a use counts once.
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

// Waits reports whether this is the context of a use: a client waits for the store.
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

// end takes a use out of the count. If it was answered while others are in progress, their patience
// begins anew: the uses of a busy stream may follow each other without a pause.
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

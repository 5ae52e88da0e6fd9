package engine_test

import (
	"context"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// hooked is a Store of which a test decides what happens around single operations. A hook
// that is nil does nothing.
type hooked struct {
	shim.Store
	create func(ctx context.Context, next func(context.Context) (shim.Task, error)) (shim.Task, error)
	get    func(ctx context.Context, id shim.ID, next func(context.Context) (shim.Task, error)) (shim.Task, error)
	apply  func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error)
	adopt  func(ctx context.Context, next func(context.Context) ([]shim.Task, error)) ([]shim.Task, error)
	beat   func()
	drop   func(shim.Event) bool
}

func (h *hooked) Create(ctx context.Context, t shim.Task, b ...shim.Batch) (shim.Task, error) {
	next := func(ctx context.Context) (shim.Task, error) { return h.Store.Create(ctx, t, b...) }
	if h.create == nil {
		return next(ctx)
	}
	return h.create(ctx, next)
}

func (h *hooked) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	next := func(ctx context.Context) (shim.Task, error) { return h.Store.Get(ctx, id, part) }
	if h.get == nil {
		return next(ctx)
	}
	return h.get(ctx, id, next)
}

func (h *hooked) Apply(ctx context.Context, id shim.ID, l *shim.Lease, c shim.Change) (shim.Task, error) {
	next := func(ctx context.Context) (shim.Task, error) { return h.Store.Apply(ctx, id, l, c) }
	if h.apply == nil {
		return next(ctx)
	}
	return h.apply(ctx, c, next)
}

func (h *hooked) Adopt(ctx context.Context, r shim.Replica, upstreams []string, n int) ([]shim.Task, error) {
	next := func(ctx context.Context) ([]shim.Task, error) { return h.Store.Adopt(ctx, r, upstreams, n) }
	if h.adopt == nil {
		return next(ctx)
	}
	return h.adopt(ctx, next)
}

func (h *hooked) Beat(ctx context.Context, r shim.Replica, ttl time.Duration) error {
	if h.beat != nil {
		h.beat()
	}
	return h.Store.Beat(ctx, r, ttl)
}

func (h *hooked) Inbox(ctx context.Context, r shim.Replica) iter.Seq2[shim.Event, error] {
	return h.heard(h.Store.Inbox(ctx, r))
}

func (h *hooked) Watch(ctx context.Context, ids ...shim.ID) iter.Seq2[shim.Event, error] {
	return h.heard(h.Store.Watch(ctx, slices.Clone(ids)...))
}

// heard leaves out the events that are dropped.
func (h *hooked) heard(events iter.Seq2[shim.Event, error]) iter.Seq2[shim.Event, error] {
	return func(yield func(shim.Event, error) bool) {
		for e, err := range events {
			if err == nil && h.drop != nil && h.drop(e) {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// saysNothing is the get of a store that does not say a word about tasks.
func saysNothing(ctx context.Context, _ shim.ID, _ func(context.Context) (shim.Task, error)) (shim.Task, error) {
	<-ctx.Done()
	return shim.Task{}, shim.ErrUnavailable
}

// unless is a hook of a store that is away now and then.
func unless(away *atomic.Bool) func(context.Context, shim.ID, func(context.Context) (shim.Task, error)) (shim.Task, error) {
	return func(ctx context.Context, _ shim.ID, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
		if away.Load() {
			return shim.Task{}, errDown
		}
		return next(ctx)
	}
}

// hint is any event but those that say to read everything again.
func hint(e shim.Event) bool { return !e.Synced }

// over starts a replica over a hooked store.
func (w *world) over(name string, h *hooked, u shim.Upstream, p shim.Policy) *engine.Shim {
	w.t.Helper()
	h.Store = w.store
	srv := serves(u, p)
	return w.gatewayOf(name, srv, func(o *engine.Options) { o.Store = h })
}

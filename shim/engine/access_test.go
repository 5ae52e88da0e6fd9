package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"taskgate/internal/patience"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// parts notes which parts of tasks are read.
type parts struct {
	shim.Store
	mu     sync.Mutex
	read   []shim.Part
	lost   bool // the store has lost every task
	create int
}

func (p *parts) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	p.mu.Lock()
	p.read = append(p.read, part)
	lost := p.lost
	p.mu.Unlock()
	if lost {
		return shim.Task{}, shim.ErrNotFound
	}
	return p.Store.Get(ctx, id, part)
}

func (p *parts) Create(ctx context.Context, t shim.Task, b ...shim.Batch) (shim.Task, error) {
	p.mu.Lock()
	p.create++
	p.mu.Unlock()
	return p.Store.Create(ctx, t, b...)
}

// begin forgets what was read and created.
func (p *parts) begin(lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read, p.create, p.lost = nil, 0, lost
}

// seen is what was read, and how much was created.
func (p *parts) seen() ([]shim.Part, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read, p.create
}

// For a task that a caller may not see the same is done as for one that is unknown, also
// while the store has forgotten it.
func TestSameStepsForAStranger(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		store := &parts{Store: w.store}
		srv := serves(takes(time.Second), policy(shim.Always))
		g := w.gatewayOf("a", srv, func(o *engine.Options) { o.Store = store })
		task := begin(t, g, call())
		pass(3 * time.Second)
		get := func(p shim.Principal, upstream string, id shim.ID, lost bool) ([]shim.Part, int, shim.Task, error) {
			store.begin(lost)
			got, err := g.Get(t.Context(), p, upstream, id)
			steps, created := store.seen()
			return steps, created, got, err
		}
		unknown := shim.NewID()
		mallory := shim.Principal{Subject: "mallory"}
		for name, c := range map[string]struct {
			by       shim.Principal
			upstream string
			id       shim.ID
		}{
			"unknown": {mallory, "up", unknown}, "foreign": {mallory, "up", task.ID}, "elsewhere": {anyone, "other", task.ID},
		} {
			if steps, _, _, err := get(c.by, c.upstream, c.id, false); !errors.Is(err, shim.ErrNotFound) || !slices.Equal(steps, []shim.Part{shim.Summary}) {
				t.Errorf("%s: %v after reading %v", name, err, steps)
			}
		}
		for _, want := range [][]shim.Part{{shim.Summary, shim.WithOutcome}, {shim.WithOutcome}} {
			steps, _, got, err := get(anyone, "up", task.ID, false)
			if err != nil || got.Outcome == nil || string(got.Outcome.Result) != result || !slices.Equal(steps, want) {
				t.Errorf("its owner gets %+v, %v after reading %v, not %v", got, err, steps, want)
			}
		}
		if steps, created, _, err := get(mallory, "up", task.ID, true); !errors.Is(err, shim.ErrNotFound) || len(steps) != 1 || created > 0 {
			t.Errorf("while it is lost: %v after reading %v and creating %d", err, steps, created)
		}
		store.begin(false)
	})
}

// What a client asks of a silent store is over when the patience of its request is: all that
// it does together, and StoreTimeout where it has none.
func TestReadsOfASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.over("r1", &hooked{get: saysNothing}, elicits(time.Second, "a"), policy(shim.Auto))
		id := shim.NewID()
		request := patience.With(t.Context(), time.Second)
		for i, want := range []time.Duration{time.Second, 0} {
			begin := time.Now()
			_, err := s.Get(request, anyone, "up", id)
			if took := time.Since(begin); !errors.Is(err, shim.ErrUnavailable) || took != want {
				t.Errorf("read %d: %v after %v", i, err, took)
			}
		}
		begin := time.Now()
		_, err := s.Get(t.Context(), anyone, "up", id)
		if took := time.Since(begin); !errors.Is(err, shim.ErrUnavailable) || took != 3*time.Second {
			t.Errorf("without a request: %v after %v", err, took)
		}
	})
}

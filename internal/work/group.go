package shim

import (
	"context"
	"sync"
	"time"
)

// life is how long a Shim does what. The Shim owns it and ends it.
type life struct {
	// ctx is the life of everything that is not a request; it ends with
	// ErrDetached.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// writes is the life of outcomes on their way to the store, which outlasts ctx
	// by as long as Halt is given.
	writes    context.Context
	endWrites context.CancelFunc
	work      *group // runs and their pending writes
}

func newLife() *life {
	l := &life{work: newGroup()}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.writes, l.endWrites = context.WithCancel(context.Background())
	return l
}

// later runs f after d, unless the work is over by then.
func (l *life) later(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(max(0, d), func() { l.work.Do(f) })
}

// group counts goroutines. Unlike a sync.WaitGroup it may be added to while it is waited
// for, and the wait has a context. Refuse ends the admission of guests, which are calls of
// clients; Close ends that of everything.
type group struct {
	mu     sync.Mutex
	n      int
	full   bool // no more guests
	closed bool
	idle   chan struct{} // closed when n reaches 0; nil while nobody waits
}

func newGroup() *group { return &group{} }

// Go runs f on a goroutine of its own, if the group is open, and reports whether it
// is.
func (g *group) Go(f func()) bool {
	if !g.begin() {
		return false
	}
	go func() {
		defer g.end()
		f()
	}()
	return true
}

// Do runs f here, if the group is open.
func (g *group) Do(f func()) {
	if g.begin() {
		defer g.end()
		f()
	}
}

// admit begins the work of a guest, a caller from outside, until end.
func (g *group) admit() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full || g.closed {
		return false
	}
	g.n++
	return true
}

// Refuse lets no more guests in. Those that are in are waited for like all that runs.
func (g *group) Refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = true
}

func (g *group) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && g.n == 0 {
		return false // what still runs may begin more, and is waited for
	}
	g.n++
	return true
}

func (g *group) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Wait blocks until nothing runs, or ctx ends.
func (g *group) Wait(ctx context.Context) error {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close lets nothing more begin and waits for what runs.
func (g *group) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	return g.Wait(ctx)
}

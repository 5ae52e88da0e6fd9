package work

import (
	"context"
	"sync"
)

// Group counts what runs. Unlike a sync.WaitGroup it may be added to while it is waited
// for, and the wait has a context. Refuse ends the admission of guests, who come from outside,
// such as the calls of clients; Close ends that of everything. The zero Group is open and empty.
type Group struct {
	mu     sync.Mutex
	n      int
	full   bool // no more guests
	closed bool
	idle   chan struct{} // closed when n reaches 0; nil while nobody waits
}

// Go runs f on a goroutine of its own, if the group is open, and reports whether it
// is.
func (g *Group) Go(f func()) bool {
	if !g.begin() {
		return false
	}
	go func() {
		defer g.Leave()
		f()
	}()
	return true
}

// Do runs f here, if the group is open.
func (g *Group) Do(f func()) {
	if g.begin() {
		defer g.Leave()
		f()
	}
}

// Enter begins the work of a guest, until Leave. It reports false if no guest is let in any
// more.
func (g *Group) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full || g.closed {
		return false
	}
	g.n++
	return true
}

// Refuse lets no more guests in. Those that are in are waited for like all that runs.
func (g *Group) Refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = true
}

func (g *Group) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && g.n == 0 {
		return false // what still runs may begin more, and is waited for
	}
	g.n++
	return true
}

// Leave ends the work of a guest.
func (g *Group) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Wait blocks until nothing runs, or ctx ends.
func (g *Group) Wait(ctx context.Context) error {
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
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	return g.Wait(ctx)
}

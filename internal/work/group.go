package work

import (
	"context"
	"sync"
)

// Group counts running work. Unlike with a sync.WaitGroup, work may be added during a wait, and the
// wait has a context. Refuse ends the admission of guests, which come from outside, such as the
// calls of clients; Close ends that of everything. The zero Group is open and empty.
type Group struct {
	mu     sync.Mutex
	n      int
	full   bool // guests are refused
	closed bool
	idle   chan struct{} // closed when n reaches 0; nil without a waiter
}

// Go runs f on a goroutine of its own if the group is open, and reports whether it is.
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

// Enter begins the work of a guest, which Leave ends. It reports false if guests are refused.
func (g *Group) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full || g.closed {
		return false
	}
	g.n++
	return true
}

// Refuse refuses further guests. Wait waits for present ones as for all work.
func (g *Group) Refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = true
}

func (g *Group) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && g.n == 0 {
		return false // running work may begin more, and is waited for
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

// Wait blocks until all work has ended, or ctx ends.
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

// Close refuses new work and waits for the running work.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	return g.Wait(ctx)
}

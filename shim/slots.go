package shim

import (
	"context"
	"sync"
	"time"
)

// retryBusy is what a refused caller is told to wait: long enough to be polite,
// short against the calls that fill the queue.
const retryBusy = time.Second

// slots bounds how many calls are in flight, with a bounded queue in front
// (design.md 0.21). A nil *slots is unbounded. Waiters are served in order: Go
// queues the senders of a channel.
type slots struct {
	sem   chan struct{}
	queue int

	mu      sync.Mutex
	waiting int
}

func newSlots(n, queue int) *slots {
	if n <= 0 {
		return nil
	}
	return &slots{sem: make(chan struct{}, n), queue: queue}
}

// enqueue takes a place in the queue; forced does so even if it is full.
func (s *slots) enqueue(forced bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting >= s.queue && !forced {
		return false
	}
	s.waiting++
	return true
}

// length is how many wait.
func (s *slots) length() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

func (s *slots) dequeue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
}

// claim is what one call holds of some slots: nothing, a place in the queue, or a
// slot.
type claim struct {
	slots        *slots
	queued, held bool
}

// enter takes a slot or, if none is free, a place in the queue. A full queue is a
// *BusyError, unless forced.
func (c *claim) enter(what string, forced bool) error {
	if c.slots == nil {
		return nil
	}
	select {
	case c.slots.sem <- struct{}{}:
		c.held = true
		return nil
	default:
	}
	if !c.slots.enqueue(forced) {
		return &BusyError{Key: "concurrency", Limit: what, RetryAfter: retryBusy}
	}
	c.queued = true
	return nil
}

// wait turns a place in the queue into a slot. After an error nothing is held.
func (c *claim) wait(ctx context.Context) error {
	if !c.queued {
		return nil
	}
	defer c.slots.dequeue()
	c.queued = false
	select {
	case c.slots.sem <- struct{}{}:
		c.held = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *claim) drop() {
	switch {
	case c.queued:
		c.slots.dequeue()
	case c.held:
		<-c.slots.sem
	}
	c.queued, c.held = false, false
}

// What a refused caller is told is full.
const (
	busyTool   = "calls of this tool"
	busyServer = "calls to this server"
)

// ticket is a call's claim on the slots of its tool and of its server. The
// server's is only entered once the tool's is held: a call that waits for its tool
// must not keep those of other tools from the server.
type ticket struct {
	tool, server claim
	giveBack     func() // the reference to the tool's slots
}

// reserve claims both. A full queue is a *BusyError, unless forced: a task that
// was acknowledged is not refused any more.
func (s *server) reserve(tool string, p Policy, forced bool) (ticket, error) {
	toolSlots, giveBack := s.toolSlots(tool, p.Concurrency)
	t := ticket{tool: claim{slots: toolSlots}, server: claim{slots: s.slots}, giveBack: giveBack}
	err := t.tool.enter(busyTool, forced)
	if err == nil && !t.tool.queued {
		err = t.server.enter(busyServer, forced)
	}
	if err != nil {
		t.drop()
		return ticket{}, err
	}
	return t, nil
}

func (t *ticket) queued() bool { return t.tool.queued || t.server.queued }

// wait turns what is queued into slots. After an error nothing is held.
func (t *ticket) wait(ctx context.Context) error {
	waited := t.tool.queued
	err := t.tool.wait(ctx)
	if err == nil && waited {
		err = t.server.enter(busyServer, true) // its place in the queue was the tool's
	}
	if err == nil {
		err = t.server.wait(ctx)
	}
	if err != nil {
		t.drop()
	}
	return err
}

// drop gives back whatever is held.
func (t *ticket) drop() {
	t.server.drop()
	t.tool.drop()
	if t.giveBack != nil {
		t.giveBack()
		t.giveBack = nil
	}
}

// toolSlots are the slots of one tool, nil where it is unbounded. Names come from
// clients, so slots are kept only as long as some call refers to them.
func (s *server) toolSlots(tool string, n int) (*slots, func()) {
	if n <= 0 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.tools[tool]
	if e == nil {
		e = &toolEntry{slots: newSlots(n, s.Queue)}
		s.tools[tool] = e
	}
	e.refs++
	return e.slots, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.refs--; e.refs == 0 {
			delete(s.tools, tool)
		}
	}
}

// waiting is how many calls wait for a place, at the server or at a tool.
func (s *server) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.slots.length()
	for _, e := range s.tools {
		n += e.slots.length()
	}
	return n
}

// toolEntry is the slots of a tool and how many calls refer to them.
type toolEntry struct {
	slots *slots
	refs  int
}

package shim

import (
	"container/list"
	"context"
	"sync"
	"time"

	"taskgate/internal/work"
)

// retryBusy is the time that a refused caller is told to wait: long enough to be polite, short against
// the calls that fill the queue.
const retryBusy = time.Second

// slots bounds how many calls are in flight, with a bounded queue in front (design.md 0.21). Waiters
// are served in order. A nil *slots is unbounded.
type slots struct {
	queue int

	mu      sync.Mutex
	most    int // 0 = unbounded
	held    int
	places  int       // in the queue
	waiting list.List // of chan struct{}, which is closed with the slot; the next to be served is at the front
}

func newSlots(n, queue int) *slots { return &slots{most: n, queue: queue} }

// hasFree reports whether a slot is free. The lock is held.
func (s *slots) hasFree() bool { return s.most <= 0 || s.held < s.most }

// setLimit changes how many slots there are. Calls in flight keep theirs, even over the limit.
func (s *slots) setLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = n
	s.serveWaiting()
}

// serveWaiting gives free slots to waiters. The lock is held.
func (s *slots) serveWaiting() {
	for s.hasFree() && s.waiting.Len() > 0 {
		s.held++
		close(s.waiting.Remove(s.waiting.Front()).(chan struct{}))
	}
}

func (s *slots) releaseSlot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
	s.serveWaiting()
}

func (s *slots) inFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func (s *slots) queueLength() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places
}

// claim is one call's hold on some slots: nothing, a place in the queue, or a slot.
type claim struct {
	slots        *slots
	queued, held bool
}

// takePlaceOrQueue takes a slot or, if none is free, a place in the queue. A full queue is a
// *BusyError, unless forced.
func (c *claim) takePlaceOrQueue(what string, forced bool) error {
	s := c.slots
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.hasFree():
		s.held++
		c.held = true
	case s.places >= s.queue && !forced:
		return &BusyError{Key: "concurrency", Limit: what, RetryAfter: retryBusy}
	default:
		s.places++
		c.queued = true
	}
	return nil
}

// awaitPlace turns a place in the queue into a slot. After an error the claim is empty.
func (c *claim) awaitPlace(ctx context.Context) error {
	if !c.queued {
		return nil
	}
	s := c.slots
	s.mu.Lock()
	turn := make(chan struct{})
	place := s.waiting.PushBack(turn)
	s.serveWaiting()
	s.mu.Unlock()
	var err error
	select {
	case <-turn:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places--
	c.queued = false
	switch given := work.IsClosed(turn); {
	case err == nil:
		c.held = true
	case given: // the slot came together with the end of ctx
		s.held--
		s.serveWaiting()
	default:
		s.waiting.Remove(place)
	}
	return err
}

func (c *claim) dropClaim() {
	switch {
	case c.queued:
		c.slots.mu.Lock()
		c.slots.places--
		c.slots.mu.Unlock()
	case c.held:
		c.slots.releaseSlot()
	}
	c.queued, c.held = false, false
}

// The full limits, as a refused caller is told.
const (
	busyTool   = "calls of this tool"
	busyServer = "calls to this server"
)

// ticket is a call's claim on the slots of its tool and of its server. The server's is entered only
// once the tool's is held: a call that waits for its tool must not keep those of other tools from the
// server.
type ticket struct {
	tool, server claim
	giveBack     func() // the reference to the tool's slots
}

// reserveSlots claims both. A full queue is a *BusyError, unless forced: a task that was acknowledged
// is always admitted.
func (s *server) reserveSlots(tool string, p Policy, forced bool) (ticket, error) {
	toolSlots, giveBack := s.toolSlots(tool, p.Concurrency)
	t := ticket{tool: claim{slots: toolSlots}, server: claim{slots: s.slots}, giveBack: giveBack}
	err := t.tool.takePlaceOrQueue(busyTool, forced)
	if err == nil && !t.tool.queued {
		err = t.server.takePlaceOrQueue(busyServer, forced)
	}
	if err != nil {
		t.dropSlots()
		return ticket{}, err
	}
	return t, nil
}

func (t *ticket) isQueued() bool { return t.tool.queued || t.server.queued }

// awaitSlots turns queued claims into slots. After an error the ticket is empty.
func (t *ticket) awaitSlots(ctx context.Context) error {
	waited := t.tool.queued
	err := t.tool.awaitPlace(ctx)
	if err == nil && waited {
		err = t.server.takePlaceOrQueue(busyServer, true) // its place in the queue was the tool's
	}
	if err == nil {
		err = t.server.awaitPlace(ctx)
	}
	if err != nil {
		t.dropSlots()
	}
	return err
}

func (t *ticket) dropSlots() {
	t.server.dropClaim()
	t.tool.dropClaim()
	if t.giveBack != nil {
		t.giveBack()
		t.giveBack = nil
	}
}

// toolSlots returns the slots of one tool, nil if it is unbounded. Names come from clients, so slots
// are kept only while a call refers to them.
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

// limitTools changes how many calls of each tool may be in flight.
func (s *server) limitTools(policy func(tool string) Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for tool, e := range s.tools {
		e.slots.setLimit(policy(tool).Concurrency)
	}
}

// countWaiting returns how many calls wait for a slot, of the server or of a tool.
func (s *server) countWaiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.slots.queueLength()
	for _, e := range s.tools {
		n += e.slots.queueLength()
	}
	return n
}

// toolEntry has the slots of a tool and the number of calls that refer to them.
type toolEntry struct {
	slots *slots
	refs  int
}

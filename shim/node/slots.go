package node

import (
	"container/list"
	"context"
	"slices"
	"sync"

	"taskgate/internal/work"
	"taskgate/shim"
)

// slots bounds how many calls of a server, and of each of its tools, are in flight, with a bounded queue
// in front (design.md 0.21). A waiter is served once both its tool and the server have room, in order: a
// call that waits for its tool must not keep those of other tools from the server.
type Slots struct {
	mu      sync.Mutex
	queue   int // places in each queue
	server  bounded
	tools   map[string]*bounded // those that a policy bounds; names come from clients, so only while a call refers to them
	waiting list.List           // of *ticket; the next to be served is at the front
	offered []*Ticket           // whose calls give way, in the order in which they were offered
}

// bounded counts the calls of a server or of a tool. slots.mu guards it.
type bounded struct {
	most   int // in flight; 0 = unbounded
	held   int
	places int        // taken in the queue
	calls  int        // that refer to a tool
	says   shim.Hints // of a tool
}

// hasFree reports whether another call may be in flight. A nil *bounded is unbounded.
func (b *bounded) hasFree() bool { return b == nil || b.most <= 0 || b.held < b.most }

// setLimits changes how many calls may be in flight. Those in flight stay, even over the limit.
func (s *Slots) setLimits(most int, policy func(tool string, says shim.Hints) shim.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.most = most
	for tool, b := range s.tools {
		b.most = policy(tool, b.says).Concurrency
	}
	s.serveWaiting()
}

// serveWaiting gives free slots to waiters. The lock is held.
func (s *Slots) serveWaiting() {
	for e := s.waiting.Front(); e != nil && s.server.hasFree(); {
		t := e.Value.(*Ticket)
		next := e.Next()
		if t.tool.hasFree() {
			s.waiting.Remove(e)
			t.takeSlot()
			close(t.turn)
		}
		e = next
	}
}

// CountCalls returns how many calls are in flight, and how many wait.
func (s *Slots) CountCalls() (held, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting = s.server.places
	for _, b := range s.tools {
		waiting += b.places
	}
	return s.server.held, waiting
}

// The full limits, as a refused caller is told.
const (
	busyTool   = "calls of this tool"
	BusyServer = "calls to this server"
)

// Ticket is a call's claim on a slot: nothing, a place in a queue, or a slot. The zero ticket is nothing.
type Ticket struct {
	slots *Slots
	name  string        // of its tool
	tool  *bounded      // nil for a tool that is unbounded
	place *bounded      // in whose queue it has a place; nil for none
	held  bool          // slots.mu guards it while the call waits
	turn  chan struct{} // closed with the slot
	offer chan struct{} // gets a signal when another call needs the slot; nil for a call that keeps it
	share shim.Share    // of whoever the call is from, once it was offered
}

// ReserveSlot claims a slot. A full queue is a *BusyError, unless forced: a task that was acknowledged
// is always admitted.
func (s *Slots) ReserveSlot(r shim.Request, most int, forced bool) (Ticket, error) {
	tool := r.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	t := Ticket{slots: s, name: tool, tool: s.tools[tool]}
	if t.tool == nil && most > 0 {
		t.tool = &bounded{most: most, says: r.Says}
	}
	full, what := t.tool, busyTool
	if t.tool.hasFree() {
		full, what = &s.server, BusyServer
	}
	switch {
	case full.hasFree():
		t.takeSlot()
	case s.askOffered(full):
		t.place = full
		full.places++
	case full.places >= s.queue && !forced:
		return Ticket{}, &shim.BusyError{Key: "concurrency", Limit: what, RetryAfter: shim.RetryBusy}
	default:
		t.place = full
		full.places++
	}
	if t.tool != nil {
		t.tool.calls++
		s.tools[tool] = t.tool
	}
	return t, nil
}

// OfferSlot says whether the call gives up its slot for another call, which sends a signal to yield. The slot of the call
// that has been offered for longest goes first. A call without a slot offers none. share is that of its caller.
func (t *Ticket) OfferSlot(yield chan struct{}, offered bool, share shim.Share) {
	s := t.slots
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case offered && t.held && t.offer == nil:
		t.offer, t.share = yield, share
		s.offered = append(s.offered, t)
	case !offered:
		t.withdrawOffer()
	}
	for _, full := range []*bounded{t.tool, &s.server} { // other calls may wait already, also because this one has refused
		if full != nil && full.places > 0 && !full.hasFree() {
			s.askOffered(full)
		}
	}
}

// withdrawOffer has the call keep its slot. The lock is held.
func (t *Ticket) withdrawOffer() {
	if t.offer != nil {
		t.slots.offered = slices.DeleteFunc(t.slots.offered, func(o *Ticket) bool { return o == t })
		t.offer = nil
	}
}

// askOffered asks for a slot that is offered of the server, or of a tool, and reports whether there is one. The lock is
// held.
func (s *Slots) askOffered(full *bounded) bool {
	return s.askFirst(func(t *Ticket) bool { return full == &s.server || t.tool == full })
}

// AskOffered asks the call that has been offered for longest to end, of those whose share serves, and reports whether there
// is one.
func (s *Slots) AskOffered(serves func(shim.Share) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.askFirst(func(t *Ticket) bool { return serves(t.share) })
}

// askFirst asks the first offered call that serves. The lock is held.
func (s *Slots) askFirst(serves func(*Ticket) bool) bool {
	for i, t := range s.offered {
		if serves(t) {
			s.offered = slices.Delete(s.offered, i, i+1)
			work.Signal(t.offer)
			t.offer = nil
			return true
		}
	}
	return false
}

// takeSlot takes a slot that is free. The lock is held.
func (t *Ticket) takeSlot() {
	t.held = true
	t.slots.server.held++
	if t.tool != nil {
		t.tool.held++
	}
}

// IsQueued reports whether the call has still to wait for its turn.
func (t *Ticket) IsQueued() bool { return t.place != nil }

// AwaitSlot turns a place in the queue into a slot. After an error the ticket is empty.
func (t *Ticket) AwaitSlot(ctx context.Context) (err error) {
	s := t.slots
	s.mu.Lock()
	t.turn = make(chan struct{})
	e := s.waiting.PushBack(t)
	s.serveWaiting()
	s.mu.Unlock()
	select {
	case <-t.turn:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting.Remove(e)
	t.place.places--
	t.place = nil
	if err != nil {
		t.empty() // of the slot as well, if that came together with the end of ctx
	}
	return err
}

// DropSlot gives back what the ticket has.
func (t *Ticket) DropSlot() {
	if s := t.slots; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.empty()
	}
}

// empty is DropSlot with the lock held.
func (t *Ticket) empty() {
	s := t.slots
	if t.place != nil {
		t.place.places--
	}
	if t.held {
		s.server.held--
	}
	if b := t.tool; b != nil {
		if t.held {
			b.held--
		}
		if b.calls--; b.calls == 0 {
			delete(s.tools, t.name)
		}
	}
	t.withdrawOffer()
	*t = Ticket{}
	s.serveWaiting()
}

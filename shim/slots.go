package shim

import (
	"context"
	"sync/atomic"
	"time"
)

// retryBusy is what a refused caller is told to wait: long enough to be polite,
// short against the calls that fill the queue.
const retryBusy = time.Second

// slots bounds how many calls are in flight, with a bounded queue in front
// (design.md 0.21). A nil *slots is unbounded. Waiters are served in order: Go
// queues the senders of a channel.
type slots struct {
	sem     chan struct{}
	waiting atomic.Int64
	queue   int64
}

func newSlots(n, queue int) *slots {
	if n <= 0 {
		return nil
	}
	return &slots{sem: make(chan struct{}, n), queue: int64(queue)}
}

// reserve takes a slot or, if none is free, a place in the queue; queued says
// which. A full queue is a *BusyError.
func (s *slots) reserve(what string) (queued bool, err error) {
	if s == nil {
		return false, nil
	}
	select {
	case s.sem <- struct{}{}:
		return false, nil
	default:
	}
	if s.waiting.Add(1) > s.queue {
		s.waiting.Add(-1)
		return false, &BusyError{Limit: what, RetryAfter: retryBusy}
	}
	return true, nil
}

// wait turns a place in the queue into a slot. Either way the place is given up.
func (s *slots) wait(ctx context.Context) error {
	defer s.waiting.Add(-1)
	select {
	case s.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave gives up a place in the queue that was not waited for.
func (s *slots) leave() { s.waiting.Add(-1) }

func (s *slots) release() {
	if s != nil {
		<-s.sem
	}
}

// ticket is a call's claim on the slots of its tool and of its server.
type ticket struct {
	tool, server   *slots
	toolQ, serverQ bool // still queued there
}

// reserve claims both, in the order in which waitFor waits for them.
func (s *server) reserve(tool string, p Policy) (ticket, error) {
	t := ticket{tool: s.toolSlots(tool, p.Concurrency), server: s.slots}
	var err error
	if t.toolQ, err = t.tool.reserve("calls of this tool"); err != nil {
		return ticket{}, err
	}
	if t.serverQ, err = t.server.reserve("calls to this server"); err != nil {
		if t.toolQ {
			t.tool.leave()
		} else {
			t.tool.release()
		}
		return ticket{}, err
	}
	return t, nil
}

func (t *ticket) queued() bool { return t.toolQ || t.serverQ }

// wait turns what is queued into slots. After an error nothing is held.
func (t *ticket) wait(ctx context.Context) error {
	if t.toolQ {
		t.toolQ = false
		if err := t.tool.wait(ctx); err != nil {
			t.tool = nil
			t.drop()
			return err
		}
	}
	if t.serverQ {
		t.serverQ = false
		if err := t.server.wait(ctx); err != nil {
			t.server = nil
			t.drop()
			return err
		}
	}
	return nil
}

// drop gives back whatever is held.
func (t *ticket) drop() {
	if t.toolQ {
		t.tool.leave()
	} else {
		t.tool.release()
	}
	if t.serverQ {
		t.server.leave()
	} else {
		t.server.release()
	}
	*t = ticket{}
}

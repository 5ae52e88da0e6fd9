package legacy

import (
	"context"
	"time"

	"taskgate/shim"
)

// push is a stream of segments under way. The log of its name in the session is its
// mark: it says to all replicas that there is one, and its note on which stream.
type push struct {
	s      *session
	id     shim.ID
	name   string // of this push and no other: its stream's
	ctx    context.Context
	stop   context.CancelCauseFunc
	over   chan struct{} // closed when nothing more is sent
	marked bool          // the mark is its own
}

// pullSignal begins the signal that ends a push, wherever it is. It names the push and not
// its task: a signal may come late, and more than once. Who has sent it gets it too, and
// may push the same task by then.
const pullSignal = "pull "

// pullWait is how long the end of a push is waited for.
const pullWait = 5 * time.Second

// pushName names the log that marks the push of a task.
func pushName(id shim.ID) string { return "push-" + string(id) }

// openPush begins the push of a task on a stream, until it is ended or within ends. ctx
// is for the store.
func (s *session) openPush(ctx, within context.Context, id shim.ID, stream string) (*push, error) {
	p := s.newPush(within, id, stream)
	if _, err := s.table.store.Open(ctx, s.id, pushName(id), []byte(stream)); err != nil {
		p.end()
		return nil, shim.ErrUnavailable
	}
	p.marked = true
	return p, nil
}

// newPush is a push that has no mark yet. It can be ended from now on.
func (s *session) newPush(within context.Context, id shim.ID, stream string) *push {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.pushes[id]; before != nil {
		before.stop(errCut) // two began at once
	}
	p := &push{s: s, id: id, name: stream, over: make(chan struct{})}
	p.ctx, p.stop = context.WithCancelCause(within)
	if s.pushes == nil {
		s.pushes = make(map[shim.ID]*push)
	}
	s.pushes[id] = p
	return p
}

// end is to be called when nothing more is sent.
func (p *push) end() {
	p.stop(nil)
	p.s.mu.Lock()
	mine := p.s.pushes[p.id] == p
	if mine {
		delete(p.s.pushes, p.id)
	}
	p.s.mu.Unlock()
	defer close(p.over) // who waits for it may mark the next one
	if mine && p.marked {
		ctx, cancel := p.s.table.within(context.Background())
		defer cancel()
		_ = p.s.table.store.Finish(ctx, p.s.id, pushName(p.id), false) // or who pulls has it done
	}
}

// endPush ends a push that a client of another replica asked to end.
func (s *session) endPush(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pushes {
		if p.name == name {
			p.stop(errCut)
		}
	}
}

// cut ends the push of a task on this replica.
func (s *session) cut(id shim.ID) *push {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pushes[id]
	if p != nil {
		p.stop(errCut)
	}
	return p
}

// pull ends the push of a task, on whichever replica, before its client gets segments
// in another way (A10).
func (s *session) pull(ctx context.Context, id shim.ID) error {
	ctx, cancel := context.WithTimeout(ctx, pullWait)
	defer cancel()
	if p := s.cut(id); p != nil {
		select {
		case <-p.over:
			return nil
		case <-ctx.Done():
			return &shim.BusyError{Limit: "readers of this task's stream", RetryAfter: time.Second}
		}
	}
	name, err := s.pushed(ctx, id)
	if err != nil || name == "" {
		return err
	}
	wake, stop := s.watch(ctx)
	defer stop()
	for asked := ""; name != ""; {
		if name != asked {
			if err := s.table.store.Signal(ctx, s.id, pullSignal+name); err != nil {
				return shim.ErrUnavailable
			}
			asked = name
		}
		// An event of the log wakes it, of the replica that pushes; after pullWait it removes the mark itself.
		select {
		case <-wake:
		case <-ctx.Done(): // its replica has forgotten to say that it is over
			return s.unmark(id)
		}
		name, err = s.pushed(ctx, id)
		switch {
		case err != nil && ctx.Err() != nil:
			return s.unmark(id)
		case err != nil:
			return err
		}
	}
	return nil
}

// unmark ends the push of a task that another replica has marked.
func (s *session) unmark(id shim.ID) error {
	ctx, cancel := s.table.within(context.Background())
	defer cancel()
	if _, err := s.table.store.Open(ctx, s.id, pushName(id), nil); err != nil {
		return shim.ErrUnavailable
	}
	if err := s.table.store.Finish(ctx, s.id, pushName(id), false); err != nil {
		return shim.ErrUnavailable
	}
	return nil
}

// pushed is the name of the push of a task, if a replica that lives pushes it. One that
// has lost its replica is over then, as is its stream: if the replica was only slow, it
// sends nothing more on that.
func (s *session) pushed(ctx context.Context, id shim.ID) (name string, err error) {
	for {
		state, note, err := s.table.stateOf(ctx, s.id, pushName(id))
		switch {
		case err != nil:
			return "", shim.ErrUnavailable
		case state == "open":
			return string(note), nil
		case state != "lost":
			return "", nil
		}
		for _, stream := range []string{string(note), pushName(id)} {
			if _, err := s.table.store.Bury(ctx, s.id, stream, noLastWords); err != nil {
				return "", shim.ErrUnavailable
			}
		}
		_ = s.table.store.Signal(ctx, s.id, pullSignal+string(note)) // for a replica that is back already
	}
}

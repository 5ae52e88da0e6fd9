package gateway

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
	left   bool          // for another replica, with the mark
}

// pullWord begins the word that ends a push, wherever it is. It names the push and not
// its task: a word may come late, and more than once, and who left it gets it too, and
// may push the same task by then.
const pullWord = "pull "

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
	return s.addPush(within, id, stream)
}

// onlyPush is newPush where this replica does not push the task, and else nil.
func (s *session) onlyPush(within context.Context, id shim.ID, stream string) *push {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pushes[id] != nil {
		return nil
	}
	return s.addPush(within, id, stream)
}

// addPush notes a push. s.mu is held.
func (s *session) addPush(within context.Context, id shim.ID, stream string) *push {
	p := &push{s: s, id: id, name: stream, over: make(chan struct{})}
	p.ctx, p.stop = context.WithCancelCause(within)
	if s.pushes == nil {
		s.pushes = make(map[shim.ID]*push)
	}
	s.pushes[id] = p
	return p
}

// leave has another replica go on with the push, if the client can resume its stream.
func (p *push) leave(q *legacyRequest) {
	if q.resumes() {
		p.left = true
		q.log.left.Store(true)
	}
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
	switch {
	case !mine || !p.marked:
	case p.left:
		ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
		defer cancel()
		_ = p.s.table.store.Leave(ctx, p.s.id, pushName(p.id)) // or it is found out when this replica is gone
	default:
		p.s.unmark(p.id)
	}
}

// unmark tells all replicas that a task is not pushed any more.
func (s *session) unmark(id shim.ID) {
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	_ = s.table.store.Finish(ctx, s.id, pushName(id)) // or who pulls has it done
}

// heedPull ends a push that a client of another replica asked to end.
func (s *session) heedPull(name string) {
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
			if err := s.table.store.Signal(ctx, s.id, pullWord+name); err != nil {
				return shim.ErrUnavailable
			}
			asked = name
		}
		select {
		case <-wake:
		case <-ctx.Done(): // its replica has forgotten to say that it is over
			s.unmark(id)
			return nil
		}
		if name, err = s.pushed(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// pushed is the name of the push of a task, if a replica that lives pushes it. One that
// has lost its replica is over then.
func (s *session) pushed(ctx context.Context, id shim.ID) (name string, err error) {
	state, note, err := s.table.stateOf(ctx, s.id, pushName(id))
	if err == nil && state == "lost" {
		var over bool
		if over, err = s.bury(ctx, id, note); over {
			return "", err
		}
		state = "open" // another was first, to go on with it or to end it
	}
	switch {
	case err != nil:
		return "", shim.ErrUnavailable
	case state != "open":
		return "", nil
	}
	return string(note), nil
}

// bury ends a push that has lost its replica, unless another one was first: none goes on
// with it (takeOver), nor does its own if that was only thought lost.
func (s *session) bury(ctx context.Context, id shim.ID, note []byte) (over bool, err error) {
	store, stream := s.table.store, string(note)
	over, _, err = store.Take(ctx, s.id, pushName(id), note)
	if err != nil || !over {
		return false, err
	}
	if taken, _, err := store.Take(ctx, s.id, stream, []byte("[]")); err == nil && taken {
		_ = store.Finish(ctx, s.id, stream) // or it is, with this replica
	}
	_ = store.Signal(ctx, s.id, pullWord+stream) // for a replica that is back already
	s.unmark(id)
	return true, nil
}

package wire

import (
	"context"
	"sync"

	"taskgate/shim"
)

// Streams are the responses that stay open until somebody ends them:
// subscriptions/listen and legacy GET streams. They would keep
// http.Server.Shutdown waiting for ever, so the gateway ends them itself.
type Streams struct {
	bound *shim.Bound // those that clients open

	mu     sync.Mutex
	closed bool
	open   map[*context.CancelCauseFunc]struct{}
	empty  chan struct{} // closed once closed is set and open is empty
}

// NewStreams makes a set with no streams in it. bound is how many clients may open.
func NewStreams(bound *shim.Bound) *Streams {
	return &Streams{bound: bound, open: make(map[*context.CancelCauseFunc]struct{}), empty: make(chan struct{})}
}

// Open is Enter for a stream that a client has opened, if there is room for one more of this
// owner; else the error is a *Failure.
func (s *Streams) Open(parent context.Context, owner string) (ctx context.Context, done func(), err error) {
	if err := s.bound.Enter(owner); err != nil {
		return parent, func() {}, TurnAway(err)
	}
	ctx, leave, err := s.Enter(parent)
	return ctx, sync.OnceFunc(func() { leave(); s.bound.Leave(owner) }), err
}

// Enter registers a stream. Its context ends with the cause shim.ErrDraining when
// the gateway closes; the handler then ends the stream gracefully and calls done.
// A gateway that is closing takes no new streams: shim.ErrRefused.
func (s *Streams) Enter(parent context.Context) (ctx context.Context, done func(), err error) {
	ctx, cancel := context.WithCancelCause(parent)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel(shim.ErrDraining)
		return ctx, func() {}, shim.ErrRefused
	}
	key := &cancel
	s.open[key] = struct{}{}
	return ctx, func() { cancel(nil); s.leave(key) }, nil
}

// Count is how many streams clients have open.
func (s *Streams) Count() int { return s.bound.Count() }

func (s *Streams) leave(key *context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.open[key]; !ok {
		return
	}
	delete(s.open, key)
	if s.closed && len(s.open) == 0 {
		close(s.empty)
	}
}

// Close ends all streams and waits until their handlers have called done, or ctx ends.
func (s *Streams) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		if len(s.open) == 0 {
			close(s.empty)
		}
		for cancel := range s.open {
			(*cancel)(shim.ErrDraining)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

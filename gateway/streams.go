package gateway

import (
	"context"
	"sync"

	"taskgate/shim"
)

// streams are the responses that stay open until somebody ends them:
// subscriptions/listen and legacy GET streams. They would keep
// http.Server.Shutdown waiting for ever, so the gateway ends them itself.
type streams struct {
	mu     sync.Mutex
	closed bool
	open   map[*context.CancelCauseFunc]struct{}
	empty  chan struct{} // closed once closed is set and open is empty
}

func newStreams() *streams {
	return &streams{open: make(map[*context.CancelCauseFunc]struct{}), empty: make(chan struct{})}
}

// enter registers a stream. Its context ends with the cause shim.ErrDraining when
// the gateway closes; the handler then ends the stream gracefully and calls done.
// A gateway that is closing takes no new streams: shim.ErrDraining.
func (s *streams) enter(parent context.Context) (ctx context.Context, done func(), err error) {
	ctx, cancel := context.WithCancelCause(parent)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel(shim.ErrDraining)
		return ctx, func() {}, shim.ErrDraining
	}
	key := &cancel
	s.open[key] = struct{}{}
	return ctx, func() { cancel(nil); s.leave(key) }, nil
}

func (s *streams) leave(key *context.CancelCauseFunc) {
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

func (s *streams) close(ctx context.Context) error {
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

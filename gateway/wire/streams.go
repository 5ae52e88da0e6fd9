package wire

import (
	"context"
	"sync"

	"taskgate/internal/work"
	"taskgate/shim"
)

// Streams are the responses that stay open until one side ends them: subscriptions/listen and
// legacy GET streams. The gateway ends them itself: http.Server.Shutdown would wait for them for
// ever.
type Streams struct {
	bound   *shim.Bound // those that clients open
	running work.Group
	life    context.Context // ends when the gateway closes
	end     context.CancelFunc
}

// NewStreams makes an empty set. bound limits the streams that clients open.
func NewStreams(bound *shim.Bound) *Streams {
	s := &Streams{bound: bound}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Open is Enter for a stream that a client has opened, if its share has room for one more; else
// the error is a *Failure.
func (s *Streams) Open(parent context.Context, share shim.Share) (ctx context.Context, done func(), err error) {
	if err := s.bound.Enter(share); err != nil {
		return parent, func() {}, TurnAway(err)
	}
	ctx, leave, err := s.Enter(parent)
	return ctx, sync.OnceFunc(func() { leave(); s.bound.Leave(share) }), err
}

// Enter registers a stream. Its context ends with the cause shim.ErrDraining when the gateway
// closes; the handler then ends the stream gracefully and calls done. A gateway that is closing
// returns shim.ErrRefused.
func (s *Streams) Enter(parent context.Context) (ctx context.Context, done func(), err error) {
	if !s.running.Enter() {
		return parent, func() {}, shim.ErrRefused
	}
	ctx, cancel := context.WithCancelCause(parent)
	unlink := context.AfterFunc(s.life, func() { cancel(shim.ErrDraining) })
	return ctx, sync.OnceFunc(func() { unlink(); cancel(nil); s.running.Leave() }), nil
}

// Limit changes the limits of the streams that clients open, as that of the bound does.
func (s *Streams) Limit(most, mostPerOwner int, halved bool) {
	s.bound.Limit(most, mostPerOwner, halved)
}

// Usage returns how full the limit of these streams is, from 0 to 1.
func (s *Streams) Usage() float64 { return s.bound.Usage() }

// Shares returns how many streams each share has open.
func (s *Streams) Shares() map[shim.Share]int { return s.bound.Shares() }

// Count is the number of streams that clients have open.
func (s *Streams) Count() int { return s.bound.Count() }

// Close ends all streams and waits until their handlers have called done, or ctx ends.
func (s *Streams) Close(ctx context.Context) error {
	s.running.Refuse()
	s.end()
	return s.running.Wait(ctx)
}

package shim

import (
	"context"
	"errors"
	"sync"
	"time"
)

// beatsPerExpiry is how often a heartbeat is renewed within its expiry: two may be
// lost.
const beatsPerExpiry = 3

// Run keeps this replica alive in the store, follows what others do to its tasks,
// and adopts the tasks of replicas that are gone. It returns when ctx ends.
func (s *Shim) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.keep(ctx) })
	loops.Go(func() { s.tend(ctx) })
	loops.Go(func() { s.hear(ctx) })
	loops.Wait()
	return context.Cause(ctx)
}

// keep beats this replica's heart, and does nothing else: a beat waits for no other work.
func (s *Shim) keep(ctx context.Context) {
	ticker := time.NewTicker(s.heartbeat / beatsPerExpiry)
	defer ticker.Stop()
	for {
		now := time.Now()
		err := s.beat(ctx)
		s.pulse.beat(now, err == nil, s.heartbeat)
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrDraining) {
			s.log.Warn("no heartbeat: the store is unavailable", "err", err)
		}
		signal(s.ticked)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Shim) beat(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, s.heartbeat/beatsPerExpiry, ErrUnavailable)
	defer stop()
	s.beats.RLock()
	defer s.beats.RUnlock()
	if s.gone {
		return ErrDraining
	}
	begin := time.Now()
	err := s.store.Beat(ctx, s.replica, s.heartbeat)
	if err == nil {
		s.mu.Lock()
		s.beaten = begin
		s.mu.Unlock()
	}
	return err
}

// goodbye says that this replica's tasks may be adopted, once.
func (s *Shim) goodbye(ctx context.Context) error {
	s.beats.Lock()
	defer s.beats.Unlock()
	if s.gone {
		return nil
	}
	err := s.store.Beat(ctx, s.replica, 0)
	s.gone = err == nil
	return err
}

// alive sees to it that the store takes this replica for alive before it gets a
// task of it. One that was silent for too long, or has not beaten yet, may be
// unknown there; if it then died before its next beat nobody would miss it, and
// nobody take over the task.
func (s *Shim) alive(ctx context.Context) error {
	s.mu.Lock()
	fresh := !s.beaten.IsZero() && time.Since(s.beaten) < s.heartbeat
	s.mu.Unlock()
	if fresh {
		return nil
	}
	return s.beat(ctx)
}

// pulse is the recent history of a heartbeat. A replica may adopt only after it has itself
// beaten without a miss for one whole expiry, so that an outage of the store, which
// silences everybody, orphans nobody (design.md 0.5).
type pulse struct {
	mu     sync.Mutex
	since  time.Time // beating without a miss
	last   time.Time
	missed bool // the latest beat was
}

// beat records one beat.
func (p *pulse) beat(now time.Time, ok bool, expiry time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	after := p.missed
	if p.missed = !ok; p.missed {
		return
	}
	// However short an outage was, others may have had their turn to beat just before
	// it and have expired: the count begins anew.
	if after || p.last.IsZero() || now.Sub(p.last) >= expiry {
		p.since = now
	}
	p.last = now
}

// steady reports whether the heart has beaten without a miss for a whole expiry, by
// what is known now.
func (p *pulse) steady(now time.Time, expiry time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.missed && !p.last.IsZero() && now.Sub(p.last) < expiry && p.last.Sub(p.since) >= expiry
}

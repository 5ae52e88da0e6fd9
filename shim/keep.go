package shim

import (
	"context"
	"errors"
	"maps"
	"slices"
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
	loops.Go(func() { s.follow(ctx) })
	loops.Wait()
	return context.Cause(ctx)
}

// keep beats this replica's heart. It may adopt only after it has itself beaten
// without a miss for one whole expiry, so that an outage of the store, which
// silences everybody, orphans nobody (design.md 0.5).
func (s *Shim) keep(ctx context.Context) {
	ticker := time.NewTicker(s.heartbeat / beatsPerExpiry)
	defer ticker.Stop()
	var p pulse
	for {
		now := time.Now()
		err := s.beat(ctx)
		if p.beat(now, err == nil, s.heartbeat) && !s.draining.Load() {
			s.adopt(ctx)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrDraining) {
			s.log.Warn("no heartbeat: the store is unavailable", "err", err)
		}
		for due := false; !due; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				due = true
			case <-s.orphaned:
				if p.steady(time.Now(), s.heartbeat) && !s.draining.Load() {
					s.adopt(ctx)
				}
			}
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

// pulse is the recent history of a heartbeat.
type pulse struct {
	since  time.Time // beating without a miss
	last   time.Time
	missed bool // the latest beat was
}

// beat records one beat and reports whether the heart has now beaten without a
// miss for a whole expiry.
func (p *pulse) beat(now time.Time, ok bool, expiry time.Duration) bool {
	after := p.missed
	if p.missed = !ok; p.missed {
		return false
	}
	// However short an outage was, others may have had their turn to beat just before
	// it and have expired: the count begins anew.
	if after || p.last.IsZero() || now.Sub(p.last) >= expiry {
		p.since = now
	}
	p.last = now
	return p.steady(now, expiry)
}

// steady reports whether the heart has beaten without a miss for a whole expiry, by
// what is known now.
func (p *pulse) steady(now time.Time, expiry time.Duration) bool {
	return !p.missed && !p.last.IsZero() && now.Sub(p.last) < expiry && p.last.Sub(p.since) >= expiry
}

// follow hears what others do to this replica's tasks, cancel them or adopt them, and
// who leaves tasks behind.
func (s *Shim) follow(ctx context.Context) {
	for e, err := range s.store.Inbox(ctx, s.replica) {
		switch {
		case err != nil:
			if ctx.Err() == nil {
				s.log.Error("this replica no longer hears of its tasks", "err", err)
			}
			return
		case e.Synced:
			for _, id := range s.running() {
				s.review(ctx, id)
			}
			for _, id := range s.unsettled() {
				s.assure(ctx, id)
			}
			s.seekOrphans()
		case e.Goodbye:
			s.seekOrphans()
		default:
			s.review(ctx, e.ID)
		}
	}
}

// seekOrphans has keep look for orphans without waiting for its next turn.
func (s *Shim) seekOrphans() {
	select {
	case s.orphaned <- struct{}{}:
	default: // it will look anyway
	}
}

func (s *Shim) running() []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.runs))
}

// review reads a task that this replica runs, and stops the run if somebody has
// ended the task or taken it over. Answers to its questions wake whoever waits for
// them.
func (s *Shim) review(ctx context.Context, id ID) {
	s.mu.Lock()
	r := s.runs[id]
	s.mu.Unlock()
	if r == nil {
		return
	}
	ctx, stop := context.WithTimeoutCause(ctx, opTimeout, ErrUnavailable)
	defer stop()
	t, err := s.store.Get(ctx, id, Summary)
	switch {
	case err != nil:
		return // the next write of the run tells
	case t.Status.Final():
		r.cancel(errTaskCancelled)
	default:
		r.notice(t)
	}
}

// notices are the states of a run's record that others have brought about and that the
// run has not looked at yet; of several, only the newest is kept.
type notices struct {
	mu      sync.Mutex
	newest  *Task
	looking bool
}

// notice hands a state to the run without waiting for it: the run may be writing to a
// slow client, and the inbox is that of all tasks of this replica.
func (r *run) notice(t Task) {
	n := &r.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.newest == nil || t.Version >= n.newest.Version {
		n.newest = &t
	}
	if !n.looking {
		n.looking = r.s.work.Go(r.lookAtNotices)
	}
}

func (r *run) lookAtNotices() {
	for {
		r.notices.mu.Lock()
		t := r.notices.newest
		r.notices.newest = nil
		r.notices.looking = t != nil
		r.notices.mu.Unlock()
		switch {
		case t == nil:
			return
		case t.Lease.Adoption > r.lease().Adoption:
			r.cancel(ErrDetached)
		default:
			r.heard(*t)
		}
	}
}

package shim

import "context"

// A replica compares, part by part, the tasks that the store has it run with those that it
// runs. So it learns of a change whose event was lost, and of a task that is its own by
// the record and that nobody runs: an adoption or a creation that the store made when its
// caller had given up, or an end that the store has lost. With one part at each beat, all
// parts have their turn in Parts/beatsPerExpiry expiries of the heartbeat (design.md 0.4).

// tend adopts the tasks of replicas that are gone, and audits this one's own. It is apart
// from the heartbeat, which sets its pace, because both may wait for the store for long.
func (s *Shim) tend(ctx context.Context) {
	for part := 0; ; {
		n := 0
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-s.ticked:
			n = 1
		}
		s.adopt(ctx)
		for n = max(n, s.partsDue()); n > 0; n-- {
			told := s.audit(ctx, part)
			part = (part + 1) % Parts
			if !told {
				break // the others go on at the next beat, and this one last
			}
		}
		s.partsLeft(n)
	}
}

// distrust has all parts audited at once, with what was seen before counting for nothing:
// events may have been lost, and a store that went back may count versions again.
func (s *Shim) distrust() {
	s.epoch.Add(1)
	s.partsLeft(Parts)
}

// partsDue takes how many parts are to be audited without waiting for their turn.
func (s *Shim) partsDue() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.due
	s.due = 0
	return n
}

// partsLeft notes parts that could not be audited.
func (s *Shim) partsLeft(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = max(s.due, n)
}

// audit compares one part and reports whether the store has told all of it.
func (s *Shim) audit(ctx context.Context, part int) bool {
	mine, epoch := s.runsOf(part), s.epoch.Load()
	var held []Held
	err := s.within(ctx, func(ctx context.Context) (err error) {
		held, err = s.store.Running(ctx, s.replica, part)
		return err
	})
	for _, h := range held {
		r := mine[h.ID]
		delete(mine, h.ID)
		switch {
		case r == nil:
			s.reclaim(ctx, h.ID)
		case !r.upToDate(h.Version, epoch):
			r.review(h.Version)
		}
	}
	if err != nil {
		return false
	}
	for _, r := range mine { // ended, adopted or forgotten
		r.review(0)
	}
	return true
}

// runsOf are the runs whose tasks are in a part.
func (s *Shim) runsOf(part int) map[ID]*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := make(map[ID]*run)
	for id, r := range s.runs {
		if id.Part() == part {
			mine[id] = r
		}
	}
	return mine
}

// reclaim goes on with a task that is this replica's by its record, if it has no run.
func (s *Shim) reclaim(ctx context.Context, id ID) {
	if s.known(id) {
		return
	}
	var t Task
	err := s.within(ctx, func(ctx context.Context) (err error) {
		t, err = s.store.Get(ctx, id, WithRun)
		return err
	})
	if err != nil || t.Status.Final() || t.Lease.Replica != s.replica || s.draining.Load() {
		return // the next audit finds it again, if it is still to be found
	}
	s.log.Warn("a task of this replica had no run", "task", id, "tool", t.Tool)
	r := s.adoptedRun(t)
	// The record may be older than what became of the call: that it was not sent, or that
	// a round was open, proves nothing any more.
	r.firm, r.round = false, nil
	s.goOnWith(r, t)
}

// known reports whether there is a run of a task, or will be, or its end is still held.
func (s *Shim) known(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, coming := s.coming[id]
	_, held := s.held[id]
	return s.runs[id] != nil || coming || held
}

// expect notes that a task is about to become this replica's.
func (s *Shim) expect(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.coming[id]; !ok {
		s.coming[id] = false
	}
}

// unexpect takes back what expect noted, where no run has come of it.
func (s *Shim) unexpect(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.coming, id)
}

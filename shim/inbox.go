package shim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// hear takes what others do to this replica's tasks, cancel them, answer them or adopt
// them, and who leaves tasks behind. An event only has a task read again: the inbox is
// that of all tasks, and waits for no read.
func (s *Shim) hear(ctx context.Context) {
	for e, err := range s.store.Inbox(ctx, s.replica) {
		switch {
		case err != nil:
			if ctx.Err() == nil {
				s.log.Error("this replica no longer hears of its tasks", "err", err)
			}
			return
		case e.Synced:
			s.distrust()
			for _, id := range s.unsettled() {
				s.work.Go(func() { s.assure(s.writes, id) })
			}
			signal(s.wake)
		case e.Goodbye:
			signal(s.wake)
		default:
			s.changed(e.ID, e.Version)
		}
	}
}

// changed has the run of a task read its record. An event of a task that is just becoming
// this replica's is kept until there is a run.
func (s *Shim) changed(id ID, version int64) {
	s.mu.Lock()
	r := s.runs[id]
	if _, coming := s.coming[id]; coming && r == nil {
		s.coming[id] = true
	}
	s.mu.Unlock()
	if r != nil {
		r.review(version)
	}
}

// reading is what a run knows of reading its own record. Its lock is held for a moment
// only, other than that of the run, which may be writing to a slow client.
type reading struct {
	mu      sync.Mutex
	stale   bool  // the record may have changed since it was last read
	active  bool  // a goroutine reads it
	version int64 // of the newest change by others that was heard of; 0 for none
	seen    int64 // the last such version that was read
	epoch   int64 // Shim.epoch when that read began, or the creation of the record

	// turn counts the states that came in, from a read or with the reply to a write. A
	// read that was overtaken by another state may be older than that, and is repeated. It
	// is guarded by run.mu.
	turn int64
}

// review has the record read, and again for as long as that fails. version is that of the
// change by others that was heard of.
func (r *run) review(version int64) {
	r.reading.mu.Lock()
	r.reading.version = version
	r.reading.mu.Unlock()
	r.reread()
}

// reread has the record read.
func (r *run) reread() {
	r.reading.mu.Lock()
	defer r.reading.mu.Unlock()
	r.reading.stale = true
	if !r.reading.active {
		r.reading.active = r.s.work.Go(r.read)
	}
}

// upToDate reports whether the last change by others, which had this version in an epoch,
// was read.
func (r *run) upToDate(version, epoch int64) bool {
	r.reading.mu.Lock()
	defer r.reading.mu.Unlock()
	return r.reading.seen == version && r.reading.epoch == epoch
}

// due takes the version up to which the record is to be read, or reports that there is
// nothing to read.
func (d *reading) due(over bool) (version int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active = d.stale && !over
	d.stale = false
	return d.version, d.active
}

// done notes what was read.
func (d *reading) done(version, epoch int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen, d.epoch = version, epoch
}

// read reads the record until nothing is known to have changed since.
func (r *run) read() {
	for pause := retryFirst; ; {
		version, ok := r.reading.due(r.closed())
		if !ok {
			return
		}
		epoch := r.s.epoch.Load()
		r.mu.Lock()
		turn, lease := r.reading.turn, r.task.lease
		r.mu.Unlock()

		ctx, stop := context.WithTimeoutCause(r.s.writes, r.s.storeTimeout, ErrUnavailable)
		t, err := r.s.store.Get(ctx, r.task.id, Summary)
		stop()
		switch {
		case err == nil:
			pause = retryFirst
			if r.saw(t, turn, lease) {
				r.reading.done(version, epoch)
			} else {
				r.reread()
			}
		case errors.Is(err, ErrNotFound):
			if r.restored() {
				r.reread()
			}
		default:
			r.reread()
			r.rest(pause/2 + rand.N(pause))
			pause = min(2*pause, retryMost)
		}
	}
}

// restored has the record written again that the store has forgotten, and reports whether
// there is one then. Where that fails, the next write or audit tries again.
func (r *run) restored() bool {
	ctx, stop := context.WithTimeoutCause(r.s.writes, r.s.storeTimeout, ErrUnavailable)
	defer stop()
	return r.restore(ctx) == nil
}

// closed reports whether nothing more is written of the task here.
func (r *run) closed() bool {
	select {
	case <-r.task.over:
		return true
	case <-r.s.writes.Done():
		return true
	default:
		return false
	}
}

// rest pauses, but not for longer than there is a run.
func (r *run) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.task.over:
	case <-r.s.writes.Done():
	}
}

// saw takes the state that a read has found which began at this turn, under this lease. It
// reports false if another state has overtaken it.
func (r *run) saw(t Task, turn int64, lease Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reading.turn != turn || r.task.lease != lease {
		return false
	}
	r.reading.turn++
	switch {
	case t.Status.Final():
		r.cancel(errTaskCancelled)
	case t.Lease != lease:
		r.cancel(ErrDetached)
	default:
		r.heard(t)
	}
	return true
}

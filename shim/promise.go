package shim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// This file keeps what a running task promises its readers: a fresh status
// message, and a time to live that does not run out (design.md 0.14).

// leastFold bounds how often a status message is written for a task whose policy
// names no poll interval.
const leastFold = time.Second

// foldSpread is the part of the interval by which a pause is longer at most.
const foldSpread = 4

// leastRaise is the least that is left of a TTL after it was raised: a task that
// is kept for a moment only must not be written every other moment.
const leastRaise = time.Minute

// describe is the status message that a progress notification makes: its own
// message, else its numbers (protocol.md 6.4.2).
func describe(p Progress) string {
	return clip(cmp.Or(p.Message, numbers(p)))
}

// fold has the newest message written to the store, at most once per poll
// interval: more often nobody looks. What changes during a write, and what could not be
// written, goes out with the next one. r.mu is held.
func (r *run) fold() {
	if r.task == nil || r.task.folding || r.ended {
		return
	}
	r.task.folding = true
	r.s.later(time.Until(r.task.refold), r.writeMessage)
}

// folded notes that a message goes out, and when the next one may. The pause is a little
// different from time to time: many tasks that begin together would otherwise go on to
// be written together, once per interval. r.mu is held.
func (r *run) folded() {
	every := r.leastFold()
	r.task.refold = time.Now().Add(every + rand.N(every/foldSpread))
}

// leastFold is the least time between two messages of this run.
func (r *run) leastFold() time.Duration { return cmp.Or(r.policy.PollInterval, leastFold) }

// later runs f after d, unless the shim has been closed by then.
func (s *Shim) later(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(max(0, d), func() { s.work.Do(f) })
}

// writeMessage writes what fold has collected. An unavailable store is not waited for
// longer than for one attempt: by the next one there may be more to say.
func (r *run) writeMessage() {
	r.mu.Lock()
	ended := r.ended
	r.task.folding = !ended
	r.mu.Unlock()
	if ended {
		return
	}
	var wrote Change
	ctx, stop := context.WithTimeoutCause(r.s.ctx, opTimeout, ErrUnavailable)
	defer stop()
	_, err := r.apply(ctx, func() Change {
		wrote = r.said()
		return wrote
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.task.folding = false
	r.folded()
	switch {
	case r.ended, errors.Is(err, ErrFinal), errors.Is(err, ErrLeaseLost), errors.Is(err, ErrNotFound):
		return
	case err != nil:
		r.moved = r.moved || wrote.Checkpoint != nil
		r.fold()
	case wrote.StatusMessage == nil, r.message != *wrote.StatusMessage, !bytes.Equal(r.progress, wrote.Progress.Params), r.moved && r.batcher == nil:
		r.fold()
	}
}

// said is what the server has said last, as a change of the record.
func (r *run) said() Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	message := r.message
	c := Change{Op: r.s.op(), StatusMessage: &message}
	if r.progress != nil {
		c.Progress = TaskProgress{Token: r.call.ProgressToken, Params: r.progress}
	}
	if r.moved && r.batcher == nil { // else it goes with the pieces before it
		c.Checkpoint, r.moved = r.mark, false
	}
	return c
}

// keepTTL raises the task's TTL by retain whenever less than half of that is left,
// while the task runs. r.mu is held.
func (r *run) keepTTL(retain time.Duration) {
	if retain <= 0 || r.ended {
		return
	}
	left := r.task.raised - time.Since(r.task.born)
	r.task.ttl = r.s.later(left-min(retain, left)/2, func() { r.raiseTTL(retain) })
}

func (r *run) raiseTTL(retain time.Duration) {
	r.mu.Lock()
	ended := r.ended
	r.task.raised = max(r.task.raised+retain, time.Since(r.task.born)+leastRaise)
	raised := r.task.raised
	r.mu.Unlock()
	if ended {
		return
	}
	if r.persist(r.ctx, func() Change { return Change{TTL: raised} }) != nil {
		return
	}
	r.mu.Lock()
	r.keepTTL(retain)
	r.mu.Unlock()
}

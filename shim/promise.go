package shim

import (
	"cmp"
	"context"
	"encoding/json"
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
// interval: more often nobody looks. r.mu is held.
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

// writeMessage writes what fold has collected. An unavailable store is not waited
// for: the next message, or the end of the task, says more.
func (r *run) writeMessage() {
	r.mu.Lock()
	message, progress := r.message, TaskProgress{}
	if r.progress != nil {
		progress = TaskProgress{Token: r.call.ProgressToken, Params: r.progress}
	}
	var mark json.RawMessage
	if r.moved && r.batcher == nil { // else it goes with the pieces before it
		mark, r.moved = r.mark, false
	}
	r.task.folding = false
	r.folded()
	ended := r.ended
	r.mu.Unlock()
	if ended {
		return
	}
	ctx, stop := context.WithTimeoutCause(r.s.ctx, opTimeout, ErrUnavailable)
	defer stop()
	change := Change{Op: r.s.op(), StatusMessage: &message, Progress: progress, Checkpoint: mark}
	lease := r.lease()
	if _, err := r.s.store.Apply(ctx, r.task.id, &lease, change); err != nil {
		r.lost(err)
	}
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

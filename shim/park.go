package shim

import (
	"context"
	"time"
)

// This file is about calls that have a record and are no task yet, from the side of
// those who wait for them (design.md 0.13).

// revealing makes a task of a hidden record. r.mu is held, and released.
func (r *run) revealing() (Task, error) {
	made := make(chan struct{})
	r.making = made
	id, lease := r.task.id, r.task.lease
	retain := r.retain()
	change := Change{Op: r.s.op(), Visible: true, TTL: time.Since(r.task.born) + retain, Retain: retain}
	if k, ok := r.stream.(Keeper); ok && r.call.Asking == AskStream && len(r.box.open) > 0 {
		change.Claim, change.ClaimBy = keysOf(r.box.open), k.Keeps()
	}
	r.mu.Unlock()

	var t Task
	err := r.s.within(r.base, func(ctx context.Context) (err error) {
		t, err = r.s.store.Apply(ctx, id, &lease, change)
		return err
	})
	if err != nil {
		r.lost(err, lease)
	}

	r.mu.Lock()
	r.making = nil
	if err == nil {
		r.appear(t)
	}
	r.mu.Unlock()
	close(made)
	return t, err
}

// reveal makes a task of the record again.
func (r *run) reveal() {
	r.mu.Lock()
	change := Change{Op: r.s.op(), Visible: true, TTL: r.task.raised, Retain: r.task.made.Retain}
	r.mu.Unlock()
	_ = r.persist(r.ctx, func() Change { return change }) // where it fails, the end does so
}

// appear notes that the hidden record is a task now: the caller's context no longer
// matters to it. r.mu is held.
func (r *run) appear(t Task) {
	r.leave()
	r.stream = nil
	r.task.hidden = false
	r.task.made.Visible, r.task.made.TTL, r.task.made.Retain = true, t.TTL, t.Retain
	r.task.raised = t.TTL
	if r.task.ttl != nil {
		r.task.ttl.Stop()
	}
	r.keepTTL(t.Retain)
	signal(r.news)
}

func (r *run) isHidden() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.task != nil && r.task.hidden
}

// asked looks at what a waiting caller was woken for: a task was made of its call, or
// the call has questions for it. done says that this is what the caller gets.
func (s *Shim) asked(ctx context.Context, r *run) (a Answered, err error, done bool) {
	r.mu.Lock()
	switch {
	case r.task == nil:
		r.mu.Unlock()
		return Answered{}, nil, false
	case !r.task.hidden:
		made := r.task.made
		r.mu.Unlock()
		a, err = s.hand(ctx, r, made)
		return a, err, true
	case r.call.Asking != AskPark || len(outstanding(r.box.open)) == 0:
		r.mu.Unlock()
		return Answered{}, nil, false
	}
	// From here on the caller's context no longer matters: it goes with the answer.
	r.leave()
	r.stream, r.attended = nil, false
	parked := &Parked{ID: r.task.id, Questions: r.box.open, Until: r.box.read.expires}
	r.mu.Unlock()
	if ctx.Err() != nil {
		r.cancel(context.Cause(ctx))
		return Answered{}, context.Cause(ctx), true
	}
	return Answered{Parked: parked}, nil, true
}

// attach lets a caller who came back hear what the server says, if the call runs on
// this replica; nil otherwise.
func (s *Shim) attach(id ID, stream Stream) *run {
	s.mu.Lock()
	r := s.runs[id]
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.task.hidden {
		r.stream, r.attended = stream, true
	}
	return r
}

// detach ends what attach began.
func (r *run) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream, r.attended = nil, false
}

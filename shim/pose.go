package shim

import (
	"context"
	"encoding/json"
	"errors"
)

// A server may ask something that belongs to none of its calls. That has a record like
// any call that waits for an answer, hidden, and what runs is the leg that waits for it:
// as a call that is gone on with from a checkpoint which holds nothing but the question
// (design.md 0.16). So the answer comes by Answer, is delivered at most once, and has the
// time that every answer has, and if its replica is lost another one goes on.

// Pose asks a client what is in the checkpoint of the leg, and returns once that is
// stored. Of c it takes Upstream, Principal, Origin, Asking, and of the request the method
// and the session. It is over when the question has been answered, withdrawn or has run
// out of time, or when ctx ends with cause ErrCancelled. done is called when this replica
// has no more to do with it, and told whether it is over: another one may go on.
// ErrDraining, ErrUnavailable, *BusyError.
func (s *Shim) Pose(ctx context.Context, c Call, checkpoint json.RawMessage, done func(id ID, over bool)) (ID, error) {
	if !s.work.admit() {
		return "", ErrDraining
	}
	defer s.work.end()
	srv, err := s.server(c.Upstream)
	if err != nil {
		return "", err
	}
	c.Stay, c.Stream = true, nil
	r := s.newRun(ctx, srv, c, srv.policyFor(c.Request), ticket{})
	r.mark, r.moved = checkpoint, true
	t, err := r.keep(false)
	if err != nil {
		r.discard()
		return "", err
	}
	t.Checkpoint = checkpoint
	s.work.Go(func() {
		r.finishAs(t)
		done(t.ID, !errors.Is(context.Cause(r.ctx), ErrDetached))
	})
	return t.ID, nil
}

// FollowPosed is Follow for what Pose has stored. What is over for longer than a moment
// is passed over.
func (s *Shim) FollowPosed(ctx context.Context, p Principal, upstream string, ids []ID, yield func(Task) error) error {
	tasks := make([]Tracked, len(ids))
	for i, id := range ids {
		tasks[i].ID = id
	}
	look := func(id ID) (Task, error) { return s.reach(ctx, p, upstream, id) }
	return s.track(ctx, look, tasks, func(u Update) error { return yield(*u.Task) })
}

package shim

import (
	"context"
	"encoding/json"
	"errors"
)

// A server may ask a question that belongs to none of its calls. The question has a hidden
// record, like a call that waits for an answer, and a run: one that goes on from a
// checkpoint which holds nothing but the question (design.md 0.16). So the answer comes by
// Answer, is delivered at most once, and has the time that every answer has. If the replica
// is lost, another one goes on.

// AskSession asks a client the question in a checkpoint of the upstream client, and returns once
// the question is stored. Of c it takes Upstream, Principal, Origin, Asking, and of the
// request the method and the session. The question is over when it has been answered or
// withdrawn, has run out of time, or when ctx ends with cause ErrCancelled. done is called
// when this replica has no more to do with it, and is told whether it is over: if not,
// another replica may go on.
// ErrDraining, ErrUnavailable, *BusyError.
func (s *Shim) AskSession(ctx context.Context, c Call, checkpoint json.RawMessage, done func(id ID, over bool)) (ID, error) {
	if !s.life.work.Enter() {
		return "", ErrDraining
	}
	defer s.life.work.Leave()
	srv, err := s.findServer(c.Upstream)
	if err != nil {
		return "", err
	}
	c.Stay, c.Stream = true, nil
	r := s.newRun(ctx, srv, c, srv.policyFor(c.Request), ticket{})
	r.checkpoint, r.unsaved = checkpoint, true
	t, err := r.creation.ensureRecord(false)
	if err != nil {
		r.discard()
		return "", err
	}
	t.Checkpoint = checkpoint
	s.life.work.Go(func() {
		r.finishAs(t)
		done(t.ID, !errors.Is(context.Cause(r.ctx), ErrDetached))
	})
	return t.ID, nil
}

package shim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// This file guards the end of a task against a failover of the store. Redis
// replicates asynchronously: a replica that takes over may not have heard of the
// last writes yet, and then a task that has ended runs again, or is gone. So what
// a task ended with is kept for a while and written again if need be (design.md
// 0.20).

// Defaults of Options.
const (
	defaultSettle      = 30 * time.Second
	defaultSettleBytes = 64 << 20
)

// ending is how a task ended here, and what it takes to write that again. It may also be
// that a call which another replica runs became a task here: then end has no status.
type ending struct {
	made Task // as it was created, or adopted
	end  Change
	at   time.Time
	drop *time.Timer
	// streamed is what came before the end's Tail, as far as it is still known.
	streamed []Batch
}

func (e ending) size() int64 {
	n := int64(len(e.made.Call))
	if o := e.end.Outcome; o != nil {
		n += int64(len(o.Result) + len(o.Error))
	}
	for _, b := range slices.Concat(e.streamed, e.end.Tail) {
		n += b.size()
	}
	return n
}

// hold keeps an ending until it has settled, and says whether it does. Where there is
// no room it is not kept: a bounded memory comes before a second chance.
func (s *Shim) hold(e ending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settle <= 0 || s.heldBytes+e.size() > s.settleBytes {
		return false
	}
	id := e.made.ID
	if was, ok := s.held[id]; ok {
		was.drop.Stop()
		s.heldBytes -= was.size()
	}
	e.at = time.Now()
	e.drop = s.later(s.settle, func() {
		s.assure(s.ctx, id)
		s.release(id)
	})
	s.held[id] = e
	s.heldBytes += e.size()
	return true
}

// holdCancellation keeps the end that somebody else gave to a task of this run: the
// call is stopped for it, so if the store forgets it nobody runs the task any more,
// and its replica is alive, so nobody ever would.
func (r *run) holdCancellation() {
	var t Task
	err := r.s.retry(r.s.writes, func(ctx context.Context) (err error) {
		t, err = r.s.store.Get(ctx, r.task.id, Summary)
		return err
	})
	if err != nil || t.Status.Final() && t.Status != Cancelled {
		return
	}
	message := t.StatusMessage
	if !t.Status.Final() {
		message = messageCancelled // forgotten already
	}
	r.s.hold(ending{made: r.task.made, end: Change{Op: r.s.op(), To: Cancelled, StatusMessage: &message}})
	if !t.Status.Final() {
		r.s.assure(r.s.writes, r.task.id)
	}
}

// leastRestored is the least time that a task is kept after its end for its record to be
// restored while it runs. A shorter one may have expired since somebody else ended it.
const leastRestored = time.Minute

// restore writes the record of a task that runs here again, as it is known now: the store
// has forgotten it. It fails where nobody would miss the record.
func (r *run) restore(ctx context.Context) error {
	r.mu.Lock()
	t := r.task.made
	if r.task.hidden || r.ended || r.ctx.Err() != nil || t.Retain < leastRestored {
		r.mu.Unlock()
		return ErrNotFound
	}
	t.Lease, t.StatusMessage, t.Checkpoint, t.Questions = r.task.lease, r.message, r.mark, nil
	t.Call, t.TTL = r.callRecord(r.mark != nil), r.task.raised
	t.Progress.Params = r.progress
	r.mu.Unlock()
	_, err := r.s.store.Create(ctx, t)
	if err == nil {
		r.s.log.Warn("the store had forgotten a task that runs; it is written again", "task", t.ID, "tool", t.Tool)
	}
	return err
}

func (s *Shim) release(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.held[id]; ok {
		delete(s.held, id)
		s.heldBytes -= e.size()
	}
}

// unsettled are the tasks whose endings are held.
func (s *Shim) unsettled() []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.held))
}

func (s *Shim) heldOf(id ID) (ending, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.held[id]
	return e, ok
}

// assure reads a task that has ended here, and ends it again if the store has
// forgotten that.
func (s *Shim) assure(ctx context.Context, id ID) {
	e, ok := s.heldOf(id)
	if !ok {
		return
	}
	err := s.retry(ctx, func(ctx context.Context) error { return s.endAgain(ctx, e) })
	if err != nil && ctx.Err() == nil {
		s.log.Error("the end of a task was lost by the store and could not be written again", "task", id, "tool", e.made.Tool, "err", err)
	}
}

func (s *Shim) endAgain(ctx context.Context, e ending) error {
	t, err := s.store.Get(ctx, e.made.ID, Summary)
	switch {
	case err == nil && (t.Status.Final() || e.end.To == "" && t.Visible):
		return nil
	case errors.Is(err, ErrNotFound):
		if time.Since(e.at) >= e.made.Retain || e.end.To == "" {
			return nil // not lost: its time is over; or its runner's to write again
		}
		if _, err := s.store.Create(ctx, e.made); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	s.log.Warn("the store had forgotten the end of a task; it is written again", "task", e.made.ID, "tool", e.made.Tool)
	t, err = s.store.Apply(ctx, e.made.ID, nil, e.end)
	if errors.Is(err, ErrPosition) {
		if t, err = s.store.Get(ctx, e.made.ID, Summary); err != nil {
			return err
		}
		e.end.refit(e.streamed, t.Position)
		_, err = s.store.Apply(ctx, e.made.ID, nil, e.end)
	}
	if errors.Is(err, ErrFinal) {
		return nil
	}
	return err
}

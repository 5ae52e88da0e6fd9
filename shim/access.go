package shim

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// messageCancelled is the status message of a task that its owner cancelled.
const messageCancelled = "cancelled by the client"

// reread is how long a waiter trusts the silence of a Watch (design.md 0.4).
const reread = 30 * time.Second

// listPage is how many tasks List returns at once.
const listPage = 50

// see reads a task if p may know of it. All that may not be seen is ErrNotFound:
// another owner's, another upstream's, and a call that has not become a task.
func (s *Shim) see(ctx context.Context, p Principal, upstream string, id ID, part Part) (Task, error) {
	var t Task
	get := func(ctx context.Context) (err error) {
		t, err = s.store.Get(ctx, id, part)
		return err
	}
	err := s.within(ctx, get)
	if e, ok := s.heldOf(id); ok && (errors.Is(err, ErrNotFound) || err == nil && !t.Visible) {
		// A client was told of it here, and a failover has undone that just now.
		err = s.within(ctx, func(ctx context.Context) error { return errors.Join(s.endAgain(ctx, e), get(ctx)) })
	}
	if err != nil {
		return Task{}, err
	}
	if !t.Visible || t.Owner != p.Owner() || t.Upstream != upstream {
		return Task{}, ErrNotFound
	}
	return t, nil
}

// within bounds one operation on the store that somebody waits for. No answer in
// time is ErrUnavailable.
func (s *Shim) within(ctx context.Context, do func(context.Context) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, s.storeTimeout, ErrUnavailable)
	defer stop()
	err := do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), ErrUnavailable) {
		return fmt.Errorf("%w: no answer in %v", ErrUnavailable, s.storeTimeout)
	}
	return err
}

// Get reads a task with its outcome. ErrNotFound, ErrUnavailable.
func (s *Shim) Get(ctx context.Context, p Principal, upstream string, id ID) (Task, error) {
	return s.see(ctx, p, upstream, id, WithOutcome)
}

// Peek reads a task without its outcome: to tell a status, none need be moved.
// ErrNotFound, ErrUnavailable.
func (s *Shim) Peek(ctx context.Context, p Principal, upstream string, id ID) (Task, error) {
	return s.see(ctx, p, upstream, id, Summary)
}

// List returns a page of the caller's tasks on this upstream and the cursor of
// the next. ErrCursor, ErrUnavailable.
func (s *Shim) List(ctx context.Context, p Principal, upstream, cursor string) ([]Task, string, error) {
	key := listKey(p, upstream)
	if key == "" {
		return nil, "", nil
	}
	var tasks []Task
	var next string
	err := s.within(ctx, func(ctx context.Context) (err error) {
		tasks, next, err = s.store.List(ctx, key, cursor, listPage)
		return err
	})
	return tasks, next, err
}

// listKey keeps the lists of one principal on several upstreams apart: a task is
// only ever seen at its own upstream's endpoint (design.md 0.7).
func listKey(p Principal, upstream string) string {
	key := p.ListKey()
	if key == "" {
		return ""
	}
	return upstream + "/" + key
}

// Cancel moves a task to cancelled and wakes its runner, wherever it is (L25).
// A task that has ended is returned with ErrFinal. ErrNotFound, ErrUnavailable.
func (s *Shim) Cancel(ctx context.Context, p Principal, upstream string, id ID) (Task, error) {
	if _, err := s.see(ctx, p, upstream, id, Summary); err != nil {
		return Task{}, err
	}
	message := messageCancelled
	end := Change{Op: s.op(), To: Cancelled, StatusMessage: &message}
	var t Task
	err := s.within(ctx, func(ctx context.Context) (err error) {
		t, err = s.store.Apply(ctx, id, nil, end)
		return err
	})
	if err == nil {
		s.hold(ending{made: t, end: end}) // also where the runner does, which may be lost as well
		s.stopRun(id, errTaskCancelled)
	}
	return t, err
}

// Wait blocks until a task has ended and returns it with its outcome. ErrNotFound,
// the cause of ctx, and ErrDraining once this replica halts, if the task outlives
// that: another one can be asked.
func (s *Shim) Wait(ctx context.Context, p Principal, upstream string, id ID) (Task, error) {
	if t, err := s.Get(ctx, p, upstream, id); err != nil || t.Status.Final() {
		return t, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	wake := make(chan struct{}, 1)
	go s.wakeOn(ctx, id, wake)
	timer := time.NewTicker(reread)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return Task{}, context.Cause(ctx)
		case <-s.ctx.Done():
			return s.lastLook(ctx, p, upstream, id)
		case <-wake:
		case <-timer.C:
		}
		t, err := s.Get(ctx, p, upstream, id)
		if err == nil && t.Status.Final() || errors.Is(err, ErrNotFound) {
			return t, err
		}
	}
}

// wakeOn signals wake after each change of a task, until ctx ends. What is streamed
// repeats the version and changes nothing that is waited for.
func (s *Shim) wakeOn(ctx context.Context, id ID, wake chan<- struct{}) {
	var last int64
	for e, err := range s.store.Watch(ctx, id) {
		if err != nil {
			return
		}
		if !e.Synced && e.Version == last {
			continue
		}
		last = e.Version
		select {
		case wake <- struct{}{}:
		default: // a wake-up is already on its way
		}
	}
}

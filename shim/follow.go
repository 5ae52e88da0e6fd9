package shim

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// rereadFailed is after how long a task is read again that could not be read.
const rereadFailed = time.Second

// Follow yields the present state of each of these tasks, in their order, and
// then their state after every change, until all of them have ended. Changes that
// come faster than yield takes them are merged: the newest state wins.
//
// Tasks come as summaries: a listener need not move a result to tell that there
// is one. Get reads it. An id that is unknown, not p's, or expires on the way, is
// passed over without a word (T45), and so is a store that is down for a while.
// Follow returns nil once there is nothing left to wait for, and otherwise the
// error of yield or the cause of ctx.
func (s *Shim) Follow(ctx context.Context, p Principal, upstream string, ids []ID, yield func(Task) error) error {
	f := newFollower(ids)
	look := func(id ID) (Task, error) { return s.see(ctx, p, upstream, id, Summary) }
	// What cannot be seen is not watched either. This first look costs nothing
	// more than the one after Synced would.
	if err := f.read(look, yield); err != nil || len(f.open) == 0 {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	watched := slices.Clone(f.open)
	var watching sync.WaitGroup
	watching.Go(func() { stop(s.mark(ctx, f, watched)) })
	defer watching.Wait()
	defer stop(nil)
	return f.run(ctx, look, yield)
}

// mark tells a follower which tasks may have changed, until ctx ends or the store
// is closed.
func (s *Shim) mark(ctx context.Context, f *follower, ids []ID) error {
	for e, err := range s.store.Watch(ctx, ids...) {
		switch {
		case err != nil:
			return err
		case e.Synced:
			f.markAll()
		default:
			f.mark(e.ID)
		}
	}
	return context.Cause(ctx)
}

// follower is one Follow: what it knows of its tasks, and which of them may have
// more to tell.
type follower struct {
	open   []ID         // not ended as far as is known, in the caller's order
	seen   map[ID]int64 // the version last yielded
	unread []ID         // could not be read when they were due

	mu    sync.Mutex
	stale map[ID]bool // to be read again
	all   bool        // everything is
	wake  chan struct{}
}

func newFollower(ids []ID) *follower {
	f := &follower{seen: make(map[ID]int64, len(ids)), stale: make(map[ID]bool), all: true, wake: make(chan struct{}, 1)}
	once := make(map[ID]bool, len(ids))
	for _, id := range ids {
		if !once[id] {
			once[id] = true
			f.open = append(f.open, id)
		}
	}
	return f
}

// mark says that a task may have changed.
func (f *follower) mark(id ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stale[id] = true
	f.rouse()
}

// markAll says that any of the tasks may have.
func (f *follower) markAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = true
	f.rouse()
}

func (f *follower) rouse() {
	select {
	case f.wake <- struct{}{}:
	default: // a wake-up is already on its way
	}
}

// due takes the tasks that may have changed.
func (f *follower) due() []ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := slices.Clone(f.open)
	if !f.all {
		ids = slices.DeleteFunc(ids, func(id ID) bool { return !f.stale[id] && !slices.Contains(f.unread, id) })
	}
	f.all, f.unread = false, nil
	clear(f.stale)
	return ids
}

// run reads what may have changed, until nothing is left to wait for. Messages of
// a store may be lost, so everything is read from time to time (design.md 0.4).
func (f *follower) run(ctx context.Context, look func(ID) (Task, error), yield func(Task) error) error {
	distrust := time.NewTicker(reread)
	defer distrust.Stop()
	for len(f.open) > 0 {
		var retry <-chan time.Time
		if len(f.unread) > 0 {
			retry = time.After(rereadFailed)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.wake:
		case <-retry:
		case <-distrust.C:
			f.markAll()
		}
		if err := f.read(look, yield); err != nil {
			return err
		}
	}
	return nil
}

// read yields those of the tasks that are due whose state has changed, and lets go
// of those that have ended or are gone.
func (f *follower) read(look func(ID) (Task, error), yield func(Task) error) error {
	gone := make(map[ID]bool)
	for _, id := range f.due() {
		t, err := look(id)
		switch {
		case errors.Is(err, ErrNotFound):
			gone[id] = true
			continue
		case err != nil:
			f.unread = append(f.unread, id)
			continue
		}
		gone[id] = t.Status.Final()
		if v, ok := f.seen[id]; ok && v == t.Version {
			continue
		}
		f.seen[id] = t.Version
		if err := yield(t); err != nil {
			return err
		}
	}
	f.open = slices.DeleteFunc(f.open, func(id ID) bool { return gone[id] })
	return nil
}

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
	tasks := make([]Tracked, len(ids))
	for i, id := range ids {
		tasks[i].ID = id
	}
	return s.Track(ctx, p, upstream, tasks, func(u Update) error { return yield(*u.Task) })
}

// Track is Follow with the pieces that the tasks stream: of each task all from the
// one that is asked for on, in order, each once, and before the state in which the
// task has ended, after which there is nothing more of it (P2, P3). Pieces are read
// from the store when yield is ready for them, so a slow reader misses none; if a
// task expires before it has read all, Track returns ErrBehind. An id that comes
// twice counts as it came first.
func (s *Shim) Track(ctx context.Context, p Principal, upstream string, tasks []Tracked, yield func(Update) error) error {
	look := func(id ID) (Task, error) { return s.see(ctx, p, upstream, id, Summary) }
	return s.track(ctx, look, tasks, yield)
}

// track is Track of what look lets be seen.
func (s *Shim) track(ctx context.Context, look func(ID) (Task, error), tasks []Tracked, yield func(Update) error) error {
	f := newFollower(tasks, look, s.pieces(ctx), yield)
	// What cannot be seen is not watched either. This first look costs nothing
	// more than the one after Synced would.
	if err := f.read(); err != nil || len(f.open) == 0 {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	watched := f.ids()
	var watching sync.WaitGroup
	watching.Go(func() { stop(s.mark(ctx, f, watched)) })
	defer watching.Wait()
	defer stop(nil)
	return f.run(ctx)
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
			f.mark(e)
		}
	}
	return context.Cause(ctx)
}

// follower is one Follow or Track: what it knows of its tasks, and which of them
// may have more to tell.
type follower struct {
	look   func(ID) (Task, error)
	pieces func(*followed) error // reads what has been streamed into the task
	yield  func(Update) error

	order  []*followed      // in the caller's order; those that have ended as well
	open   map[ID]*followed // not ended as far as is known
	unread []*followed      // could not be read when they were due

	mu    sync.Mutex
	stale map[ID]heard // to be looked at again
	all   bool         // everything is
	wake  chan struct{}
}

// heard is what events have told of a task since it was looked at: the version, 0 where
// anything may have happened, and what was appended.
type heard struct {
	version int64
	added   Added
}

// followed is a task of a follower.
type followed struct {
	Tracked
	seen    stamp    // of the state last yielded
	short   stamp    // of a state that had less pieces than it said
	fetched []Update // pieces to be yielded
}

// stamp tells one state of a task from another. The version alone does not: it comes
// again where a failover has lost writes.
type stamp struct {
	version int64 // versions begin at 1
	updated int64 // ms
	status  Status
	lease   Lease
}

func stampOf(t Task) stamp { return stamp{t.Version, t.UpdatedAt.UnixMilli(), t.Status, t.Lease} }

func newFollower(tasks []Tracked, look func(ID) (Task, error), pieces func(*followed) error, yield func(Update) error) *follower {
	f := &follower{look: look, pieces: pieces, yield: yield,
		open: make(map[ID]*followed, len(tasks)), stale: make(map[ID]heard), all: true, wake: make(chan struct{}, 1)}
	for _, t := range tasks {
		if f.open[t.ID] == nil {
			k := &followed{Tracked: t}
			f.open[t.ID] = k
			f.order = append(f.order, k)
		}
	}
	return f
}

// ids are those of the tasks that are open.
func (f *follower) ids() []ID {
	var ids []ID
	for _, k := range f.order {
		if f.open[k.ID] != nil {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

// mark says that a task may have changed.
func (f *follower) mark(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := heard{e.Version, e.Added}
	if was, ok := f.stale[e.ID]; ok {
		h = heard{max(was.version, h.version), was.added.Then(h.added)}
	}
	f.stale[e.ID] = h
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

// due takes the tasks that may have changed, each with what was heard of it. What it costs grows with their number
// and not with that of all tasks.
func (f *follower) due() (tasks []*followed, news map[ID]heard) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all
	news, f.all = f.stale, false
	f.stale = make(map[ID]heard)
	unread := f.unread
	f.unread = nil
	if all {
		f.order = slices.DeleteFunc(f.order, func(k *followed) bool { return f.open[k.ID] == nil })
		return slices.Clone(f.order), nil
	}
	for _, k := range unread {
		news[k.ID] = heard{}
	}
	for id := range news {
		if k := f.open[id]; k != nil {
			tasks = append(tasks, k)
		}
	}
	return tasks, news
}

// run reads what may have changed, until nothing is left to wait for. Messages of
// a store may be lost, so everything is read from time to time (design.md 0.4).
func (f *follower) run(ctx context.Context) error {
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
		if err := f.read(); err != nil {
			return err
		}
	}
	return nil
}

// read yields what is new of those tasks that are due, and lets go of those that
// have ended or are gone.
func (f *follower) read() error {
	tasks, news := f.due()
	for _, k := range tasks {
		var err error
		switch h := news[k.ID]; {
		case h.version == 0 || h.version != k.seen.version:
			err = f.readTask(k)
		case k.Show != ShowState: // an append: it repeats the version
			err = f.takePieces(k, h.added)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readTask yields what is new of a task. Pieces that were there when the state was
// read come before the state, and so all of them before the last one.
func (f *follower) readTask(k *followed) error {
	t, err := f.look(k.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		delete(f.open, k.ID)
		if k.Show != ShowState && k.seen.version > 0 {
			return ErrBehind
		}
		return nil
	case err != nil:
		f.unread = append(f.unread, k)
		return nil
	}
	if k.behind(t.Position) {
		if err := f.readPieces(k); err != nil {
			return err
		}
		if unread := slices.Contains(f.unread, k); k.behind(t.Position) && (unread || k.short != stampOf(t)) {
			if !unread { // the store went back in between; if it did not, they are lost
				f.unread = append(f.unread, k)
			}
			k.short = stampOf(t)
			return nil // the state has to wait for them
		}
	}
	if t.Status.Final() {
		delete(f.open, k.ID)
	}
	if k.seen == stampOf(t) {
		return nil
	}
	k.seen = stampOf(t)
	return f.yield(Update{ID: k.ID, Task: &t})
}

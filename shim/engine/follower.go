package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"taskgate/shim"
	"taskgate/shim/node"
)

const (
	// reread is how long a reader trusts the silence of a Watch (design.md 0.4).
	reread = 30 * time.Second
	// rereadFailed is the pause before a failed read of a task is repeated.
	rereadFailed = time.Second
	// piecesAtOnce bounds the pieces of one Update.
	piecesAtOnce = 256
)

// Follow is that of a Set. The store is read when yield is ready for pieces, so a slow reader gets all of them.
func (s *set) Follow(ctx context.Context, yield func(shim.Update) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	f := &follower{s: s.s, p: s.p, upstream: s.upstream, set: s, yield: yield, stop: stop}
	defer f.watching.Wait()
	defer stop(nil)
	return f.followSet(ctx)
}

// Track follows exactly these tasks, and skips those that are gone. An id that comes twice counts as it came first.
func (s *Shim) Track(ctx context.Context, p shim.Principal, upstream string, tasks []shim.Tracked, yield func(shim.Update) error) error {
	set := s.newSet(p, upstream, tasks...)
	set.Close()
	return set.Follow(ctx, func(u shim.Update) error {
		if u.Gone {
			return nil
		}
		return yield(u)
	})
}

// errEnough ends a Follow whose reader has its answer.
var errEnough = errors.New("enough")

// Wait blocks until a task has ended and returns it with its outcome. seen gets each state of it, the
// last one too; it may be nil. ErrNotFound, the cause of ctx, and ErrDraining once this replica halts,
// if the task outlives that: another replica can be asked.
func (s *Shim) Wait(ctx context.Context, p shim.Principal, upstream string, id shim.ID, seen func(shim.Task)) (shim.Task, error) {
	if seen == nil {
		seen = func(shim.Task) {}
	}
	t, err := s.Get(ctx, p, upstream, id)
	if err == nil {
		seen(t)
	}
	if err != nil || t.Status.Final() {
		return t, err
	}
	following, stop := context.WithCancelCause(ctx)
	defer s.Life.AfterEnd(func() { stop(shim.ErrDraining) })()
	defer stop(nil)
	set := s.newSet(p, upstream)
	set.addKnown(t, shim.Tracked{ID: id, Outcome: true})
	err = set.Follow(following, func(u shim.Update) error {
		if u.Gone {
			return shim.ErrNotFound
		}
		if seen(*u.Task); u.Task.Status.Final() {
			t = *u.Task
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return t, nil
	case errors.Is(err, shim.ErrDraining) && ctx.Err() == nil:
		return s.lastLook(ctx, p, upstream, id)
	}
	return shim.Task{}, err
}

// lastLook is a Wait's last answer when this replica halts: the end of a task that ends with it,
// ErrDraining for any other.
func (s *Shim) lastLook(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	if s.runs.Get(id) != nil {
		patient, stop := context.WithTimeout(ctx, s.StoreTimeout)
		// The end of the run wakes it; after storeTimeout it reads the record all the same.
		_ = s.Life.Work.Wait(patient) // a task that goes on is reported as running
		stop()
	}
	t, err := s.Get(ctx, p, upstream, id)
	if err == nil && t.Status.Final() {
		return t, nil
	}
	return shim.Task{}, shim.ErrDraining
}

// addKnown puts a task into the set whose reader has the state t already: only later states are yielded.
func (s *set) addKnown(t shim.Task, k shim.Tracked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addTask(&followed{Tracked: k, seen: stampOf(t)})
}

// follower is one Follow. It belongs to that goroutine.
type follower struct {
	s        *Shim
	p        shim.Principal
	upstream string
	set      *set
	yield    func(shim.Update) error

	unread   []*followed      // tasks whose read has failed
	retry    <-chan time.Time // when those are due again; nil for none
	watching sync.WaitGroup
	stop     context.CancelCauseFunc // ends it if a Watch fails for good
}

// stamp tells one state of a task from another. The version alone is too little: it comes again after a
// failover has lost writes.
type stamp struct {
	version int64 // versions begin at 1
	updated int64 // ms
	status  shim.Status
	lease   shim.Lease
}

func stampOf(t shim.Task) stamp { return stamp{t.Version, t.UpdatedAt.UnixMilli(), t.Status, t.Lease} }

// followSet reads the tasks that may have changed, until the set is closed and empty. Messages of a
// store may be lost, so all tasks are read from time to time (design.md 0.4).
func (f *follower) followSet(ctx context.Context) error {
	distrust := time.NewTicker(reread)
	defer distrust.Stop()
	for {
		tasks, over := f.set.takeDue()
		if over {
			return nil
		}
		if err := f.readDue(ctx, tasks); err != nil {
			return err
		}
		// Events of the store wake it, and callers that add a task here; it reads all again every 30 s
		// (reread), and after a failed read in 1 s.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.set.wake:
		case <-f.retry:
			f.set.distrustTasks(f.unread)
			f.unread, f.retry = nil, nil
		case <-distrust.C:
			f.set.distrustTasks(nil)
		}
	}
}

// readDue yields the news of the tasks that are due, and watches the new ones that the reader may see.
// The first read costs as much as the one after Synced would.
func (f *follower) readDue(ctx context.Context, tasks []due) error {
	for _, k := range tasks {
		var err error
		switch {
		case k.new && k.seen.version > 0: // its reader has just read it
		case k.unseen == 0 || k.unseen != k.seen.version:
			err = f.readTask(ctx, k.followed)
		case k.Pieces: // an append: it repeats the version
			_, err = f.readPieces(ctx, k.followed)
		}
		if err != nil {
			return err
		}
	}
	f.watchNew(ctx, tasks)
	return nil
}

// watchNew listens to the events of the new tasks, until all of them have left the set.
func (f *follower) watchNew(ctx context.Context, tasks []due) {
	ctx, stop := context.WithCancel(ctx)
	watched := f.set.noteWatched(&watch{stop: stop}, tasks)
	if len(watched) == 0 {
		stop()
		return
	}
	ids := make([]shim.ID, len(watched))
	for i, k := range watched {
		ids[i] = k.ID
	}
	f.watching.Go(func() { f.listenToEvents(ctx, watched, ids) })
}

// listenToEvents marks the tasks that have events.
func (f *follower) listenToEvents(ctx context.Context, watched []*followed, ids []shim.ID) {
	// The store wakes it, also after each reconnect; followSet finds lost events at its next tick.
	for e, err := range f.s.Store.Watch(ctx, ids...) {
		switch {
		case err != nil:
			f.stop(err)
			return
		case e.Synced:
			f.set.distrustTasks(watched)
		default:
			f.set.noteEvent(e)
		}
	}
}

// readAllowed reads a task as its reader may see it. A call whose record was there and is missing just
// now still counts as there: ErrUnavailable.
func (f *follower) readAllowed(ctx context.Context, k *followed, part shim.Part) (shim.Task, error) {
	if !k.Hidden {
		return f.s.readOwn(ctx, f.p, f.upstream, k.ID, part)
	}
	p := f.p
	if k.Of != nil {
		p = *k.Of
	}
	t, err := f.s.readOwnCall(ctx, p, f.upstream, k.ID, part)
	if errors.Is(err, shim.ErrNotFound) && k.seen.version > 0 {
		if lost, unknown := f.s.Marks.DescribeLost(ctx, k.ID, p.Owner(), f.upstream); unknown == nil && !lost.Status.Final() {
			return shim.Task{}, shim.ErrUnavailable // the replica that runs it writes it again
		}
	}
	return t, err
}

// readLater has a task read again in rereadFailed.
func (f *follower) readLater(k *followed) {
	if f.unread = append(f.unread, k); f.retry == nil {
		f.retry = time.After(rereadFailed)
	}
}

// readTask yields the news of a task. Pieces that were there when the state was read come before the
// state, and so all pieces come before the final state.
func (f *follower) readTask(ctx context.Context, k *followed) error {
	t, err := f.readAllowed(ctx, k, shim.Summary)
	if err == nil && t.Status.Final() && k.Outcome {
		t, err = f.readAllowed(ctx, k, shim.WithOutcome)
	}
	switch {
	case errors.Is(err, shim.ErrNotFound):
		f.set.removeTask(k)
		if k.Pieces && k.seen.version > 0 {
			return shim.ErrBehind
		}
		return f.yield(shim.Update{ID: k.ID, Gone: true})
	case err != nil:
		f.readLater(k)
		return nil
	}
	if complete, err := f.completePieces(ctx, k, t); err != nil || !complete {
		return err
	}
	if t.Status.Final() {
		f.set.removeTask(k)
	} else if t.Version == 0 {
		f.readLater(k) // its record is missing, so there are no events
	}
	if k.seen == stampOf(t) {
		return nil
	}
	k.seen = stampOf(t)
	return f.yield(shim.Update{ID: k.ID, Task: &t})
}

// completePieces yields the pieces that come before a state, and reports whether the state may be
// yielded now. If the store has fewer pieces than the state says, it went back between the two reads:
// they are read once more, and then count as lost.
func (f *follower) completePieces(ctx context.Context, k *followed, t shim.Task) (bool, error) {
	late := k.Live && k.seen.version == 0 && t.Status.Final()
	if late || !k.isBehind(t.Position) {
		return true, nil
	}
	read, err := f.readPieces(ctx, k)
	switch {
	case err != nil || !k.isBehind(t.Position):
		return err == nil, err
	case read && k.short == stampOf(t):
		return true, nil
	case read:
		f.readLater(k)
	}
	k.short = stampOf(t)
	return false, nil
}

// readPieces yields the new pieces. While the store is down it only reports false, and has the task
// read again. The reader was admitted at the first read of the task, whose owner and upstream are
// constant.
func (f *follower) readPieces(ctx context.Context, k *followed) (read bool, err error) {
	list, err := node.WithPatience(ctx, f.s.Core, func(ctx context.Context) ([]json.RawMessage, error) {
		return f.s.Store.Batches(ctx, k.ID, k.next)
	})
	switch {
	case errors.Is(err, shim.ErrNotFound):
		return false, shim.ErrBehind
	case err != nil:
		f.readLater(k)
		return false, nil
	}
	return true, f.yieldPieces(k, list)
}

func (f *follower) yieldPieces(k *followed, list []json.RawMessage) error {
	for some := range slices.Chunk(list, piecesAtOnce) {
		u := shim.Update{ID: k.ID, Pieces: some, First: k.next}
		k.next += int64(len(some))
		if err := f.yield(u); err != nil {
			return err
		}
	}
	return nil
}

// isBehind reports whether there are pieces still to yield.
func (k *followed) isBehind(p shim.Position) bool { return k.Pieces && int64(p) > k.next }

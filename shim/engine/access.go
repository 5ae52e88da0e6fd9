package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/patience"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// listPage is how many tasks List returns at once.
const listPage = 50

// maxShown is how many ended tasks a replica remembers that it has shown to their owners.
const maxShown = 10_000

// shown has the owner of an ended task that was shown, and the size of its outcome in bytes, which are
// final.
type shown struct {
	owner, upstream string
	size            int64
}

// readOwn reads a task if p may know of it. All others are ErrNotFound: another owner's, another
// upstream's, and a hidden call. The outcome is read once p is known to be the owner, and there is room
// for it, so a stranger costs as little as an unknown id.
func (s *Shim) readOwn(ctx context.Context, p shim.Principal, upstream string, id shim.ID, part shim.Part) (shim.Task, error) {
	wanted := part
	known, ok := s.shown.Get(id)
	if part == shim.WithOutcome && (!ok || known.owner != p.Owner() || !s.readsTasksOf(upstream, known.upstream)) {
		part = shim.Summary
	}
	if part == shim.WithOutcome {
		if err := takeRoom(ctx, known.size); err != nil {
			return shim.Task{}, err
		}
	}
	t, err := s.ReadRecord(ctx, id, part)
	if part == shim.WithOutcome && err != nil {
		budget.From(ctx).Give(known.size) // it may be read again for the same request
	}
	if e, ok := s.Outcomes.FindEnding(id); ok && e.Made.Owner == p.Owner() && (errors.Is(err, shim.ErrNotFound) || err == nil && !t.Visible) {
		// A client was told of it here, and a failover has undone that just now.
		_, again := node.WithPatience(ctx, s.Core, func(ctx context.Context) (shim.Task, error) { return s.Outcomes.EndAgain(ctx, e) })
		t, err = s.ReadRecord(ctx, id, part)
		err = errors.Join(again, err)
	}
	if errors.Is(err, shim.ErrNotFound) && !p.NoTasks {
		return s.Marks.DescribeLost(ctx, id, p.Owner(), upstream)
	}
	if err != nil {
		return shim.Task{}, err
	}
	if !t.Visible || p.NoTasks || t.Owner != p.Owner() || !s.readsTasksOf(upstream, t.Upstream) {
		return shim.Task{}, shim.ErrNotFound
	}
	s.Marks.NoteRead(t)
	if part != wanted && t.Status.Final() {
		s.shown.Add(id, shown{owner: t.Owner, upstream: t.Upstream, size: t.OutcomeSize})
		return s.readOwn(ctx, p, upstream, id, wanted)
	}
	return t.ShownAt(time.Now()), nil
}

// takeRoom waits until there is room for n bytes that a request reads from the store. The room is given
// back with the request's other bytes.
func takeRoom(ctx context.Context, n int64) error {
	err := budget.From(ctx).Take(ctx, n)
	if errors.Is(err, budget.ErrFull) {
		return &shim.BusyError{Key: "max_bytes_in_flight", Limit: "bytes in flight to read the result"}
	}
	return err
}

// maxWaiting is how many requests of clients at a time wait for the store for as long as StoreWait.
const maxWaiting = 1000

// outlast is Outlast for an operation with a result.
func outlast[T any](ctx context.Context, s *Shim, do func(context.Context) (T, error)) (out T, err error) {
	err = s.Outlast(ctx, func(ctx context.Context) (err error) {
		out, err = do(ctx)
		return err
	})
	return out, err
}

// Outlast does a client's request to its task or its session, and repeats it while the store is
// unavailable, for at most StoreWait: some clients take one error for the end of the task.
func (s *Shim) Outlast(ctx context.Context, do func(context.Context) error) error {
	until := time.Now().Add(s.storeWait)
	err := do(ctx)
	if errors.Is(err, shim.ErrUnavailable) && s.storeWait > 0 && s.waiting.Enter(shim.Share{}) == nil {
		defer s.waiting.Leave(shim.Share{})
		patient, stop := context.WithDeadline(patience.Without(ctx), until)
		defer stop()
		defer s.Life.AfterEnd(stop)()
		pause := node.RetryFirst
		for errors.Is(err, shim.ErrUnavailable) && work.Pause(patient, node.SpreadPause(pause)) == nil {
			err = do(patient)
			pause = min(2*pause, time.Second)
		}
	}
	if errors.Is(err, shim.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", shim.ErrRepeat, err)
	}
	return err
}

// Get reads a task with its outcome. ErrNotFound, ErrUnavailable.
func (s *Shim) Get(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	return outlast(ctx, s, func(ctx context.Context) (shim.Task, error) { return s.readOwn(ctx, p, upstream, id, shim.WithOutcome) })
}

// Find is Get of a task of any of these upstreams, of which there must be at least one.
func (s *Shim) Find(ctx context.Context, p shim.Principal, upstreams []string, id shim.ID) (t shim.Task, err error) {
	for _, upstream := range upstreams {
		if t, err = s.Get(ctx, p, upstream, id); !errors.Is(err, shim.ErrNotFound) {
			break
		}
	}
	return t, err
}

// Peek reads a task as a Summary, which is enough for its status. ErrNotFound, ErrUnavailable.
func (s *Shim) Peek(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	return outlast(ctx, s, func(ctx context.Context) (shim.Task, error) { return s.readOwn(ctx, p, upstream, id, shim.Summary) })
}

// List returns a page of the caller's tasks on this upstream and the cursor of the next. ErrCursor,
// ErrUnavailable.
func (s *Shim) List(ctx context.Context, p shim.Principal, upstream, cursor string) ([]shim.Task, string, error) {
	key := shim.ListKey(p, upstream)
	if key == "" || p.NoTasks {
		return nil, "", nil
	}
	var next string
	tasks, err := node.WithPatience(ctx, s.Core, func(ctx context.Context) (tasks []shim.Task, err error) {
		tasks, next, err = s.Store.List(ctx, key, cursor, listPage)
		return tasks, err
	})
	for i := range tasks {
		tasks[i] = tasks[i].ShownAt(time.Now())
	}
	return tasks, next, err
}

// Cancel moves a task to cancelled and wakes its runner, wherever it is (L25). A task that has ended is
// returned with ErrFinal. ErrNotFound, ErrUnavailable.
func (s *Shim) Cancel(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error) {
	t, err := s.Peek(ctx, p, upstream, id)
	if err != nil {
		return shim.Task{}, err
	}
	end := shim.Change{Token: s.bringToken(ctx, t), Moments: []shim.Moment{{Kind: shim.KindCancelled, Detail: "client"}}}
	return s.cancelTask(ctx, t, end, node.MessageCancelled, "a client cancels a task")
}

// cancelTask cancels a task that was read, for its owner or for an operator. The store decides whether
// it has ended, as only an end in the store can outlast a failover. Where the record is missing, the caller is told
// what was read, and the task is cancelled once its replica has written it again.
func (s *Shim) cancelTask(ctx context.Context, t shim.Task, end shim.Change, message, told string) (shim.Task, error) {
	begun, read := time.Now(), t // its runner may tell of the end before this does
	end.Op, end.To, end.StatusMessage = s.NewOp(), shim.Cancelled, &message
	cancel := func(ctx context.Context) (shim.Task, error) {
		t, err := s.ChangeRecord(ctx, read.ID, nil, end)
		if err == nil {
			made := end
			made.Token = ""
			s.Outcomes.HoldEnding(node.Ending{Made: t, End: made}) // also if the runner does, which may be lost as well
			if r := s.runs.Get(t.ID); r != nil {
				r.Cancel(node.ErrTaskCancelled)
			}
			s.Observer.LogTaskAt(begun, node.ContextOf(t), t, slog.LevelInfo, told, "event", shim.KindCancelled.EventName())
		}
		return t, err
	}
	t, err := outlast(ctx, s, cancel)
	switch {
	case !errors.Is(err, shim.ErrNotFound):
		return t, err
	case read.Status.Final():
		return read, shim.ErrFinal // the record of a lost task is gone
	}
	s.Life.Work.Go(func() { s.cancelMissing(cancel) })
	return read, nil
}

// cancelMissing cancels a task once its record is there again, which its replica writes, unless it counts as lost before.
func (s *Shim) cancelMissing(cancel func(context.Context) (shim.Task, error)) {
	ctx, stop := context.WithTimeout(s.Life.Writes, node.LostAfter)
	defer stop()
	for work.Pause(ctx, node.SpreadPause(time.Second)) == nil {
		if _, err := cancel(ctx); !errors.Is(err, shim.ErrNotFound) && !errors.Is(err, shim.ErrUnavailable) {
			return
		}
	}
}

// bringToken brings the token of an owner's request (an answer or a cancellation) to its call: it gives
// the token to a run on this replica, or returns it for another one.
func (s *Shim) bringToken(ctx context.Context, t shim.Task) (token string) {
	srv, err := s.findServer(t.Upstream)
	if err != nil || srv.SealToken == nil {
		return ""
	}
	token = srv.SealToken(ctx, string(t.ID))
	if r := s.runs.Get(t.ID); r != nil {
		r.Token.TakeToken(token, 0)
		return ""
	}
	return token
}

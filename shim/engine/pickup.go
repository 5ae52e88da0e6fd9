package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"taskgate/internal/semconv"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

const (
	// crossing is how long a call waits for the news that its client has given up the same call before: both may arrive
	// in any order, at two replicas.
	crossing = time.Second
	// lookAgain is the pause between two looks meanwhile.
	lookAgain = 50 * time.Millisecond
	// heardFor is how long a replica believes an event that a client has calls which nobody waits for. Each beat says so
	// again.
	heardFor = time.Minute
)

// repeater is the part of a Shim that brings repeats to the calls that they pick up.
type repeater struct{ *Shim }

// refreshRepeats reads which clients have calls that a repeat may pick up. An event may have been lost; while the store
// is away, what is known stays.
func (s repeater) refreshRepeats(ctx context.Context) {
	_, _ = node.WithPatience(ctx, s.Core, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Repeats.Refresh(ctx) })
}

// pickUp answers a call that is the same as one whose client gave up: it waits for that call, or returns its answer
// (design.md 0.35). done is false for a call that has to be made. Only calls of a client that has such calls look in the
// store. If the store stays away for them, they fail with ErrUnavailable, as the work may be under way.
func (s repeater) pickUp(ctx context.Context, srv *node.Served, c shim.Call, p shim.Policy) (a shim.Answered, err error, done bool) {
	if a, err, done = s.pickUpAs(ctx, c.Repeat, srv, c, p); !done {
		a, err, done = s.pickUpAs(ctx, c.Repeat.OfEndedSession(), srv, c, p)
	}
	return a, err, done
}

// pickUpAs is pickUp under one name of the client.
func (s repeater) pickUpAs(ctx context.Context, as shim.Repeat, srv *node.Served, c shim.Call, p shim.Policy) (a shim.Answered, err error, done bool) {
	client, call, left, awaited := s.Repeats.Look(as)
	joins := p.Repeat == shim.RepeatAuto || p.Repeat == shim.RepeatJoin
	if c.Request.Method != shim.CallTool || !left && !(awaited && joins) {
		return a, nil, false
	}
	if !joins { // it runs, and the client has gone on to other work
		call = ""
	}
	id, err := s.takeLeft(ctx, client, call, p.Linger)
	if err != nil {
		return a, err, true
	}
	e := shim.Lingering{ID: id, Client: client, Call: call, Stream: c.Repeat.Stream, Join: p.Repeat == shim.RepeatJoin, Linger: p.Linger}
	if id == "" {
		return a, nil, false
	}
	t, err := outlast(ctx, s.Shim, func(ctx context.Context) (shim.Task, error) {
		return s.readOwnCall(ctx, c.Principal, c.Upstream, id, shim.Summary)
	})
	if err == nil && (t.Visible || t.Status == shim.Cancelled || t.Status.Final() && c.Repeat.ReadOnly != nil && c.Repeat.ReadOnly(ctx)) {
		err = shim.ErrNotFound
	}
	switch {
	case errors.Is(err, shim.ErrNotFound): // it is lost, has ended without an answer, or its answer would be an old one
		s.Repeats.Drop(ctx, e)
		return a, nil, false
	case err != nil:
		return a, err, true
	}
	a, err = s.followLeft(ctx, &waiter{s: s.Shim, srv: srv, call: c, policy: p, task: t}, e)
	return a, err, true
}

// takeLeft takes the call of a client that is the same as a new one, "" for none.
func (s repeater) takeLeft(ctx context.Context, client, call string, life time.Duration) (id shim.ID, err error) {
	op := s.NewOp()
	for until := time.Now().Add(crossing); ; {
		var state shim.LingerState
		var empty bool
		last := !time.Now().Before(until)
		err = s.Outlast(ctx, func(ctx context.Context) error {
			_, err := node.WithPatience(ctx, s.Core, func(ctx context.Context) (_ struct{}, err error) {
				id, state, empty, err = s.Repeats.Store.Take(ctx, client, call, op, last, life)
				return struct{}{}, err
			})
			return err
		})
		if err != nil {
			return "", err
		}
		if empty {
			s.Repeats.Forget(client)
		}
		if state != shim.LingerAwaited {
			return id, nil
		}
		if err := work.Pause(ctx, lookAgain); err != nil {
			return "", context.Cause(ctx)
		}
	}
}

// pickup is a call that a repeat has taken, for as long as the repeat waits for it.
type pickup struct {
	s      *Shim
	e      shim.Lingering
	gaveUp func(cause error) bool
	gone   atomic.Bool // the connection of the client has ended, and the call may be taken again
	stop   context.CancelFunc
}

// errPickedLost answers a repeat whose call was cancelled by another caller, or forgotten by the store.
var errPickedLost = &shim.UpstreamError{Kind: "lost", Message: "the call that this one has picked up was cancelled or lost meanwhile; the server may have done the work"}

// followLeft waits for a call that was taken, as the one who takes it over.
func (s repeater) followLeft(ctx context.Context, w *waiter, e shim.Lingering) (shim.Answered, error) {
	w.srv.Metrics.Repeated(ctx, semconv.RepeatPickedUp)
	w.pickup = &pickup{s: s.Shim, e: e, gaveUp: w.call.Repeat.GaveUp}
	client := w.call.Repeat.Name()
	s.Observer.LogTask(w.task, slog.LevelInfo, "a call whose client gave up is picked up by the same call made again", "client", client, "event", shim.KindPickedUp.EventName())
	if !w.task.Status.Final() {
		w.pickup.show(ctx, time.Time{}, shim.MessagePickedUp(client), shim.Moment{Kind: shim.KindPickedUp, Detail: client})
	}
	renewing, stop := context.WithCancel(s.Life.Ctx)
	defer stop()
	w.pickup.stop = stop
	s.Life.Work.Go(func() { w.pickup.renew(renewing, w.call.Repeat.Gone) })
	begun := w.task.BegunAt()
	a, err := w.awaitAnswer(ctx)
	a.PickedUp = begun
	stop()
	switch {
	case errors.Is(err, shim.ErrNotFound), errors.Is(err, shim.ErrCancelled) && ctx.Err() == nil:
		err = errPickedLost
		s.Life.Work.Go(func() { s.Repeats.Drop(s.Life.Writes, e) })
	case err != nil && ctx.Err() == nil: // this replica halts
		s.Life.Work.Go(func() { w.pickup.leave() })
	case err != nil: // leaveCall has decided
	case a.Parked != nil:
		s.Life.Work.Go(func() { w.pickup.note(shim.LingerTaken, time.Until(a.Parked.Until)) })
	case !w.pickup.gone.Load():
		s.Life.Work.Go(func() { s.Repeats.Drop(s.Life.Writes, e) })
	}
	return a, err
}

// show brings what became of the call into its record, for its runner and for operators. It is told once.
func (p *pickup) show(ctx context.Context, until time.Time, message string, m shim.Moment) {
	change := shim.Change{Op: p.s.NewOp(), KeptUntil: &until, StatusMessage: &message, Moments: []shim.Moment{m}}
	_, _ = p.s.ChangeRecord(ctx, p.e.ID, nil, change)
}

// note gives the call a state that only the one who has taken it may give.
func (p *pickup) note(state shim.LingerState, life time.Duration) {
	ctx, stop := context.WithTimeout(p.s.Life.Writes, p.e.Linger)
	defer stop()
	_, _ = p.s.Repeats.Note(ctx, p.e, state, life, shim.LingerTaken)
}

// renew keeps the call taken while its repeat waits. If the connection of the client ends, and it may still resume the
// stream, the call may be taken again.
func (p *pickup) renew(ctx context.Context, gone <-chan struct{}) {
	for {
		timer := time.NewTimer(p.e.Linger / 2)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-gone:
			timer.Stop()
			p.gone.Store(true)
			p.leave()
			return
		case <-timer.C:
		}
		_, _ = p.s.Repeats.Store.Note(ctx, p.e, shim.LingerTaken, []shim.LingerState{shim.LingerTaken}, p.e.Linger)
	}
}

// leave notes that nobody waits for the call any more.
func (p *pickup) leave() {
	p.s.Repeats.Hear(shim.LingerNews{Client: p.e.Client, Call: p.e.Call, Left: true}, p.e.Linger)
	p.note(shim.LingerLeft, p.e.Linger)
	until := time.Now().Add(p.e.Linger)
	p.show(p.s.Life.Writes, until, shim.MessageKept(until), shim.Moment{Kind: shim.KindGivenUp})
}

// leaveAgain has the call go on if its client has given up once more, and reports whether it has. The end of its session
// ends the call: its entry keeps its name.
func (p *pickup) leaveAgain(cause error) bool {
	if p.gaveUp == nil || shim.IsSessionEnd(cause) || !p.gaveUp(cause) {
		return false
	}
	p.stop()
	return p.s.Life.Work.Go(p.leave)
}

// ResumeStream notes that a client waits again for the answer on the stream of an earlier call (Repeat.Stream): a repeat
// does not pick that call up. Only a client that has such calls, by what is known here, costs the store a look.
func (s *Shim) ResumeStream(ctx context.Context, r shim.Repeat) {
	if client, known := s.Repeats.Knows(r); known {
		// If the store is away, the stream cannot be resumed either.
		_, _ = node.WithPatience(ctx, s.Core, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.Repeats.Store.Resume(ctx, client, r.Stream)
		})
	}
}

// heard is the stream of a caller whom the run does not ask.
type heard struct{ shim.Stream }

// Notified implements shim.Notifier.
func (h heard) Notified(n shim.Notification) {
	if s, ok := h.Stream.(shim.Notifier); ok {
		s.Notified(n)
	}
}

// Cork implements shim.Corker.
func (h heard) Cork(yes bool) {
	if s, ok := h.Stream.(shim.Corker); ok {
		s.Cork(yes)
	}
}

// askOnStream asks the caller the open questions of the call on its stream, each once, and withdraws those that are closed.
func (w *waiter) askOnStream(open []shim.Question) {
	stream, ok := w.call.Stream.(shim.Asker)
	if !ok {
		return
	}
	keys := shim.KeysOf(open)
	if closed := slices.DeleteFunc(slices.Clone(w.asked), func(key string) bool { return slices.Contains(keys, key) }); len(closed) > 0 {
		stream.Withdrawn(w.task.ID, closed)
	}
	if fresh := shim.WithoutKeys(open, w.asked); len(fresh) > 0 {
		stream.Ask(w.task.ID, fresh)
	}
	w.asked = keys
}

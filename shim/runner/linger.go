package runner

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"taskgate/internal/semconv"
	"taskgate/shim"
	"taskgate/shim/node"
)

// lingering is what becomes of a call whose client gives up waiting for it (design.md 0.35).
//
// A call that has run for shim.LeastKept gets a hidden record, so that a repeat finds it at every replica from the moment
// on at which its client gives up. While the client waits, nothing is written to that record: it is quiet. When the
// client gives up, the record becomes one like that of any hidden call, and the call has shim.Policy.Linger to be picked
// up. shim.Repeats decides who picks it up, and whether its time is over.
//
// The run owns it. run.mu guards all but the channels.
type lingering struct {
	run   *Run
	begun time.Time      // when the call came in
	entry shim.Lingering // zero until announce
	quiet bool           // the record is there for a repeat alone, and the client waits
	left  bool           // the client has given up, once at least
	round int            // counts how often the client has given up here
	stays bool           // the client may come back to the stream of its answer, so the call is not cancelled for its time
	gone  chan struct{}  // closed when the client of Call has given up
	yield chan struct{}  // signals that another call waits for the slot
	news  chan struct{}  // signals that the record says otherwise whether somebody waits
}

func newLingering(r *Run) lingering {
	return lingering{run: r, begun: time.Now(), gone: make(chan struct{}), yield: make(chan struct{}, 1), news: make(chan struct{}, 1)}
}

// The status messages of a call that nobody came back to.
const (
	messageRanOut  = "its client gave up, and did not call again in time"
	messageYielded = "its client gave up, and another call needed its place"
)

// quietKept is how long a record is kept that was quiet to the end of its call.
const quietKept = time.Second

// awaitedFor is how long a call counts as awaited without further news. It is noted again in half the time, so that the
// entry of a call that ended during an outage goes soon.
const awaitedFor = 5 * time.Minute

// isPossible reports whether a repeat could pick the call up.
func (l *lingering) isPossible() bool {
	r := l.run
	auto := r.policy.Repeat == shim.RepeatAuto || r.policy.Repeat == shim.RepeatJoin
	return auto && r.policy.Linger > 0 && r.core.Repeats.Store != nil && r.Caller.repeat.IsPossible()
}

// begin has the call announced once it has run for shim.LeastKept, if it may still be without a task by the time when
// clients give up.
func (l *lingering) begin(grace time.Duration) (stop func() bool) {
	if grace < shim.PickedUpWithin || !l.isPossible() {
		return func() bool { return false }
	}
	r := l.run
	return r.core.Life.Later(shim.LeastKept-time.Since(l.begun), func() { r.core.Life.Work.Go(l.announce) }).Stop
}

// announce gives the call its quiet record, and tells all replicas of it. A call that waits for its slot is announced
// once it is sent.
func (l *lingering) announce() {
	r := l.run
	r.mu.Lock()
	repeat := r.Caller.repeat
	r.mu.Unlock()
	if !repeat.IsPossible() || r.Ctx.Err() != nil {
		return
	}
	if !r.sent.Load() {
		r.core.Life.Later(time.Second, func() { r.core.Life.Work.Go(l.announce) })
		return
	}
	e := shim.Lingering{
		Client: repeat.Client(), Call: repeat.Call(), Stream: repeat.Stream,
		Join: r.policy.Repeat == shim.RepeatJoin, Linger: r.policy.Linger,
	}
	r.mu.Lock()
	if r.Caller.repeat.IsPossible() { // else the caller has left meanwhile
		l.entry = e
	}
	r.mu.Unlock()
	r.core.Repeats.Hear(shim.LingerNews{Client: e.Client, Call: e.Call}, 0)
	t, err := node.RetryUntil(r.Ctx, isNoRecord, func(context.Context) (shim.Task, error) { return r.Creation.ensureQuiet() })
	if err != nil || t.Visible {
		r.core.Repeats.Hear(shim.LingerNews{Client: e.Client, Call: e.Call, Over: true}, 0)
		return
	}
	e.ID = t.ID
	l.noteAwaited(e)
}

// noteAwaited notes that the client waits, again and again until it does no more.
func (l *lingering) noteAwaited(e shim.Lingering) {
	r := l.run
	r.mu.Lock()
	left := l.left
	r.mu.Unlock()
	if left {
		return
	}
	_, _ = r.core.Repeats.Note(r.Ctx, e, shim.LingerAwaited, awaitedFor, shim.LingerNone, shim.LingerAwaited)
	if r.Ctx.Err() != nil { // the end of the call has dropped it before
		r.core.Repeats.Drop(r.core.Life.Writes, e)
		return
	}
	timer := r.core.Life.Later(awaitedFor/2, func() { r.core.Life.Work.Go(func() { l.noteAwaited(e) }) })
	context.AfterFunc(r.Ctx, func() { timer.Stop() }) // an ended call is let go of
}

// unquiet has a quiet record count as a task, since more than a repeat needs it. *shim.BusyError.
func (l *lingering) unquiet() error {
	r := l.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if !l.quiet {
		return nil
	}
	if err := r.Creation.enterTasks(); err != nil {
		return err
	}
	l.quiet = false
	r.outbox.scheduleWrite()
	return nil
}

// giveUp keeps the call although its client has given up, and reports whether it does. The client waits no more, for this
// cause; without one, its connection has broken, and it may come back to the stream of the answer.
func (l *lingering) giveUp(cause error) bool {
	r, leaves := l.run, cause != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.entry.Client == "" || r.ended || r.Ctx.Err() != nil || r.record.Visible || r.queuing || r.Caller.waiting == 0 {
		return false
	}
	round, old := l.round+1, l.entry
	from := []shim.LingerState{shim.LingerNone, shim.LingerAwaited}
	if leaves { // also the stream that it has resumed
		from = append(from, shim.LingerResumed)
	}
	if !r.core.Life.Work.Go(func() { l.keepCall(round, from, old) }) {
		return false
	}
	l.left, l.stays, l.round = true, !leaves, round
	if r.Caller.repeat.AfterSession != nil && shim.IsSessionEnd(cause) {
		l.entry.Client = r.Caller.repeat.AfterSession()
	}
	if leaves {
		r.Caller.forget()
		close(l.gone)
	}
	return true
}

// keepCall keeps a call whose client has given up until it has ended, its time is over, or its client gives up in another
// way. It is noted as left if it is in one of these states. old is its entry before.
func (l *lingering) keepCall(round int, from []shim.LingerState, old shim.Lingering) {
	r := l.run
	ctx, stop := context.WithTimeout(r.Ctx, r.policy.Linger)
	defer stop()
	t, err := node.RetryUntil(ctx, isNoRecord, func(context.Context) (shim.Task, error) { return r.Creation.EnsureRecord(false) })
	r.mu.Lock()
	l.entry.ID = t.ID
	e, stays, ended := l.entry, l.stays, r.ended
	old.ID = t.ID
	r.mu.Unlock()
	switch {
	case ended:
		return
	case err != nil && !stays:
		if of, times := r.core.Repeats.Refused.Note([2]string{r.Srv.Name, r.Call.Request.Name}); times > 0 {
			r.core.Log.Warn("calls whose clients gave up could not be kept; they are cancelled at the server", "upstream", of[0], "tool", of[1], "times", times, "err", err)
		}
		r.Srv.Metrics.Repeated(r.base, semconv.RepeatRefused)
		r.Cancel(shim.ErrCancelled)
		return
	case err != nil:
		return
	}
	if state, err := r.core.Repeats.Note(ctx, e, shim.LingerLeft, e.Linger, from...); err == nil && state == shim.LingerLeft {
		r.Srv.Metrics.Repeated(r.base, semconv.RepeatKept)
		r.Observed.logRun(slog.LevelInfo, "the client of a call gave up; the call is kept", "event", shim.KindGivenUp.EventName())
		_, _ = r.record.applyChange(ctx, func() shim.Change {
			until := time.Now().Add(e.Linger)
			message := shim.MessageKept(until)
			return shim.Change{
				Op: r.core.NewOp(), KeptUntil: &until, StatusMessage: &message, Retain: max(e.Linger, shim.HiddenRetain), Call: r.callRecord(r.record.Checkpoint != nil),
				Moments: []shim.Moment{{Kind: shim.KindGivenUp}},
			}
		})
	}
	if old.Client != e.Client { // the session has ended
		r.core.Repeats.Drop(ctx, old)
	}
	l.awaitRepeat(e, round)
}

// keepAdopted goes on with keepCall at the replica that has adopted the call. Whoever waited for it did so at the lost
// one, unless a repeat has taken it.
func (l *lingering) keepAdopted() {
	r := l.run
	ctx, stop := context.WithTimeout(r.Ctx, l.entry.Linger)
	defer stop()
	_, _ = r.core.Repeats.Note(ctx, l.entry, shim.LingerLeft, l.entry.Linger, shim.LingerNone, shim.LingerAwaited)
	l.awaitRepeat(l.entry, 0)
}

// awaitRepeat cancels the call once nobody may pick it up any more, or when another call needs its slot while nobody has
// picked it up.
func (l *lingering) awaitRepeat(e shim.Lingering, round int) {
	r := l.run
	timer := time.NewTimer(e.Linger)
	defer timer.Stop()
	for refused := false; ; { // refused: a repeat has taken the call, and the record has yet to say so
		r.ticket.OfferSlot(l.yield, !refused && !r.record.copyTask().KeptUntil.IsZero(), r.Call.Principal.Share())
		yields := false
		// The end of the call wakes it, the need of another call, the record, and the time for which the call is kept.
		select {
		case <-r.done:
			return
		case <-l.news:
			refused = false
			continue
		case <-l.yield:
			yields = true
		case <-timer.C:
		}
		rest, err := node.Retry(r.Ctx, func(ctx context.Context) (time.Duration, error) {
			return r.core.Repeats.Store.Expire(ctx, e.Client, e.ID, yields)
		})
		r.mu.Lock()
		over := r.ended || r.record.Visible || l.stays || l.round != round
		r.mu.Unlock()
		switch {
		case err != nil, rest == 0 && over:
			return
		case rest > 0:
			refused = yields
			timer.Reset(rest)
			continue
		}
		message, how := messageRanOut, semconv.RepeatRanOut
		if yields {
			message, how = messageYielded, semconv.RepeatYielded
		}
		r.Srv.Metrics.Repeated(r.base, how)
		r.Cancel(node.ErrTaskCancelled)
		r.core.CancelUntold(e.ID, message, 0, "")
		return
	}
}

// endBefore is called before the end of the call is recorded. An end that a repeat must not get is forgotten first. It
// reports whether the record was quiet to the end, and nobody will read it: the client has had the answer, or the call is not
// kept.
func (l *lingering) endBefore() (unread bool) {
	r := l.run
	r.mu.Lock()
	e, left, quiet := l.entry, l.left, l.quiet
	r.mu.Unlock()
	if e.ID = r.RecordID(); e.Client == "" || goesOnElsewhere(r.err) {
		return false
	}
	if !left || r.err != nil || r.reply.InputRequired {
		r.core.Repeats.Drop(r.core.Life.Writes, e)
	}
	return quiet && (!left || r.err != nil)
}

// endAfter is called once the end of the call is recorded: the answer is kept for as long as the call was.
func (l *lingering) endAfter() {
	r := l.run
	r.mu.Lock()
	e, left := l.entry, l.left
	r.mu.Unlock()
	if e.ID = r.RecordID(); e.Client == "" || !left || r.err != nil || r.reply.InputRequired {
		return
	}
	ctx, stop := context.WithTimeout(r.core.Life.Writes, e.Linger)
	defer stop()
	state, err := node.Retry(ctx, func(ctx context.Context) (shim.LingerState, error) {
		return r.core.Repeats.Store.Note(ctx, e, shim.LingerLeft, []shim.LingerState{shim.LingerLeft}, e.Linger)
	})
	if err == nil && state == shim.LingerResumed { // its client gets the answer on the stream that it has resumed
		r.core.Repeats.Drop(r.core.Life.Writes, e)
	}
}

// goesOnElsewhere reports whether another replica goes on with a call that ended here with this error.
func goesOnElsewhere(err error) bool {
	return errors.Is(err, shim.ErrDetached) || errors.Is(err, shim.ErrDraining) || errors.Is(err, shim.ErrLeaseLost)
}

package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/metrics"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// errEnded: the call has its reply, so no task is made of it.
var errEnded = errors.New("the call has been answered")

// Run is one call on its way: first the caller's, then, once a task was made of it, the task's. It is
// the Sink of its upstream call. Its parts do everything besides the upstream call: each has the state
// for its work, and says which lock guards it.
type Run struct {
	core   *node.Core
	runs   *node.Runs[Run] // where it is once it has a record
	Srv    *node.Served
	Call   shim.Call
	policy shim.Policy
	ticket node.Ticket
	hold   *budget.Hold // the bytes of requests and answers; nil for no bound
	begun  int          // how often the call was begun, this time included
	// sent: the server may have the call.
	sent atomic.Bool

	// base has the values of the caller's context, but a life of its own; ctx is the life of the
	// upstream call, which follows the caller's until caller.releaseClient. cancel ends ctx and the
	// timers that would end it; a closure costs less than a context each.
	base   context.Context
	Ctx    context.Context
	Cancel context.CancelCauseFunc

	// done is closed when reply and err are set for good.
	done  chan struct{}
	reply shim.Reply
	err   error

	seat
	Caller   caller
	Creation creation
	outbox   outbox
	box      mailbox
	rounds   rounds
	Inbox    inbox
	Token    tokenInbox
	Observed observation
	keeping  keeping
	linger   lingering
	turn     turn // held by whoever speaks with the store about the record

	mu      sync.Mutex // guards all below, and the state of the parts that say so
	ended   bool       // the upstream call has returned
	queuing bool       // the call waits for its slot
	record  record
}

// NewRun prepares a call. Its context follows the caller's until a task is made, and ends after the
// policy's timeout.
func NewRun(ctx context.Context, shared *node.Core, rs *node.Runs[Run], srv *node.Served, c shim.Call, p shim.Policy, tk node.Ticket) *Run {
	r := &Run{core: shared, runs: rs, Srv: srv, Call: c, policy: p, ticket: tk, begun: 1, hold: budget.From(ctx).Share()}
	r.Call.Stream, r.Call.Repeat = nil, shim.Repeat{} // a waiting task must let go of its caller's request in memory
	r.assembleParts()
	r.Caller.repeat = c.Repeat
	r.Caller.stream, r.Caller.waiting = c.Stream, 1
	r.base = context.WithoutCancel(ctx)
	r.observeRun(r.base)
	if c.RerunOf != "" {
		r.Observed.noteMoment(shim.KindRerun, "operator "+c.RerunBy)
	}
	r.bindContext(r.base, p.Timeout)
	stay, gaveUp := c.Stay, c.Repeat.GaveUp // instead of c, which holds on to the caller's request
	r.Caller.leave = context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		leaves := !stay || errors.Is(cause, shim.ErrCancelled)
		if leaves && !(gaveUp != nil && gaveUp(cause) && r.linger.giveUp(cause)) {
			r.Cancel(cause)
		}
	})
	return r
}

// BeginAt has a call that has no record yet go on from a checkpoint.
func (r *Run) BeginAt(cp json.RawMessage) { r.record.setCheckpoint(cp) }

// assembleParts makes the parts of a run whose call and policy are known.
func (r *Run) assembleParts() {
	r.done, r.turn, r.seat = make(chan struct{}), newTurn(r), seat{r}
	r.Caller = caller{run: r, telling: work.NewTurn(), news: make(chan struct{}, 1), leave: func() bool { return true }}
	r.record.run, r.Creation.run, r.outbox.run, r.rounds.run, r.Inbox.run, r.box.run, r.keeping.run = r, r, r, r, r, r, r
	r.linger = newLingering(r)
	r.record.Progress.Token = r.Call.ProgressToken
	r.box.wake, r.Token = make(chan struct{}, 1), tokenInbox{run: r, came: make(chan struct{}, 1)}
	r.outbox.gathers, r.outbox.Partials = r.Call.KeepsPieces(r.policy.Partials), r.policy.Partials
	r.outbox.halted = make(chan struct{})
}

// bindContext makes the run's context: it carries the values of ctx, and ends with the shim and after
// the timeout (0 = none).
func (r *Run) bindContext(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithCancelCause(shim.WithWaiter(ctx, &r.Token))
	stop := r.core.Life.AfterEnd(func() { cancel(r.haltCause()) })
	release := func() bool { return false }
	if timeout > 0 {
		release = time.AfterFunc(timeout, func() { cancel(errTimedOut) }).Stop // costs half as much as a context
	}
	r.Ctx = ctx
	r.Cancel = func(cause error) {
		cancel(cause)
		release()
		stop()
	}
}

// Discard gives back all that a run holds, once its call is over or given up.
func (r *Run) Discard() {
	r.Caller.leave()
	r.Cancel(nil)
	r.ticket.DropSlot()
	r.hold.Release()
	r.Caller.detachStream()
	if lost := r.Creation.maybe; lost != nil && r.RecordID() == "" {
		r.core.Life.Work.Go(func() { r.Creation.buryRecord(*lost) })
	}
}

// takeTurn waits for a slot, and says so in the status message.
func (r *Run) takeTurn() error {
	if !r.ticket.IsQueued() {
		return nil
	}
	r.outbox.setMessage(shim.MessageQueued)
	r.Observed.noteMoment(shim.KindQueued, "")
	r.setQueuing(true)
	r.confirmUnsent()
	err := r.awaitSlot(r.Ctx)
	r.setQueuing(false)
	if err == nil {
		r.outbox.setMessage("")
	}
	return err
}

// awaitSlot waits for a slot. While this replica halts, a slot that comes free stays unused: the halt
// has freed it by ending a call.
func (r *Run) awaitSlot(ctx context.Context) error {
	over := r.Observed.noteQueue()
	err := r.ticket.AwaitSlot(ctx)
	if over(err); err != nil {
		return err
	}
	return context.Cause(r.core.Life.Ctx)
}

func (r *Run) setQueuing(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queuing = yes
}

// confirmUnsent records that the call of a waiting task is unsent, so that an adopter can send it; the
// wait for a slot may be long. If the store fails, the call waits on without that record.
func (r *Run) confirmUnsent() {
	r.mu.Lock()
	due := r.record.exists() && r.queuing && r.record.says == unknown && r.rounds.open == nil
	if due {
		r.record.says = unsent
	}
	r.mu.Unlock()
	if !due {
		return
	}
	ctx, stop := context.WithTimeout(r.Ctx, r.core.StoreTimeout)
	defer stop()
	_, _ = r.record.applyChange(ctx, func() shim.Change { return shim.Change{Call: r.callRecord(false)} })
}

// findCause replaces the error of a call whose context has ended by the cause.
func (r *Run) findCause(err error) error {
	if err != nil && r.core.Life.Ctx.Err() != nil {
		<-r.Ctx.Done() // its end is on its way, and is why this went wrong
	}
	if err == nil || r.Ctx.Err() == nil {
		return err
	}
	switch cause := context.Cause(r.Ctx); {
	case errors.Is(cause, shim.ErrDetached):
		return shim.ErrDraining
	case errors.Is(err, cause) && cause != context.Canceled:
		return err // it may say more
	default:
		return cause
	}
}

// isHidden reports whether the call has a record but is not a task.
func (r *Run) isHidden() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record.isHidden()
}

// hasWaitingCaller reports whether a caller waits here for the reply, without a task.
func (r *Run) hasWaitingCaller() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.record.exists() || r.record.isHidden() && r.Caller.waiting > 0
}

// Progress takes a progress notification. It goes to the caller before there is a handle, into the
// status message after it (protocol.md H17, T44), and into the pieces of the task.
func (r *Run) Progress(p shim.Progress) {
	defer r.Observed.noteProgress()
	if r.foldProgress(p) {
		r.Caller.tellStream(func(s shim.Stream) { s.Progress(p) })
	}
}

// foldProgress takes a progress into the record, and reports whether it is new to the client.
func (r *Run) foldProgress(p shim.Progress) (tell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Checkpoint != nil {
		r.record.setCheckpoint(p.Checkpoint)
	}
	repeats := r.rounds.repeatsProgress(p)
	r.outbox.foldProgress(p, repeats)
	if !repeats {
		r.outbox.gatherProgress(p)
	}
	return !repeats
}

// Log takes a log notification. It goes to the caller before there is a handle, and is dropped after it
// (T44).
func (r *Run) Log(l shim.Log) { r.Caller.tellStream(func(s shim.Stream) { s.Log(l) }) }

// Notified takes a notification of a method that the gateway does not know, for the caller before there
// is a handle, like a log notification.
func (r *Run) Notified(n shim.Notification) {
	r.Caller.tellStream(func(s shim.Stream) {
		if s, ok := s.(shim.Notifier); ok {
			s.Notified(n)
		}
	})
}

// Cork holds back the messages for a caller that waits, or lets them go.
func (r *Run) Cork(yes bool) {
	r.Caller.tellStream(func(s shim.Stream) {
		if s, ok := s.(shim.Corker); ok {
			s.Cork(yes)
		}
	})
}

// Completed takes the news that an elicitation is complete, for a caller that waits on a stream. A task
// has no use for it: its client is asked in the task, and reads it.
func (r *Run) Completed(params json.RawMessage) {
	r.Caller.tellStream(func(s shim.Stream) {
		if s, ok := s.(shim.Asker); ok {
			s.Completed(params)
		}
	})
}

// RecordID is the ID of the record; "" without one.
func (r *Run) RecordID() shim.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record.ID
}

// RoomToAsk makes room for questions of so many bytes, until the call ends, and reports whether there is.
func (r *Run) RoomToAsk(bytes int) bool { return r.keeping.hasRoomToAsk(bytes) }

// Ask puts questions to the caller and waits for the answers.
func (r *Run) Ask(ctx context.Context, q ...shim.Question) ([]shim.Answer, error) {
	return r.box.askQuestions(ctx, q)
}

// Withdraw takes back a question to the caller.
func (r *Run) Withdraw(key string) { r.box.withdrawQuestions([]string{key}) }

// Checkpoint takes the place where the call could be resumed. The function that it returns stores it
// durably once the call is a task; an error stops the upstream client (design.md 0.6).
func (r *Run) Checkpoint(cp json.RawMessage) (stored func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	over := cmp.Or(context.Cause(r.Ctx), context.Cause(r.core.Life.Ctx))
	r.Observed.noteReached()
	if over == nil || r.record.Checkpoint != nil { // a call that is unsent at its end stays unsent
		r.record.setCheckpoint(cp)
	}
	if over != nil {
		return func(context.Context) error { return over } // handOver writes the newest state
	}
	return r.record.storeCheckpoint
}

// Causes that end the context of an upstream call, besides ErrDetached and the caller's own.
var (
	errTimedOut = &shim.UpstreamError{Kind: shim.KindTimeout, Message: "the call ran into its time limit"}
)

// turn is held by whoever speaks with the store about one record, one at a time and in the order of arrival: so a
// state that comes in is newer than those before it. run.mu is taken for moments meanwhile.
type turn struct {
	run  *Run
	held chan struct{} // full while somebody has it
}

func newTurn(r *Run) turn { return turn{run: r, held: make(chan struct{}, 1)} }

func (t turn) take(ctx context.Context) error {
	select {
	case t.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// takeInTime takes the turn for somebody who waits for the store as long as a caller does.
func (t turn) takeInTime() error {
	select {
	case t.held <- struct{}{}:
		return nil
	default:
	}
	ctx, stop := context.WithTimeoutCause(t.run.base, t.run.core.StoreTimeout, shim.ErrUnavailable)
	defer stop()
	return t.take(ctx)
}

func (t turn) give() { <-t.held }

// await waits for what is under way.
func (t turn) await() {
	if t.takeInTime() == nil {
		t.give()
	}
}

// WithRun returns the load of a tool with one more run.
func WithRun(l metrics.ToolLoad, r *Run) metrics.ToolLoad {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.WithLoad(loadOf(r))
}

// loadOf returns the load of one run. Its lock is held.
func loadOf(r *Run) (l metrics.ToolLoad) {
	open := len(r.box.openQuestions())
	if open > 0 {
		l.Questions, l.Asked = open, r.box.since
	}
	switch {
	case r.record.isHidden():
		return l
	case r.queuing:
		l.Queued = 1
	case open > 0:
		l.InputRequired = 1
	default:
		l.Running = 1
	}
	l.Oldest = r.record.born
	return l
}

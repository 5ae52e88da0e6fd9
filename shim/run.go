package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/budget"
	"taskgate/internal/work"
)

// errEnded: the call has its reply, so no task is made of it.
var errEnded = errors.New("the call has been answered")

// run is one call on its way: first the caller's, then, once a task was made of it, the task's. It is
// the Sink of its upstream call. Its parts do everything besides the upstream call: each has the state
// for its work, and says which lock guards it.
type run struct {
	core   *core
	runs   *runs[run] // where it is once it has a record
	srv    *server
	call   Call
	policy Policy
	ticket ticket
	hold   *budget.Hold // the bytes of requests and answers; nil for no bound
	begun  int          // how often the call was begun, this time included
	// firm: the record may say that the call is not sent, so the call is sent only after the store has
	// confirmed that it is sent. run.mu guards it, and queuing, once others know the run.
	firm bool
	// queuing: the call waits for its turn.
	queuing bool
	// sent: the server may have the call.
	sent atomic.Bool
	// trimmed: the record has dropped the params that no later run needs. run.mu guards it.
	trimmed bool

	// base has the values of the caller's context, but a life of its own; ctx is the life of the
	// upstream call, which follows the caller's until caller.releaseClient. cancel ends ctx and the
	// timers that would end it; a closure costs less than a context each.
	base   context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc

	// done is closed when reply and err are set for good.
	done  chan struct{}
	reply Reply
	err   error

	caller   caller
	creation creation
	outbox   outbox
	box      mailbox
	rounds   rounds
	inbox    inbox
	token    tokenInbox
	observed observation
	turn     turn // held by whoever speaks with the store about the record

	mu     sync.Mutex // guards all below, and the state of the parts that say so
	ended  bool       // the upstream call has returned
	record *record    // nil until there is one
	// checkpoint is the newest one; unsaved says that the store may lack it.
	checkpoint json.RawMessage
	unsaved    bool
}

// newRun prepares a call. Its context follows the caller's until a task is made, and ends after the
// policy's timeout.
func newRun(ctx context.Context, shared *core, rs *runs[run], srv *server, c Call, p Policy, tk ticket) *run {
	r := &run{core: shared, runs: rs, srv: srv, call: c, policy: p, ticket: tk, begun: 1, hold: budget.From(ctx).Share()}
	r.call.Stream = nil // a waiting task must let go of its caller's request in memory
	r.assembleParts()
	r.caller.stream, r.caller.waiting = c.Stream, 1
	r.base = context.WithoutCancel(ctx)
	r.observeRun(r.base)
	r.bindContext(r.base, p.Timeout)
	stay := c.Stay // instead of c, which holds on to the caller's request
	r.caller.leave = context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !stay || errors.Is(cause, ErrCancelled) {
			r.cancel(cause)
		}
	})
	return r
}

// assembleParts makes the parts of a run whose call and policy are known.
func (r *run) assembleParts() {
	r.done, r.turn = make(chan struct{}), newTurn(r)
	r.caller = caller{run: r, news: make(chan struct{}, 1), leave: func() bool { return true }}
	r.creation.run, r.outbox.run, r.rounds.run, r.inbox.run, r.box.run = r, r, r, r, r
	r.box.wake, r.token = make(chan struct{}, 1), tokenInbox{run: r, came: make(chan struct{}, 1)}
	r.outbox.gathers, r.outbox.Partials = r.call.keepsPieces(r.policy.Partials), r.policy.Partials
	r.outbox.halted = make(chan struct{})
}

// bindContext makes the run's context: it carries the values of ctx, and ends with the shim and after
// the timeout (0 = none).
func (r *run) bindContext(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, waitsKey{}, r))
	stop := context.AfterFunc(r.core.life.ctx, func() { cancel(r.haltCause()) })
	release := func() bool { return false }
	if timeout > 0 {
		release = time.AfterFunc(timeout, func() { cancel(errTimedOut) }).Stop // costs half as much as a context
	}
	r.ctx = ctx
	r.cancel = func(cause error) {
		cancel(cause)
		release()
		stop()
	}
}

// discard gives back all that a run holds, once its call is over or given up.
func (r *run) discard() {
	r.caller.leave()
	r.cancel(nil)
	r.ticket.dropSlot()
	r.hold.Release()
	r.caller.detachStream()
	if lost := r.creation.maybe; lost != nil && r.record == nil {
		r.core.life.work.Go(func() { r.creation.buryRecord(*lost) })
	}
}

// executeCall waits for a slot, makes the upstream call and, if a task was made of it by then, records
// how it ended.
func (r *run) executeCall() {
	reply, err := r.queueAndSend()
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.turn.await() // an attempt that is under way decides whether this is a task
	r.reply, r.err = reply, err
	close(r.done)
	r.ticket.dropSlot() // the store may take its time
	if r.hasRecord() {
		r.settle()
	}
	r.discard()
}

func (r *run) queueAndSend() (Reply, error) {
	if err := r.takeTurn(); err != nil {
		return Reply{}, err
	}
	r.mu.Lock()
	first := r.checkpoint == nil && r.begun == 1 && r.rounds.open == nil
	r.mu.Unlock()
	if first { // and never sent before
		r.observed.measureQueue()
	}
	return r.rounds.sendRounds()
}

// takeTurn waits for a slot, and says so in the status message.
func (r *run) takeTurn() error {
	if !r.ticket.isQueued() {
		return nil
	}
	r.outbox.setMessage(messageQueued)
	r.observed.noteMoment(KindQueued, "")
	r.setQueuing(true)
	r.confirmUnsent()
	err := r.awaitSlot(r.ctx)
	r.setQueuing(false)
	if err == nil {
		r.outbox.setMessage("")
	}
	return err
}

// awaitSlot waits for a slot. While this replica halts, a slot that comes free stays unused: the halt
// has freed it by ending a call.
func (r *run) awaitSlot(ctx context.Context) error {
	over := r.observed.noteQueue()
	err := r.ticket.awaitSlot(ctx)
	if over(err); err != nil {
		return err
	}
	return context.Cause(r.core.life.ctx)
}

func (r *run) setQueuing(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queuing = yes
}

// confirmUnsent records that the call of a waiting task is unsent, so that an adopter can send it; the
// wait for a slot may be long. If the store fails, the call waits on without that record.
func (r *run) confirmUnsent() {
	r.mu.Lock()
	due := r.record != nil && r.queuing && !r.firm && r.rounds.open == nil
	r.firm = r.firm || due
	r.mu.Unlock()
	if !due {
		return
	}
	ctx, stop := context.WithTimeout(r.ctx, r.core.storeTimeout)
	defer stop()
	_ = r.record.persistChange(ctx, func() Change {
		r.mu.Lock()
		defer r.mu.Unlock()
		return Change{Call: r.callRecord(false)}
	})
}

// findCause replaces the error of a call whose context has ended by the cause.
func (r *run) findCause(err error) error {
	if err != nil && r.core.life.ctx.Err() != nil {
		<-r.ctx.Done() // its end is on its way, and is why this went wrong
	}
	if err == nil || r.ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(r.ctx); !errors.Is(cause, ErrDetached) {
		return cause
	}
	return ErrDraining
}

// hasRecord reports whether the call has a record: it is a task, or had to wait for an answer.
func (r *run) hasRecord() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record != nil
}

// isHidden reports whether the call has a record but is not a task.
func (r *run) isHidden() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record != nil && r.record.hidden
}

// hasWaitingCaller reports whether a caller waits here for the reply, without a task.
func (r *run) hasWaitingCaller() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record == nil || r.record.hidden && r.caller.waiting > 0
}

// Progress takes a progress notification. It goes to the caller before there is a handle, into the
// status message after it (protocol.md H17, T44), and into the pieces of the task.
func (r *run) Progress(p Progress) {
	defer r.observed.noteProgress()
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Checkpoint != nil {
		r.checkpoint, r.unsaved = p.Checkpoint, true
	}
	repeats := r.rounds.repeatsProgress(p)
	r.outbox.foldProgress(p, repeats)
	if !repeats {
		if s := r.caller.stream; s != nil {
			s.Progress(p)
		}
		r.outbox.gatherProgress(p)
	}
}

// Log takes a log notification. It goes to the caller before there is a handle, and is dropped after it
// (T44).
func (r *run) Log(l Log) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.caller.stream; s != nil {
		s.Log(l)
	}
}

// Notified takes a notification of a method that the gateway does not know, for the caller before there
// is a handle, like a log notification.
func (r *run) Notified(n Notification) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.caller.stream.(Notifier); ok {
		s.Notified(n)
	}
}

// Cork holds back the messages for a caller that waits, or lets them go.
func (r *run) Cork(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.caller.stream.(Corker); ok {
		s.Cork(yes)
	}
}

// Completed takes the news that an elicitation is complete, for a caller that waits on a stream. A task
// has no use for it: its client is asked in the task, and reads it.
func (r *run) Completed(params json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.caller.stream.(Asker); ok {
		s.Completed(params)
	}
}

// Ask puts questions to the caller and waits for the answers.
func (r *run) Ask(ctx context.Context, q ...Question) ([]Answer, error) {
	return r.box.askQuestions(ctx, q)
}

// Withdraw takes back a question to the caller.
func (r *run) Withdraw(key string) { r.box.withdrawQuestions([]string{key}) }

// Checkpoint takes the place where the call could be resumed. The function that it returns stores it
// durably once the call is a task; an error stops the upstream client (design.md 0.6).
func (r *run) Checkpoint(cp json.RawMessage) (stored func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	over := cmp.Or(context.Cause(r.ctx), context.Cause(r.core.life.ctx))
	r.observed.noteReached()
	if over == nil || r.checkpoint != nil { // a call that is unsent at its end stays unsent
		r.checkpoint, r.unsaved = cp, true
	}
	if over != nil {
		return func(context.Context) error { return over } // handOver writes the newest state
	}
	return r.storeCheckpoint
}

// storeCheckpoint writes the newest checkpoint to the record, if there is one.
func (r *run) storeCheckpoint(ctx context.Context) error {
	if err := r.turn.take(ctx); err != nil { // an attempt that is under way may have an older one
		return err
	}
	kept := r.hasRecord()
	r.turn.give()
	if !kept {
		return nil
	}
	return work.Apart(func() error {
		_, err := r.record.applyWithPieces(ctx, func() Change {
			r.unsaved = false
			if r.trimmed {
				return Change{Checkpoint: r.checkpoint}
			}
			// If the record says that the call was not sent, an adopter sends it. A failover must not bring
			// that back (design.md 0.20).
			return Change{Checkpoint: r.checkpoint, Call: r.callRecord(true), Durable: r.firm}
		}, func(Task) {})
		if err == nil {
			r.observed.logSent()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.trimmed, r.unsaved = r.trimmed || err == nil, r.unsaved || err != nil
		return err
	})
}

// Causes that end the context of an upstream call, besides ErrDetached and the caller's own.
var (
	errTaskCancelled = errors.New("the task was cancelled")
	errTimedOut      = &UpstreamError{Kind: KindTimeout, Message: "the call ran into its time limit"}
)

// turn is held by whoever speaks with the store about one record, one at a time and in the order of arrival: so a
// state that comes in is newer than those before it. run.mu is taken for moments meanwhile.
type turn struct {
	run  *run
	held chan struct{} // full while somebody has it
}

func newTurn(r *run) turn { return turn{run: r, held: make(chan struct{}, 1)} }

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
	ctx, stop := context.WithTimeoutCause(t.run.base, t.run.core.storeTimeout, ErrUnavailable)
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

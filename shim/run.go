package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// errEnded: the call has its reply, so no task is made of it.
var errEnded = errors.New("the call has been answered")

// run is one call on its way: first the caller's, then, once a task was made of
// it, the task's. It is the Sink of its upstream call.
type run struct {
	s      *Shim
	srv    *server
	call   Call
	policy Policy
	ticket ticket
	runs   int // how often the call was begun, this time included
	// firm: the call is not sent unless the store has confirmed its record. It is set
	// before anything else knows the run, or by the goroutine of the upstream call.
	firm bool
	// trimmed: the record has no arguments any more that nobody will need. It
	// belongs to the goroutine of the upstream call.
	trimmed bool

	// base has the values of the caller's context but not its end; ctx is the life
	// of the upstream call, which follows the caller's as long as leave says so.
	base   context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	leave  func() bool // stops following the end of the caller's context

	// done is closed when reply and err are set, which are not changed after.
	done  chan struct{}
	reply Reply
	err   error

	mu      sync.Mutex
	stream  Stream        // where progress goes, while there is no handle
	ended   bool          // the upstream call has returned
	making  chan struct{} // closed once it is decided whether there is a record
	task    *taskState    // nil until a task was made
	maybe   *Task         // a creation whose reply was lost: it may be stored
	message string        // the newest status message
	// progress is the newest one, where the caller named a token for it.
	progress json.RawMessage
	mark     json.RawMessage
	moved    bool // mark is newer than what the store has
	// batcher gathers what is shown of the task while it runs; nil for nothing. It is
	// set before anything else knows the run.
	batcher *batcher
	box     mailbox
	reading reading
	// round is what the server's last answer asked for, while that is open. It is
	// changed by the goroutine of the upstream call only.
	round *round
	// attended: a caller waits for the reply here.
	attended bool
	// news tells that caller that there is something to look at before the reply.
	news chan struct{}
}

// taskState is what a run knows of its record.
type taskState struct {
	id      ID
	made    Task          // as it was created or adopted
	hidden  bool          // it is no task yet (design.md 0.13); guarded by run.mu
	lease   Lease         // guarded by run.mu: an adoption by this very replica changes it
	over    chan struct{} // closed when nothing more is written of it
	born    time.Time     // by this process's clock; only differences count
	span    trace.Span
	counted []string // what its end gives back to Shim.tasks

	writing chan struct{} // full while a change of the record is made
	order   int64         // of the last change; guarded by writing

	folding bool      // a write of message is due, or under way
	refold  time.Time // before that the next one may not go out
	ttl     *time.Timer
	raised  time.Duration // the TTL last promised
	abandon *time.Timer   // ends a parked call that nobody came back for
}

// newRun prepares a call. Its context follows the caller's until a task is made,
// and ends after the policy's timeout.
func (s *Shim) newRun(ctx context.Context, srv *server, c Call, p Policy, tk ticket) *run {
	r := &run{s: s, srv: srv, call: c, policy: p, ticket: tk, stream: c.Stream, runs: 1, attended: true}
	r.call.Stream = nil // a task that waits must not keep its caller's request in memory
	r.channels()
	r.batcher = newBatcher(c, p.Partials)
	r.call.Request.LogHints = p.Partials.Logs && c.hints()
	r.base = context.WithoutCancel(ctx)
	r.bind(r.base, p.Timeout)
	stay := c.Stay // and not c, which holds on to the caller's request
	r.leave = context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !stay || errors.Is(cause, ErrCancelled) {
			r.cancel(cause)
		}
	})
	return r
}

func (r *run) channels() {
	r.done, r.news, r.box.wake = make(chan struct{}), make(chan struct{}, 1), make(chan struct{}, 1)
}

// bind makes the run's context: it carries the values of ctx, ends with the shim,
// and after the timeout (0 = none).
func (r *run) bind(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.s.ctx, func() { cancel(r.parting()) })
	release := func() bool { return false }
	if timeout > 0 {
		release = time.AfterFunc(timeout, func() { cancel(errTimedOut) }).Stop // takes half of what a context takes
	}
	r.ctx = ctx
	r.cancel = func(cause error) {
		cancel(cause)
		release()
		stop()
	}
}

// mute stops talking to the caller's stream.
func (r *run) mute() {
	r.mu.Lock()
	r.stream = nil
	r.mu.Unlock()
}

// discard gives back what a run holds that will not be executed any more.
func (r *run) discard() {
	r.leave()
	r.cancel(nil)
	r.ticket.drop()
	r.mute()
	if r.maybe != nil && r.task == nil {
		id := r.maybe.ID
		r.s.work.Go(func() {
			r.s.withdraw(id, leftMessage, time.Second)
			r.s.unexpect(id)
		})
	}
}

// exec waits for a slot, makes the upstream call and, if a task was made of it by
// then, records how it ended.
func (r *run) exec() {
	reply, err := r.queueAndSend()
	r.mu.Lock()
	r.ended = true
	making := r.making
	r.mu.Unlock()
	if making != nil {
		<-making // whether this is a task is being decided
	}
	r.reply, r.err = reply, err
	close(r.done)
	if r.stored() {
		r.settle()
	}
	r.discard()
}

func (r *run) queueAndSend() (Reply, error) {
	if r.ticket.queued() {
		r.say("queued")
		r.confirm()
		if err := r.ticket.wait(r.ctx); err != nil {
			return Reply{}, err
		}
		if err := context.Cause(r.s.ctx); err != nil {
			return Reply{}, err // the slot is that of a call that the halt has ended
		}
		r.say("")
	}
	return r.send()
}

// confirm records of a task that waits for its turn that it has not been sent: it may
// wait for long, and whoever adopts it can send it then.
func (r *run) confirm() {
	if !r.stored() || r.firm {
		return
	}
	r.firm = true
	if err := r.persist(r.ctx, func() Change { return Change{Call: r.callRecord(false)} }); err != nil {
		r.firm = false
	}
}

// why replaces the error of a call whose context has ended by the cause.
func (r *run) why(err error) error {
	if err != nil && r.s.ctx.Err() != nil {
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

// answered reports whether the reply is there. An answered run also ends its
// context, so whoever saw that has to ask.
func (r *run) answered() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *run) lease() Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.task.lease
}

// stored reports whether the call has a record: it is a task, or had to wait for an
// answer.
func (r *run) stored() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.task != nil
}

// awaitMaking waits until nobody makes a record. r.mu is held before and after.
func (r *run) awaitMaking() {
	for r.making != nil {
		making := r.making
		r.mu.Unlock()
		<-making
		r.mu.Lock()
	}
}

// Progress takes a progress notification: to the caller before there is a handle,
// into the status message after it (protocol.md H17, T44), and into what is shown of
// the task.
func (r *run) Progress(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Checkpoint != nil {
		r.mark, r.moved = p.Checkpoint, true
	}
	if r.stream != nil {
		r.stream.Progress(p)
	}
	if r.policy.FoldProgress {
		r.message = describe(p)
	}
	if r.call.ProgressToken != nil {
		r.progress = p.Raw
	}
	if r.policy.FoldProgress || r.call.ProgressToken != nil {
		r.fold()
	}
	r.gatherProgress(p)
}

// Log takes a log notification: to the caller before there is a handle; after it
// (T44) it is at most a hint.
func (r *run) Log(l Log) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream != nil {
		r.stream.Log(l)
	}
	r.gatherLog(l)
}

// Completed takes word of an elicitation that is complete, for a caller who waits on a
// stream. In a task nobody needs it: its client is asked there, and reads it.
func (r *run) Completed(params json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.stream.(Completer); ok {
		c.Completed(params)
	}
}

// Checkpoint keeps where the call could be resumed, durably once it is a task: a
// failure keeps the leg from going on (design.md 0.6).
func (r *run) Checkpoint(ctx context.Context, cp json.RawMessage) error {
	r.mu.Lock()
	over := cmp.Or(context.Cause(r.ctx), context.Cause(r.s.ctx))
	if over == nil || r.mark != nil { // a call that has not begun by its end never does
		r.mark, r.moved = cp, true
	}
	making := r.making
	r.mu.Unlock()
	if over != nil {
		return over // whoever hands the call over writes what is known of it
	}
	if making != nil {
		<-making
	}
	if !r.stored() {
		return nil
	}
	return aside(func() error {
		r.drainBatches(ctx)
		first := !r.trimmed
		r.trimmed = true
		change := Change{Checkpoint: cp, Forget: r.forgettable()}
		// Where the record says that the call was not sent, whoever adopts it
		// sends it. A failover must not bring that back (design.md 0.20).
		change.Durable = first && r.firm
		err := r.persist(ctx, func() Change {
			r.mu.Lock()
			defer r.mu.Unlock()
			if first {
				change.Call = r.callRecord(true)
			}
			if r.batcher == nil { // else the pieces before a newer one may not be stored
				change.Checkpoint, r.moved = r.mark, false
			}
			return change
		})
		if err == nil {
			r.forgot(change.Forget)
			return nil
		}
		r.mu.Lock()
		r.moved = true
		r.mu.Unlock()
		return err
	})
}

// aside runs f on a goroutine of its own and waits for its end. The goroutine of a
// parked call keeps the stack that it has grown to, and a write to the store grows it
// to the double of what waiting takes.
func aside(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

// say sets the status message.
func (r *run) say(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.message = message
	r.fold()
}

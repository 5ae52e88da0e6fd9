package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/semconv"
	"taskgate/shim/content"
)

// settle records how the task ended. The outcome is kept here until the store has taken it, or has said that
// the record is another's or gone; no other error of the store is final. It is given up when its time in the
// store would be over, or this process ends, and the log then names the task.
func (r *run) settle() {
	rec := r.record
	defer rec.closeRecord()
	r.outbox.haltWriting()
	c, how := r.endChange()
	defer func() { r.observed.noteEnd(how, r.err) }()
	if c.To == "" {
		switch {
		case errors.Is(r.err, errTaskCancelled):
			if !r.isHidden() {
				r.holdCancellation()
			}
		case r.core.life.ctx.Err() != nil:
			r.handOver()
		}
		return
	}
	c.Moments = []Moment{{Kind: KindEnded, Detail: how.outcome}}
	if c.Outcome != nil {
		c.Outcome.Unknown = how.outcome == semconv.OutcomeUnknown
	}
	c.Op, c.Visible = r.core.newOp(), !r.isHidden()
	ctx, stop := context.WithTimeout(r.core.life.writes, max(rec.retention(), leastRestored))
	defer stop()
	err := r.persistLast(ctx, &c)
	switch {
	case err == nil, errors.Is(err, ErrNotFound):
		r.observed.measureTask(how.outcome)
		held := r.core.outcomes.holdEnding(ending{made: rec.made, end: r.outbox.withRecent(c)})
		if err != nil && held { // the store has forgotten that the task was made
			r.core.outcomes.assureEnding(r.core.life.writes, rec.id)
			return
		}
	case errors.Is(err, ErrFinal):
		how = endedCancelled
		r.holdCancellation()
		return
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrDetached): // another replica goes on with it
		how = finish{Working, semconv.OutcomeLeft, labelOf(err)}
		return
	}
	if err != nil {
		r.observed.logRun(slog.LevelError, "the outcome of a task could not be recorded", "err", err)
	}
}

// persistLast makes the last change of the run, with the pieces that are left. It sets them in c, because a
// held ending must equal what was written.
func (r *run) persistLast(ctx context.Context, c *Change) error {
	_, err := r.record.applyPlaced(ctx, func() Change {
		r.outbox.addTail(c)
		return *c
	}, func(Task) {})
	return err
}

// endChange returns the change that ends the task, and how the run ended. The change has no status if
// this run must not end the task: it was cancelled already, or another replica goes on with it.
func (r *run) endChange() (Change, finish) {
	e, message := r.reply.Error, ""
	left := finish{Working, semconv.OutcomeLeft, labelOf(r.err)}
	up, ofServer := errors.AsType[*UpstreamError](r.err)
	switch {
	case r.err == nil && e == nil && r.reply.InputRequired:
		e = &RPCError{Code: codeInternal, Message: "the server asked for input after the call had become a task, and the client cannot be asked"}
	case r.err == nil:
	case errors.Is(r.err, errTaskCancelled):
		return Change{}, endedCancelled
	case errors.Is(r.err, ErrLeaseLost):
		return Change{}, left
	case errors.Is(r.err, ErrDraining), errors.Is(r.err, ErrDetached):
		if r.core.life.ctx.Err() != nil && !r.canHandOver() { // it became a task, or was sent, at the last moment
			return failWith(explainError(errShutDown)), finish{Failed, semconv.OutcomeUnknown, errShutDown.Kind}
		}
		return Change{}, left
	case r.ctx.Err() != nil && (errors.Is(r.err, ErrCancelled) || errors.Is(r.err, context.Canceled)):
		message = leftMessage
		return Change{To: Cancelled, StatusMessage: &message}, endedCancelled
	case errors.Is(r.err, errTimedOut):
		return failWith(explainError(r.err)), finish{Failed, semconv.OutcomeExpired, errTimedOut.Kind}
	case ofServer && !up.Unsent && slices.Contains(maybeDone, up.Kind):
		return failWith(explainError(r.err)), finish{Failed, semconv.OutcomeUnknown, up.Kind}
	default:
		return failWith(explainError(r.err)), finish{Failed, semconv.OutcomeFailed, labelOf(r.err)}
	}
	if e != nil {
		return failWith(e), finish{Failed, semconv.OutcomeFailed, strconv.FormatInt(e.Code, 10)}
	}
	how := finish{Completed, semconv.OutcomeCompleted, ""}
	if r.reply.IsError {
		message, how = quoteError(r.reply.Result), finish{Completed, semconv.OutcomeToolError, semconv.OutcomeToolError}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return Change{
		To: Completed, StatusMessage: &message, Progress: r.outbox.newestProgress(),
		Outcome: &Outcome{Result: r.reply.Result, IsError: r.reply.IsError},
	}, how
}

// maybeDone are the kinds of an UpstreamError after which the server may have done the work.
var maybeDone = []string{"lost", "shutdown", KindClosed, KindSession}

// finish is how an attempt ended.
type finish struct {
	status  Status // Working while the task goes on
	outcome string
	kind    string // error.type; "" for none
}

// endedCancelled is how the attempt at a cancelled task ended.
var endedCancelled = finish{Cancelled, semconv.OutcomeCancelled, semconv.OutcomeCancelled}

// failWith ends a task with a JSON-RPC error, which its status message repeats (T26).
func failWith(e *RPCError) Change {
	message := clipText(e.Message)
	return Change{To: Failed, StatusMessage: &message, Outcome: &Outcome{Error: e.Object()}}
}

// explainError tells the task's owner why its call failed. It quotes only texts made for clients;
// others may name addresses.
func explainError(err error) *RPCError {
	out := &RPCError{Code: codeInternal, Message: "the call failed inside the gateway"}
	var up *UpstreamError
	var busy *BusyError
	switch {
	case errors.As(err, &up):
		out.Message, out.Data = up.TellClient(), retryData(up.RetryAfterMs)
	case errors.As(err, &busy):
		out.Message, out.Data = busy.Error(), retryData(busy.RetryAfter.Milliseconds())
	}
	return out
}

func retryData(ms int64) json.RawMessage {
	if ms <= 0 {
		return nil
	}
	return fmt.Appendf(nil, `{"retryAfterMs":%d}`, ms)
}

// quoteError returns the first text of a tool's own error, for the status message: the legacy dialect
// shows such a task as failed, and some clients show only its message then (protocol.md H1).
func quoteError(result json.RawMessage) string {
	for _, block := range content.Blocks(result) {
		if text, ok := jsonrpc.GetString(block, "text"); ok && text != "" {
			return clipText(text)
		}
	}
	return "the tool reported an error"
}

// holdCancellation keeps the cancellation of this run's task by another caller. The call is stopped for
// it and its replica is alive, so if the store forgets the cancellation the task would otherwise stay
// working for ever.
func (r *run) holdCancellation() {
	t, err := r.record.readStored()
	if err != nil || t.Status.Final() && t.Status != Cancelled {
		return
	}
	r.observed.measureTask(semconv.OutcomeCancelled)
	message := t.StatusMessage
	if !t.Status.Final() {
		message = messageCancelled // forgotten already
	}
	r.core.outcomes.holdEnding(ending{made: r.record.made, end: Change{Op: r.core.newOp(), To: Cancelled, StatusMessage: &message}})
	if !t.Status.Final() {
		r.core.outcomes.assureEnding(r.core.life.writes, r.record.id)
	}
}

// errShutDown ends a task whose replica stops while other replicas cannot go on with its call. As the
// cause of a context it cancels the call at the server, since its answer has no receiver.
var errShutDown = &UpstreamError{Kind: "shutdown", Message: "the gateway was shut down while this call ran; the upstream may have finished the work"}

// haltCause returns the cause with which this replica's halt ends the call: a call that another replica
// can go on with is left to it, and any other ends here with a message (design.md 0.6). It first waits
// for an attempt to make the record.
func (r *run) haltCause() error {
	r.turn.await()
	if r.hasRecord() && !r.canHandOver() {
		return errShutDown
	}
	return ErrDetached
}

// canHandOver reports whether another replica can go on with the call: the ladder of design.md 0.5 has
// a rung for it above the last.
func (r *run) canHandOver() bool {
	r.mu.Lock()
	checkpoint, made := r.checkpoint, r.record.made
	made.Position = r.outbox.at
	possible := checkpoint == nil || r.rounds.recordedRound() != nil || r.mayRunAgain(made)
	r.mu.Unlock()
	return possible || r.srv.Upstream == nil || r.srv.Upstream.Resumable(checkpoint)
}

// handOver leaves the call to an adopter, with its newest state: the checkpoint and the pieces up to
// there, or the fact that it was not sent. The goroutine of the upstream call does this once the call
// is over here, so that the state stays true.
func (r *run) handOver() {
	r.mu.Lock()
	change, open := Change{Checkpoint: r.checkpoint}, r.rounds.recordedRound() != nil
	r.mu.Unlock()
	switch {
	case open:
		return // the record says so already
	case r.checkpoint == nil:
		r.mu.Lock()
		r.firm = true
		change.Call = r.callRecord(false)
		r.mu.Unlock()
	}
	change.Moments = []Moment{{Kind: KindLeft, Detail: string(r.core.replica)}}
	err := r.persistLast(r.core.life.writes, &change)
	if err != nil && !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrFinal) {
		r.observed.logRun(slog.LevelWarn, "a call is handed over with what was known of it before", "err", err)
	}
}

// messageCancelled is the status message of a task that its owner cancelled.
const messageCancelled = "cancelled by the client"

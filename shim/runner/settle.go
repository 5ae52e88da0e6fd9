package runner

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
	"taskgate/shim"
	"taskgate/shim/content"
	"taskgate/shim/node"
)

// settle records how the task ended. The outcome is kept here until the store has taken it, or has said that
// the record is another's or gone; no other error of the store is final. It is given up when its time in the
// store would be over, or this process ends, and the log then names the task.
func (r *Run) settle() {
	rec := &r.record
	defer rec.closeRecord()
	r.outbox.haltWriting()
	unread := r.linger.endBefore()
	c, how := r.endChange()
	defer func() { r.Observed.noteEnd(how, r.err) }()
	if c.To == "" {
		switch {
		case errors.Is(r.err, node.ErrTaskCancelled):
			r.keeping.countEnd(shim.Change{})
			if !r.isHidden() {
				r.holdCancellation()
			}
		case r.core.Life.Ctx.Err() != nil:
			r.handOver()
		}
		return
	}
	c.KeepArguments = r.keeping.outlastsEnd(how)
	if unread {
		c.Outcome, c.Retain = nil, quietKept
	}
	if !r.keeping.awaitRoom(&c) {
		c, how = failWith(explainError(errNoRoom)), finish{shim.Failed, semconv.OutcomeFailed, errNoRoom.Kind}
	}
	c.Moments = []shim.Moment{{Kind: shim.KindEnded, Detail: how.outcome}}
	if c.Outcome != nil {
		c.Outcome.Unknown = how.outcome == semconv.OutcomeUnknown
	}
	c.Op, c.Visible = r.core.NewOp(), !r.isHidden()
	ctx, stop := context.WithTimeout(r.core.Life.Writes, max(rec.copyTask().Retain, leastRestored))
	defer stop()
	err := r.persistLast(ctx, &c)
	switch {
	case err == nil, errors.Is(err, shim.ErrNotFound):
		r.keeping.countEnd(c)
		r.Observed.measureTask(how.outcome)
		made := rec.copyTask()
		if c.KeepArguments {
			made.Arguments = r.keeping.encodeArguments()
		}
		held := r.core.Outcomes.HoldEnding(node.Ending{Made: made, End: r.outbox.withRecent(c)})
		if err != nil && held { // the store has forgotten that the task was made
			r.core.Outcomes.AssureEnding(r.core.Life.Writes, rec.ID)
			return
		}
	case errors.Is(err, shim.ErrFinal):
		r.keeping.countEnd(shim.Change{})
		how = endedCancelled
		r.holdCancellation()
		return
	case errors.Is(err, shim.ErrLeaseLost), errors.Is(err, shim.ErrDetached): // another replica goes on with it
		how = finish{shim.Working, semconv.OutcomeLeft, labelOf(err)}
		return
	}
	if err != nil {
		r.Observed.logRun(slog.LevelError, "the outcome of a task could not be recorded", "err", err)
	}
}

// persistLast makes the last change of the run, with the pieces that are left. It sets them in c, because a
// held ending must equal what was written.
func (r *Run) persistLast(ctx context.Context, c *shim.Change) error {
	_, err := r.record.applyPlaced(ctx, func() shim.Change {
		r.outbox.addTail(c)
		return *c
	}, func() {})
	return err
}

// endChange returns the change that ends the task, and how the run ended. The change has no status if
// this run must not end the task: it was cancelled already, or another replica goes on with it.
func (r *Run) endChange() (shim.Change, finish) {
	e, message := r.reply.Error, ""
	left := finish{shim.Working, semconv.OutcomeLeft, labelOf(r.err)}
	up, ofServer := errors.AsType[*shim.UpstreamError](r.err)
	switch {
	case r.err == nil && e == nil && r.reply.InputRequired:
		e = &shim.RPCError{Code: shim.CodeInternal, Message: "the server asked for input after the call had become a task, and the client cannot be asked"}
	case r.err == nil:
	case errors.Is(r.err, node.ErrTaskCancelled):
		return shim.Change{}, endedCancelled
	case errors.Is(r.err, shim.ErrLeaseLost):
		return shim.Change{}, left
	case errors.Is(r.err, shim.ErrDraining), errors.Is(r.err, shim.ErrDetached):
		if r.core.Life.Ctx.Err() != nil && !r.canHandOver() { // it became a task, or was sent, at the last moment
			return failWith(explainError(errShutDown)), finish{shim.Failed, semconv.OutcomeUnknown, errShutDown.Kind}
		}
		return shim.Change{}, left
	case r.Ctx.Err() != nil && (errors.Is(r.err, shim.ErrCancelled) || errors.Is(r.err, context.Canceled)):
		message = node.LeftMessage
		return shim.Change{To: shim.Cancelled, StatusMessage: &message}, endedCancelled
	case errors.Is(r.err, errTimedOut):
		return failWith(explainError(r.err)), finish{shim.Failed, semconv.OutcomeExpired, errTimedOut.Kind}
	case ofServer && !up.Unsent && !slices.Contains(answered, up.Kind):
		return failWith(explainError(r.err)), finish{shim.Failed, semconv.OutcomeUnknown, up.Kind}
	default:
		return failWith(explainError(r.err)), finish{shim.Failed, semconv.OutcomeFailed, labelOf(r.err)}
	}
	if e != nil {
		return failWith(e), finish{shim.Failed, semconv.OutcomeFailed, strconv.FormatInt(e.Code, 10)}
	}
	how := finish{shim.Completed, semconv.OutcomeCompleted, ""}
	if r.reply.IsError {
		message, how = quoteError(r.reply.Result), finish{shim.Completed, semconv.OutcomeToolError, semconv.OutcomeToolError}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return shim.Change{
		To: shim.Completed, StatusMessage: &message, Progress: r.record.newestProgress(),
		Outcome: &shim.Outcome{Result: r.reply.Result, IsError: r.reply.IsError},
	}, how
}

// answered are the kinds of an UpstreamError that are an answer of the server, which has failed or refused the call. After any
// other error of a call that was sent, the server may have done the work.
var answered = []string{shim.KindRefused, shim.KindOverloaded, shim.KindProtocol}

// finish is how an attempt ended.
type finish struct {
	status  shim.Status // Working while the task goes on
	outcome string
	kind    string // error.type; "" for none
}

// endedCancelled is how the attempt at a cancelled task ended.
var endedCancelled = finish{shim.Cancelled, semconv.OutcomeCancelled, semconv.OutcomeCancelled}

// failWith ends a task with a JSON-RPC error, which its status message repeats (T26).
func failWith(e *shim.RPCError) shim.Change {
	message := clipText(e.Message)
	return shim.Change{To: shim.Failed, StatusMessage: &message, Outcome: &shim.Outcome{Error: e.Object()}}
}

// explainError tells the task's owner why its call failed. It quotes only texts made for clients;
// others may name addresses.
func explainError(err error) *shim.RPCError {
	out := &shim.RPCError{Code: shim.CodeInternal, Message: "the call failed inside the gateway"}
	var up *shim.UpstreamError
	var busy *shim.BusyError
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
func (r *Run) holdCancellation() {
	t, err := r.record.readStored()
	if err != nil || t.Status.Final() && t.Status != shim.Cancelled {
		return
	}
	r.Observed.measureTask(semconv.OutcomeCancelled)
	message := t.StatusMessage
	if !t.Status.Final() {
		message = node.MessageCancelled // forgotten already
	}
	r.core.Outcomes.HoldEnding(node.Ending{Made: r.record.copyTask(), End: shim.Change{Op: r.core.NewOp(), To: shim.Cancelled, StatusMessage: &message}})
	if !t.Status.Final() {
		r.core.Outcomes.AssureEnding(r.core.Life.Writes, r.record.ID)
	}
}

// errShutDown ends a task whose replica stops while other replicas cannot go on with its call. As the
// cause of a context it cancels the call at the server, since its answer has no receiver.
var errShutDown = &shim.UpstreamError{Kind: "shutdown", Message: "the gateway was shut down while this call ran; the upstream may have finished the work"}

// haltCause returns the cause with which this replica's halt ends the call: a call that another replica
// can go on with is left to it, and any other ends here with a message (design.md 0.6). It first waits
// for an attempt to make the record.
func (r *Run) haltCause() error {
	r.turn.await()
	if r.RecordID() != "" && !r.canHandOver() {
		return errShutDown
	}
	return shim.ErrDetached
}

// canHandOver reports whether another replica can go on with the call: the ladder of design.md 0.5 has
// a rung for it above the last.
func (r *Run) canHandOver() bool {
	r.mu.Lock()
	checkpoint := r.record.Checkpoint
	possible := checkpoint == nil || r.rounds.recordedRound() != nil
	r.mu.Unlock()
	return possible || r.mayRunAgain() || r.Srv.Upstream == nil || r.Srv.Upstream.Resumable(checkpoint)
}

// handOver leaves the call to an adopter, with its newest state: the checkpoint and the pieces up to
// there, or the fact that it was not sent. The goroutine of the upstream call does this once the call
// is over here, so that the state stays true.
func (r *Run) handOver() {
	r.mu.Lock()
	change, open := shim.Change{Checkpoint: r.record.Checkpoint}, r.rounds.recordedRound() != nil
	if change.Checkpoint == nil && !open {
		r.record.says = unsent
		change.Call = r.callRecord(false)
	}
	r.mu.Unlock()
	if open {
		return // the record says so already
	}
	change.Moments = []shim.Moment{{Kind: shim.KindLeft, Detail: string(r.core.Replica)}}
	err := r.persistLast(r.core.Life.Writes, &change)
	if err != nil && !errors.Is(err, shim.ErrLeaseLost) && !errors.Is(err, shim.ErrFinal) {
		r.Observed.logRun(slog.LevelWarn, "a call is handed over with what was known of it before", "err", err)
	}
}

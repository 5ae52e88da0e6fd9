package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
	"unicode/utf8"

	"taskgate/internal/jsonrpc"
)

// Waits between attempts on a store that is unavailable.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
	opTimeout  = 10 * time.Second // of one attempt
)

// codeInternal is JSON-RPC's internal error, the code of everything that failed
// for another reason than what the server answered (design.md 0.5).
const codeInternal = -32603

// digestBytes bounds what a status message quotes of an error.
const digestBytes = 200

// settle records how the task ended. While the store is down the outcome is kept
// here and written as soon as it can be; only a lost lease, or the end of this
// process, leaves the rest to whoever adopts the task.
func (r *run) settle() {
	defer r.closeTask()
	r.haltBatches()
	c, ok := r.outcome()
	if !ok {
		switch {
		case errors.Is(r.err, errTaskCancelled):
			if !r.isHidden() {
				r.holdCancellation()
			}
		case r.s.ctx.Err() != nil:
			r.handOver()
		}
		return
	}
	c.Op, c.Visible = r.s.op(), !r.isHidden()
	if r.err != nil {
		r.s.log.WarnContext(r.ctx, "the call of a task failed", "task", r.task.id, "tool", r.call.Request.Name, "upstream", r.srv.name, "err", r.err)
	}
	r.finish(&c)
	err := r.persist(r.s.writes, func() Change { return c })
	if errors.Is(err, ErrPosition) { // the store has lost some of the stream
		r.refit(&c)
		err = r.persist(r.s.writes, func() Change { return c })
	}
	switch {
	case err == nil:
		r.s.hold(ending{made: r.task.made, end: c, streamed: r.streamed()})
	case errors.Is(err, ErrNotFound): // the store has forgotten that the task was made
		if r.s.hold(ending{made: r.task.made, end: c, streamed: r.streamed()}) {
			r.s.assure(r.s.writes, r.task.id)
			return
		}
	case errors.Is(err, ErrFinal):
		r.holdCancellation()
	}
	if err != nil && !errors.Is(err, ErrFinal) && !errors.Is(err, ErrDetached) {
		r.s.log.Error("the outcome of a task could not be recorded", "task", r.task.id, "tool", r.call.Request.Name, "err", err)
	}
}

// outcome is the change that ends the task, or false where the task is not this
// run's to end: it was cancelled already, or others go on with it.
func (r *run) outcome() (Change, bool) {
	if r.err != nil {
		switch {
		case errors.Is(r.err, errTaskCancelled), errors.Is(r.err, ErrLeaseLost):
			return Change{}, false
		case errors.Is(r.err, ErrDraining), errors.Is(r.err, ErrDetached):
			if r.s.ctx.Err() != nil && !r.goesOn() { // it became a task, or was sent, at the last moment
				return failed(explain(errShutDown)), true
			}
			return Change{}, false
		case r.ctx.Err() != nil && (errors.Is(r.err, ErrCancelled) || errors.Is(r.err, context.Canceled)):
			message := leftMessage
			return Change{To: Cancelled, StatusMessage: &message}, true
		}
		return failed(explain(r.err)), true
	}
	switch {
	case r.reply.Error != nil:
		return failed(r.reply.Error), true
	case r.reply.InputRequired:
		return failed(&RPCError{Code: codeInternal, Message: "the server asked for input after the call had become a task, and the client cannot be asked"}), true
	}
	message := ""
	if r.reply.IsError {
		message = digest(r.reply.Result)
	}
	return Change{To: Completed, StatusMessage: &message, Outcome: &Outcome{Result: r.reply.Result, IsError: r.reply.IsError}}, true
}

// failed ends a task with a JSON-RPC error, which its status message repeats (T26).
func failed(e *RPCError) Change {
	message := clip(e.Message)
	return Change{To: Failed, StatusMessage: &message, Outcome: &Outcome{Error: e.object()}}
}

// object is the error as JSON, its data untouched.
func (e *RPCError) object() json.RawMessage {
	b := append([]byte(`{"code":`), strconv.FormatInt(e.Code, 10)...)
	b = append(b, `,"message":`...)
	b = jsonrpc.AppendString(b, e.Message)
	if e.Data != nil {
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// explain says to the task's owner why its call failed. Only texts made for
// clients are quoted; anything else may name addresses.
func explain(err error) *RPCError {
	out := &RPCError{Code: codeInternal, Message: "the call failed inside the gateway"}
	var up *UpstreamError
	var busy *BusyError
	switch {
	case errors.As(err, &up):
		out.Message, out.Data = up.Message, retryData(up.RetryAfterMs)
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

// digest is the first text of a tool's own error, for the status message: the
// legacy dialect shows such a task as failed, and some clients show nothing but
// its message then (protocol.md H1).
func digest(result json.RawMessage) string {
	content, _ := jsonrpc.Get(result, "content")
	for block := range jsonrpc.Elements(content) {
		if text, ok := jsonrpc.GetString(block, "text"); ok && text != "" {
			return clip(text)
		}
	}
	return "the tool reported an error"
}

// clip shortens a text to digestBytes without cutting a character.
func clip(s string) string {
	if len(s) <= digestBytes {
		return s
	}
	n := digestBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// persist makes one change to the task as its runner, and repeats it while the
// store is unavailable. What the store says about the task ends the upstream call
// where that is due. change is called once, when it is this change's turn.
func (r *run) persist(ctx context.Context, change func() Change) error {
	_, err := r.apply(ctx, change)
	return err
}

// apply is persist that returns the task after the change. The changes of a run go out
// one after the other, so that none overtakes another on its way, and each has its number,
// so that the store ignores what arrives late all the same.
func (r *run) apply(ctx context.Context, change func() Change) (Task, error) {
	select {
	case r.task.writing <- struct{}{}:
	case <-ctx.Done():
		return Task{}, context.Cause(ctx)
	}
	defer func() { <-r.task.writing }()
	r.task.order++
	c := change()
	c.Order = r.task.order
	var t Task
	var lease Lease
	err := r.s.retry(ctx, func(ctx context.Context) (err error) {
		for lease = r.lease(); ; lease = r.lease() {
			t, err = r.s.store.Apply(ctx, r.task.id, &lease, c)
			renewed := errors.Is(err, ErrLeaseLost) && lease != r.lease()
			if !renewed && !(errors.Is(err, ErrNotFound) && r.restore(ctx) == nil) {
				return err
			}
		}
	})
	if err != nil {
		r.lost(err, lease)
	}
	return t, err
}

// retry repeats an operation, with growing pauses, while the store is unavailable
// and ctx lasts. Every operation of a Store may be repeated (design.md 0.12).
func (s *Shim) retry(ctx context.Context, do func(context.Context) error) error {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		attempt, stop := context.WithTimeoutCause(ctx, opTimeout, ErrUnavailable)
		err := do(attempt)
		stop()
		if err == nil || !errors.Is(err, ErrUnavailable) {
			return err
		}
		if !wait(ctx, pause/2+rand.N(pause)) {
			return context.Cause(ctx)
		}
	}
}

// wait pauses for d and reports whether ctx lasted that long.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// closeTask forgets the task: it has ended, or is somebody else's.
func (r *run) closeTask() {
	r.s.unregister(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.task.ttl != nil {
		r.task.ttl.Stop()
	}
	r.spare()
	r.s.dismiss(r.task.counted)
	r.endSpan()
	close(r.task.over)
}

package shim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskgate/internal/semconv"
)

// This file writes the trace of a task. A task has one, whatever replicas it visits:
//
//	task {tool}          ends as soon as the task is stored, and is the root
//	  run {tool}         the first attempt, until it has ended
//	  ...                what that attempt does: requests to the server, questions
//	  adopt {tool}       ends at once; one for each replica that takes the task over
//	    run {tool}       the attempt of that replica
//	    ...
//
// A span is exported at its end, and that of an attempt may last for hours, or be lost with
// its replica. So nothing hangs below it: what an attempt does hangs below the short span
// that came before.

// runTrace is what is observed of a run. The run owns it. above and span are set before the
// run has its record.
type runTrace struct {
	run *run
	// above is the span below which the spans of this attempt hang. It is exported already.
	// If nobody records spans, it is that of the caller, who may want the server to know.
	above trace.SpanContext
	span  trace.Span // of the attempt
	told  told       // run.mu guards it, and noted
	noted []Moment   // what the timeline does not have yet, by the clock of this process
}

// startTrace begins the trace of a task that is about to be stored, whose root is linked to
// the request that makes the task: a trace of its own, because that request's may have
// ended for hours when the task does. Its context goes into the record, so that whoever
// reads or adopts the task finds it. A creation that is repeated keeps the one that its
// record may have by now.
func (w *runTrace) startTrace(t, before *Task) trace.Span {
	r := w.run
	if before != nil {
		t.Trace = before.Trace
		return noop.Span{}
	}
	var links []trace.Link
	if sc := trace.SpanContextFromContext(r.base); sc.IsValid() {
		links = []trace.Link{{SpanContext: sc}}
	}
	ctx, span := r.core.observer.tracer.Start(r.base, rootName(*t), trace.WithNewRoot(), trace.WithLinks(links...), trace.WithAttributes(attrsOf(*t)...))
	t.Trace = carryTrace(ctx)
	return span
}

// rootName is the name of the first span of a trace.
func rootName(t Task) string {
	if t.Visible {
		return "task " + spanSubject(t)
	}
	return "call " + spanSubject(t) // it may become a task
}

// beginSpan begins the span of the run that has made a task.
func (w *runTrace) beginSpan(t Task) {
	w.above = contextOf(t).WithRemote(false)
	w.span = w.run.core.observer.startAttempt(w.above, t, semconv.AttemptRun)
}

// adoptTrace begins the spans of a run that goes on with another's task.
func (w *runTrace) adoptTrace(t Task) {
	o := &w.run.core.observer
	w.told.saidSent, w.told.notedSent = true, true // unless it is sent anew
	ctx := trace.ContextWithRemoteSpanContext(o.life.ctx, contextOf(t))
	more := append(o.attemptAttrs(t), semconv.TaskFrom.String(string(t.From)))
	_, span := o.tracer.Start(ctx, "adopt "+spanSubject(t), trace.WithAttributes(append(attrsOf(t), more...)...))
	span.End()
	w.above = span.SpanContext()
	w.span = o.startAttempt(w.above, t, semconv.AttemptNone)
}

// contextOfRun is that of what the run does now: below the task's span, if there is a record, else
// below the caller's.
func (w *runTrace) contextOfRun() context.Context {
	r := w.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.record == nil || !w.above.IsValid() {
		return r.ctx
	}
	return trace.ContextWithSpanContext(r.ctx, w.above)
}

// setKind says what kind of attempt this has come to be.
func (w *runTrace) setKind(kind string) { w.span.SetAttributes(semconv.AttemptKind.String(kind)) }

// traceQueue waits for the slots of the call. Its span shows how long that took. A call that became a
// task meanwhile has a second one, from then on, in the trace of the task.
func (w *runTrace) traceQueue(ctx context.Context) error {
	r, o := w.run, &w.run.core.observer
	t := Task{Upstream: r.srv.name, Method: r.call.Request.Method, Tool: r.call.Request.Name}
	if r.hasRecord() {
		t = r.record.constantPart()
	}
	_, span := o.tracer.Start(w.contextOfRun(), "queue "+spanSubject(t), trace.WithAttributes(attrsOf(t)...))
	defer span.End()
	err := r.ticket.awaitSlots(ctx)
	if err != nil {
		span.SetAttributes(semconv.ErrorType.String(labelOf(err)))
		span.SetStatus(codes.Error, "")
	}
	if t.ID == "" && r.hasRecord() {
		t = r.record.constantPart()
		_, since := o.tracer.Start(w.contextOfRun(), "queue "+spanSubject(t), trace.WithAttributes(attrsOf(t)...), trace.WithTimestamp(r.record.born))
		since.End()
	}
	return err
}

// finish is how an attempt ended.
type finish struct {
	status  Status // Working where the task has not ended
	outcome string
	kind    string // error.type; "" for none
}

// describeEnd says how the run ended, given what endChange has made of that.
func (w *runTrace) describeEnd(c Change, ends bool) finish {
	r := w.run
	switch {
	case !ends && errors.Is(r.err, errTaskCancelled):
		return finish{Cancelled, semconv.OutcomeCancelled, semconv.OutcomeCancelled}
	case !ends:
		return finish{Working, semconv.OutcomeLeft, labelOf(r.err)}
	case c.To == Cancelled:
		return finish{c.To, semconv.OutcomeCancelled, semconv.OutcomeCancelled}
	case c.To == Completed && r.reply.IsError:
		return finish{c.To, semconv.OutcomeToolError, semconv.OutcomeToolError}
	case c.To == Completed:
		return finish{c.To, semconv.OutcomeCompleted, ""}
	case r.err == nil && r.reply.Error != nil:
		return finish{c.To, semconv.OutcomeFailed, strconv.FormatInt(r.reply.Error.Code, 10)}
	case r.err == nil:
		return finish{c.To, semconv.OutcomeFailed, strconv.Itoa(codeInternal)}
	case errors.Is(r.err, errTimedOut):
		return finish{c.To, semconv.OutcomeExpired, errTimedOut.Kind}
	case errors.Is(r.err, ErrDraining), errors.Is(r.err, ErrDetached):
		return finish{c.To, semconv.OutcomeUnknown, errShutDown.Kind}
	}
	if up, ok := errors.AsType[*UpstreamError](r.err); ok && !up.Unsent && slices.Contains(maybeDone, up.Kind) {
		return finish{c.To, semconv.OutcomeUnknown, up.Kind}
	}
	return finish{c.To, semconv.OutcomeFailed, labelOf(r.err)}
}

// maybeDone are the kinds of an UpstreamError after which the server may have done the work.
var maybeDone = []string{"lost", "shutdown", KindClosed, KindSession}

// endSpan ends the span of the attempt, and tells how it ended.
func (w *runTrace) endSpan(f finish) {
	defer w.logEnd(f)
	defer w.span.End()
	if !w.span.IsRecording() {
		return
	}
	w.span.SetAttributes(semconv.TaskStatus.String(string(f.status)), semconv.TaskOutcome.String(f.outcome))
	if f.kind != "" {
		w.span.SetAttributes(semconv.ErrorType.String(f.kind))
	}
	if f.kind != "" && f.outcome != semconv.OutcomeLeft {
		w.span.SetStatus(codes.Error, "")
	}
}

// labelOf is an error as a word out of a small set: its text may have what a server wrote.
func labelOf(err error) string {
	if up, ok := errors.AsType[*UpstreamError](err); ok {
		return up.Kind
	}
	if _, ok := errors.AsType[*BusyError](err); ok {
		return "busy"
	}
	switch {
	case errors.Is(err, ErrLeaseLost):
		return "lease_lost"
	case errors.Is(err, ErrDetached):
		return "detached"
	case errors.Is(err, ErrDraining):
		return "draining"
	case errors.Is(err, ErrUnavailable):
		return "store"
	case errors.Is(err, ErrCancelled), errors.Is(err, errTaskCancelled), errors.Is(err, context.Canceled):
		return semconv.OutcomeCancelled
	}
	return "_OTHER"
}

// What happens to a task is told while it runs, as records of the log that name the trace of
// the task: a span of it comes at its end only. Records have ids and names and how things
// ended, and never what was asked, answered or said.

// noteMoment has the timeline tell of something, with the next change of the record.
func (w *runTrace) noteMoment(kind Kind, detail string) {
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	w.noted = append(w.noted, Moment{Kind: kind, At: time.Now(), Detail: detail})
}

// takeMoments takes what was noted. Where the call was sent since, that is noted with it.
func (w *runTrace) takeMoments() (all []Moment) {
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	if at := w.told.sent; !at.IsZero() && !w.told.notedSent {
		w.told.notedSent = true
		w.noted = append(w.noted, Moment{Kind: KindSent, At: at, Detail: string(w.run.core.replica)})
	}
	all, w.noted = w.noted, nil
	for i := range all {
		all[i].Ago = time.Since(all[i].At)
	}
	return all
}

// progressEvery is the least time between two records of progress of one task.
const progressEvery = 10 * time.Second

// told is what the log has of a run already. run.mu guards it.
type told struct {
	sent     time.Time // when the call went to the server; zero before
	saidSent bool
	// notedSent says that the timeline has it.
	notedSent bool
	heard     int       // progress notifications since there is a record
	progress  time.Time // of the last record of progress
}

// constantPart has what never changes of the task: what else is in made, run.mu guards.
func (rec *record) constantPart() Task {
	return Task{ID: rec.id, Upstream: rec.made.Upstream, Method: rec.made.Method, Tool: rec.made.Tool}
}

// logRun writes a record on the task of the run, below the span that its attempt has begun with.
func (w *runTrace) logRun(level slog.Level, message string, more ...any) {
	w.logRunAt(time.Now(), level, message, more...)
}

// logRunAt is logRun of what happened at some time before.
func (w *runTrace) logRunAt(at time.Time, level slog.Level, message string, more ...any) {
	w.run.core.observer.logTaskAt(at, w.above, w.run.record.constantPart(), level, message, more...)
}

// logMade tells that a task was made of the call, which may have been sent before.
func (w *runTrace) logMade() {
	w.run.srv.metrics.Made(w.run.call.Request.tool())
	w.logRun(slog.LevelInfo, "a task was made", "event", KindMade.eventName())
	w.logSent()
}

// logSent tells once of each attempt that its call went to the server.
func (w *runTrace) logSent() {
	w.run.mu.Lock()
	at := w.told.sent
	due := w.run.record != nil && !at.IsZero() && !w.told.saidSent
	w.told.saidSent = w.told.saidSent || due
	w.run.mu.Unlock()
	if due {
		w.logRunAt(at, slog.LevelDebug, "the call of a task is sent", "event", KindSent.eventName())
	}
}

// countProgress counts progress, and returns how much there was where that is to be told: at once for
// the first of a task, and then at a bounded rate. run.mu is held.
func (w *runTrace) countProgress() (heard int) {
	if w.run.record == nil {
		return 0
	}
	w.told.heard++
	now := time.Now()
	if w.told.heard > 1 && now.Sub(w.told.progress) < progressEvery {
		return 0
	}
	w.told.progress = now
	return w.told.heard
}

// logEnd tells how the attempt ended.
func (w *runTrace) logEnd(f finish) {
	level, event, message := slog.LevelInfo, KindEnded.eventName(), "a task has ended"
	more := []any{"status", string(f.status), "outcome", f.outcome}
	switch {
	case f.outcome == semconv.OutcomeLeft:
		event, message = KindLeft.eventName(), "a task is left to another replica"
	case w.run.err != nil && f.outcome != semconv.OutcomeCancelled:
		level, message = slog.LevelWarn, "the call of a task failed"
	case w.run.isHidden():
		level, message = slog.LevelDebug, "a stored call has ended, which was no task"
	}
	if f.kind != "" {
		more = append(more, "error_type", f.kind)
	}
	if level == slog.LevelWarn {
		more = append(more, "err", w.run.err)
	}
	w.logRun(level, message, append(more, "event", event)...)
}

// startQuestions begins the spans of questions that are open now: how long each was and how
// it was answered, and never what it said.
func (b *mailbox) startQuestions(q []Question) []trace.Span {
	r := b.run
	ctx, attrs := r.trace.contextOfRun(), attrsOf(r.record.constantPart())
	spans := make([]trace.Span, len(q))
	for i := range q {
		_, spans[i] = r.core.observer.tracer.Start(ctx, "question "+q[i].Method, trace.WithAttributes(append(attrs, semconv.MCPMethod.String(q[i].Method))...))
	}
	return spans
}

// endQuestions ends the spans of questions with how each ended.
func endQuestions(spans []trace.Span, how []string) {
	for i, span := range spans {
		outcome := how[i]
		span.SetAttributes(semconv.QuestionOutcome.String(outcome))
		if outcome != semconv.QuestionAnswered && outcome != semconv.QuestionWithdrawn {
			span.SetAttributes(semconv.ErrorType.String(outcome))
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

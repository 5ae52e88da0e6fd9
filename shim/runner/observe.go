package runner

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"taskgate/internal/semconv"
	"taskgate/shim"
	"taskgate/shim/node"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// This file turns the events of a run into spans, records of the log, metrics, and the moments of the
// timeline. A run reports its events and goes on at once. A task has one trace, whatever replicas it
// visits:
//
//	task {tool}          ends as soon as the task is stored, and is the root
//	  run {tool}         the first attempt, until it has ended
//	  ...                the attempt's requests to the server and questions
//	  adopt {tool}       ends at once; one for each replica that takes the task over
//	    run {tool}       the attempt of that replica
//	    ...
//
// A span is exported at its end, and that of an attempt may last for hours, or be lost with its replica. So
// it has no children: the spans of an attempt hang below the short span that came before.

// observation reports on a run, and knows only what it was told of it. The run owns it. Its lock is held for
// a moment only, and may be taken while the run's lock is held.
type observation struct {
	*node.Observer
	srv *node.Served
	ctx context.Context // of the measurements; it has the span of the caller

	mu           sync.Mutex // guards all below
	id           shim.ID    // of the record; "" before there is one
	method, name string     // of the request, as the record has them
	visible      bool       // the call is a task
	born         time.Time  // of the record
	// above is the parent of this attempt's spans. It is exported already. If tracing is off it is the
	// caller's span, which the server may need.
	above   trace.SpanContext
	span    trace.Span // of the attempt
	adopted bool       // the call was taken over from another replica
	told    told
	noted   []shim.Moment // moments that the timeline still lacks, by the clock of this process
}

// observeRun begins to report on a run. Measurements are made in ctx.
func (r *Run) observeRun(ctx context.Context) {
	w := &r.Observed
	w.Observer, w.srv, w.ctx = &r.core.Observer, r.Srv, ctx
	w.method, w.name = r.Call.Request.Method, r.Call.Request.Name
}

// setTask notes that the run has a record, which was made at that time.
func (w *observation) setTask(t shim.Task, born time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.id, w.method, w.name, w.visible, w.born = t.ID, t.Method, t.Tool, t.Visible, born
}

// readTask returns the fields of the task that log records and spans name, and the parent of the attempt's spans.
func (w *observation) readTask() (shim.Task, trace.SpanContext) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return shim.Task{ID: w.id, Visible: w.visible, Upstream: w.srv.Name, Method: w.method, Tool: w.name}, w.above
}

// isTask reports whether the call is a task.
func (w *observation) isTask() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.visible
}

// calledTool returns the tool that the call names; "" for none.
func (w *observation) calledTool() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return shim.Request{Method: w.method, Name: w.name}.Tool()
}

// startTrace begins the trace of a task that is about to be stored, whose root is linked to the request
// that makes the task: a trace of its own, because that request's may have ended hours before the task. Its
// context goes into the record, for readers and adopters of the task. A repeated creation keeps the trace
// that its record may have by now.
func (w *observation) startTrace(t, before *shim.Task) trace.Span {
	if before != nil {
		t.Trace = before.Trace
		return noop.Span{}
	}
	var links []trace.Link
	if sc := trace.SpanContextFromContext(w.ctx); sc.IsValid() {
		links = []trace.Link{{SpanContext: sc}}
	}
	ctx, span := w.Tracer.Start(w.ctx, rootName(*t), trace.WithNewRoot(), trace.WithLinks(links...), trace.WithAttributes(node.AttrsOf(*t)...))
	t.Trace = node.CarryTrace(ctx)
	return span
}

func rootName(t shim.Task) string {
	if t.Visible {
		return "task " + node.SpanSubject(t)
	}
	return "call " + node.SpanSubject(t) // it may become a task
}

// beginSpan begins the span of the run that has made a task.
func (w *observation) beginSpan(t shim.Task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.above = node.ContextOf(t).WithRemote(false)
	w.span = w.StartAttempt(w.above, t, semconv.AttemptRun)
}

// adoptTrace begins the spans of a run that goes on with another replica's task, and returns the context
// below them.
func (w *observation) adoptTrace(t shim.Task) context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told.saidSent, w.told.notedSent = true, true // unless it is sent anew
	ctx := trace.ContextWithRemoteSpanContext(w.ctx, node.ContextOf(t))
	more := append(w.AttemptAttrs(t), semconv.TaskFrom.String(string(t.From)))
	_, span := w.Tracer.Start(ctx, "adopt "+node.SpanSubject(t), trace.WithAttributes(append(node.AttrsOf(t), more...)...))
	span.End()
	w.above = span.SpanContext()
	w.span = w.StartAttempt(w.above, t, semconv.AttemptNone)
	w.ctx = trace.ContextWithRemoteSpanContext(w.ctx, w.above)
	return w.ctx
}

// placeBelow returns the context for the run's present operations: below the task's span, if there is a
// record, else below the caller's, which ctx has.
func (w *observation) placeBelow(ctx context.Context) context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.id == "" || !w.above.IsValid() {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, w.above)
}

func (w *observation) setKind(kind string) { w.span.SetAttributes(semconv.AttemptKind.String(kind)) }

// NoteAdopted reports that the call of the run was taken over.
func (w *observation) NoteAdopted(t shim.Task) {
	w.mu.Lock()
	w.adopted = true
	w.mu.Unlock()
	w.srv.Metrics.Adopted(w.ctx, w.calledTool())
	w.logEvent(shim.KindAdopted, slog.LevelInfo, "took over a task", "attempt", t.Lease.Adoption+1, "from", string(t.From))
}

// noteResumed reports that the server is asked to go on with a call, if it may be able to. A question outside of any
// call goes the same way, and is left out unless another replica had it before.
func (w *observation) noteResumed(resumable bool) {
	w.countRecovery(semconv.RecoveryResumed)
	if resumable && w.isAdopted() {
		w.setKind(semconv.AttemptResume)
		w.logEvent(shim.KindResumed, slog.LevelInfo, "the call of a task is resumed")
		w.noteMoment(shim.KindResumed, "")
	}
}

// noteRetried reports that the call is begun again, for the time of that number.
func (w *observation) noteRetried(runs int) {
	w.setKind(semconv.AttemptRetry)
	w.logEvent(shim.KindRetried, slog.LevelInfo, "the call of a task is sent again", "runs", runs)
	w.noteMoment(shim.KindRetried, "")
}

// noteUnsent reports that this replica is about to send an adopted call itself: its sending is reported
// again. how is a value of semconv.Recovery.
func (w *observation) noteUnsent(how string) {
	w.countRecovery(how)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = told{heard: w.told.heard, progress: w.told.progress}
}

// countRecovery counts how a call that was taken over goes on: a value of semconv.Recovery.
func (w *observation) countRecovery(how string) {
	if w.isAdopted() {
		w.srv.Metrics.Recovered(w.ctx, how)
	}
}

func (w *observation) isAdopted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.adopted
}

// noteQueue reports that the call waits for its slots; over ends the wait. The span shows the duration. A
// call that became a task meanwhile has a second span, from then on, in the trace of the task.
func (w *observation) noteQueue() (over func(error)) {
	before, _ := w.readTask()
	span := w.startQueue(before)
	return func(err error) {
		defer span.End()
		if err != nil {
			span.SetAttributes(semconv.ErrorType.String(labelOf(err)))
			span.SetStatus(codes.Error, "")
		}
		if t, _ := w.readTask(); before.ID == "" && t.ID != "" {
			w.startQueue(t, trace.WithTimestamp(w.born)).End()
		}
	}
}

func (w *observation) startQueue(t shim.Task, more ...trace.SpanStartOption) trace.Span {
	more = append(more, trace.WithAttributes(node.AttrsOf(t)...))
	_, span := w.Tracer.Start(w.placeBelow(w.ctx), "queue "+node.SpanSubject(t), more...)
	return span
}

// measureTask measures the end of the task, if the call is one.
func (w *observation) measureTask(outcome string) {
	if t, _ := w.readTask(); t.Visible {
		w.srv.Metrics.Ended(w.ctx, t.Tool, outcome, time.Since(w.born))
	}
}

// noteEnd reports the end of the run, and the error of its call, if any.
func (w *observation) noteEnd(f finish, err error) {
	defer w.logEnd(f, err)
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

// labelOf returns an error as a word out of a small set: its text may have a server's words.
func labelOf(err error) string {
	if up, ok := errors.AsType[*shim.UpstreamError](err); ok {
		return up.Kind
	}
	if _, ok := errors.AsType[*shim.BusyError](err); ok {
		return "busy"
	}
	switch {
	case errors.Is(err, shim.ErrLeaseLost):
		return "lease_lost"
	case errors.Is(err, shim.ErrDetached):
		return "detached"
	case errors.Is(err, shim.ErrDraining):
		return "draining"
	case errors.Is(err, shim.ErrUnavailable):
		return "store"
	case errors.Is(err, shim.ErrCancelled), errors.Is(err, node.ErrTaskCancelled), errors.Is(err, context.Canceled):
		return semconv.OutcomeCancelled
	}
	return "_OTHER"
}

// The events of a task are reported while it runs, as records of the log that name the trace of the task,
// because a span comes only at its end. Records have ids, names and outcomes, and never questions, answers
// or messages.

// noteMoment adds a moment to the timeline, with the next change of the record.
func (w *observation) noteMoment(kind shim.Kind, detail string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noted = append(w.noted, shim.Moment{Kind: kind, At: time.Now(), Detail: detail})
}

// takeMoments takes the noted moments. If the call was sent since, that is noted with them.
func (w *observation) takeMoments() (all []shim.Moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.told.sent; !at.IsZero() && !w.told.notedSent {
		w.told.notedSent = true
		w.noted = append(w.noted, shim.Moment{Kind: shim.KindSent, At: at, Detail: string(w.Replica)})
	}
	all, w.noted = w.noted, nil
	for i := range all {
		all[i].Ago = time.Since(all[i].At)
	}
	return all
}

// sentAgo is how long ago the call was sent; 0 if it was not.
func (w *observation) sentAgo() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told.sent.IsZero() {
		return 0
	}
	return time.Since(w.told.sent)
}

// returnMoments keeps moments whose write has failed for the next one.
func (w *observation) returnMoments(noted []shim.Moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noted = slices.Concat(noted, w.noted)
}

// progressEvery is the least time between two records of progress of one task.
const progressEvery = 10 * time.Second

// told is the part of a run that the log has already.
type told struct {
	sent     time.Time // when the call went to the server; zero before
	saidSent bool
	// notedSent says that the timeline has it.
	notedSent bool
	heard     int       // progress notifications since there is a record
	progress  time.Time // of the last record of progress
}

// logRun writes a record about the task of the run, below the first span of its attempt.
func (w *observation) logRun(level slog.Level, message string, more ...any) {
	w.logRunAt(time.Now(), level, message, more...)
}

// logRunAt is logRun for an earlier event.
func (w *observation) logRunAt(at time.Time, level slog.Level, message string, more ...any) {
	t, above := w.readTask()
	w.LogTaskAt(at, above, t, level, message, more...)
}

func (w *observation) logEvent(kind shim.Kind, level slog.Level, message string, more ...any) {
	w.logRun(level, message, append(more, "event", kind.EventName())...)
}

// noteMade reports that a task was made of the call.
func (w *observation) noteMade() {
	w.mu.Lock()
	w.visible = true
	w.mu.Unlock()
	w.srv.Metrics.Made(w.calledTool())
	w.logEvent(shim.KindMade, slog.LevelInfo, "a task was made")
}

// measureQueue measures how long a task has waited for the first sending of its call, which comes now.
func (w *observation) measureQueue() {
	if w.isTask() {
		w.srv.Metrics.Sent(w.ctx, time.Since(w.born))
	}
}

// noteReached notes when the server was first reached.
func (w *observation) noteReached() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told.sent.IsZero() {
		w.told.sent = time.Now()
	}
}

// logSent logs once for each attempt that its call went to the server.
func (w *observation) logSent() {
	w.mu.Lock()
	at := w.told.sent
	due := w.id != "" && !at.IsZero() && !w.told.saidSent
	w.told.saidSent = w.told.saidSent || due
	w.mu.Unlock()
	if due {
		w.logRunAt(at, slog.LevelDebug, "the call of a task is sent", "event", shim.KindSent.EventName())
	}
}

// noteProgress logs the count of progress notifications: at once for the first of a task, and then at a bounded
// rate.
func (w *observation) noteProgress() {
	if heard := w.countProgress(); heard > 0 {
		w.logEvent(shim.KindProgress, slog.LevelDebug, "a task makes progress", "notifications", heard)
	}
}

// countProgress counts one notification, and returns the count if it is to be logged, else 0.
func (w *observation) countProgress() (heard int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.id == "" {
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

func (w *observation) logEnd(f finish, err error) {
	level, kind, message := slog.LevelInfo, shim.KindEnded, "a task has ended"
	more := []any{"status", string(f.status), "outcome", f.outcome}
	switch {
	case f.outcome == semconv.OutcomeLeft:
		kind, message = shim.KindLeft, "a task is left to another replica"
	case err != nil && f.outcome != semconv.OutcomeCancelled:
		level, message = slog.LevelWarn, "the call of a task failed"
	case !w.isTask():
		level, message = slog.LevelDebug, "a stored call has ended, which was no task"
	}
	if f.kind != "" {
		more = append(more, "error_type", f.kind)
	}
	if level == slog.LevelWarn {
		more = append(more, "err", err)
	}
	w.logEvent(kind, level, message, more...)
}

// noteAsked reports questions that are open now. Those that the previous runner asked are left out of the log.
// settled reports how each ended, nil for withdrawn; contents are left out.
func (w *observation) noteAsked(q []shim.Question, again bool) (settled func(how []string)) {
	since := time.Now()
	t, _ := w.readTask()
	ctx, attrs := w.placeBelow(w.ctx), node.AttrsOf(t)
	spans := make([]trace.Span, len(q))
	for i := range q {
		_, spans[i] = w.Tracer.Start(ctx, "question "+q[i].Method, trace.WithAttributes(append(attrs, semconv.MCPMethod.String(q[i].Method))...))
	}
	if !again {
		w.logEvent(shim.KindAsked, slog.LevelInfo, "a task asks its client", "questions", len(q))
	}
	return func(how []string) {
		if how != nil {
			w.logEvent(shim.KindAnswered, slog.LevelInfo, "the questions of a task are settled", "outcomes", how)
		}
		for i, span := range spans {
			outcome := semconv.QuestionWithdrawn
			if how != nil {
				outcome = how[i]
			}
			span.SetAttributes(semconv.QuestionOutcome.String(outcome))
			if outcome != semconv.QuestionAnswered && outcome != semconv.QuestionWithdrawn {
				span.SetAttributes(semconv.ErrorType.String(outcome))
				span.SetStatus(codes.Error, "")
			}
			span.End()
			w.srv.Metrics.Answered(w.ctx, outcome, time.Since(since))
		}
	}
}

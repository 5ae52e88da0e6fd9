package node

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"taskgate/internal/semconv"
	"taskgate/shim"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Observer writes the spans and the log records of tasks. The Shim owns it.
type Observer struct {
	Replica shim.Replica
	life    *Life
	Tracer  trace.Tracer
	log     *slog.Logger
}

// StartAttempt begins the span of an attempt at a task, below a given one. kind is a value of semconv.AttemptKind.
func (o *Observer) StartAttempt(above trace.SpanContext, t shim.Task, kind string) trace.Span {
	ctx := trace.ContextWithSpanContext(o.life.Ctx, above)
	_, span := o.Tracer.Start(ctx, "run "+SpanSubject(t), trace.WithAttributes(append(AttrsOf(t), append(o.AttemptAttrs(t), semconv.AttemptKind.String(kind))...)...))
	return span
}

// AttemptAttrs returns the attributes that tell the attempts at a task apart.
func (o *Observer) AttemptAttrs(t shim.Task) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.TaskAttempt.Int64(t.Lease.Adoption + 1), semconv.Replica.String(string(o.Replica))}
}

// AttrsOf returns the attributes of each span of a task, or of a plain call.
func AttrsOf(t shim.Task) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 8)
	attrs = append(attrs, semconv.Upstream.String(t.Upstream))
	if t.ID != "" {
		attrs = append(attrs, semconv.TaskID.String(string(t.ID)))
	}
	if t.Method == shim.CallTool {
		return append(attrs, semconv.GenAITool.String(SpanSubject(t)))
	}
	return append(attrs, semconv.MCPMethod.String(t.Method))
}

// maxSpanName bounds the name of a tool in a span.
const maxSpanName = 256

// SpanSubject returns the subject of a span: the tool, whose name a client wrote, or the method. Other
// names in a request may be URIs, an unbounded set.
func SpanSubject(t shim.Task) string {
	if t.Method != shim.CallTool {
		return t.Method
	}
	return strings.ToValidUTF8(t.Tool[:min(len(t.Tool), maxSpanName)], "")
}

var w3c propagation.TraceContext

// ContextOf returns the span that the record of a task names.
func ContextOf(t shim.Task) trace.SpanContext {
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.MapCarrier(t.Trace)))
}

// CarryTrace returns the W3C context of ctx as a map, nil if it has none.
func CarryTrace(ctx context.Context) map[string]string {
	m := propagation.MapCarrier{}
	w3c.Inject(ctx, m)
	if len(m) == 0 {
		return nil
	}
	return m
}

// LinkTo links the span of a request to the trace of its task.
func LinkTo(ctx context.Context, t shim.Task) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if sc := ContextOf(t); sc.IsValid() {
		span.AddLink(trace.Link{SpanContext: sc})
	}
}

// LogTask writes a record about a task, below the span that the task belongs to.
func (o *Observer) LogTask(t shim.Task, level slog.Level, message string, more ...any) {
	o.LogTaskAt(time.Now(), ContextOf(t), t, level, message, more...)
}

// LogTaskAt is LogTask for an earlier event, below a given span.
func (o *Observer) LogTaskAt(at time.Time, above trace.SpanContext, t shim.Task, level slog.Level, message string, more ...any) {
	ctx := o.life.Ctx
	if !o.log.Enabled(ctx, level) {
		return
	}
	if above.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, above)
	}
	rec := slog.NewRecord(at, level, message, 0)
	rec.Add("task_id", string(t.ID), "upstream", t.Upstream, "tool", t.Tool)
	rec.Add(more...)
	_ = o.log.Handler().Handle(ctx, rec) // as slog.Logger does
}

package shim

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"taskgate/internal/semconv"
)

// observer writes the spans and the log records of tasks. The Shim owns it.
type observer struct {
	replica Replica
	life    *life
	tracer  trace.Tracer
	log     *slog.Logger
}

func (o *observer) startAttempt(above trace.SpanContext, t Task, kind string) trace.Span {
	ctx := trace.ContextWithSpanContext(o.life.ctx, above)
	_, span := o.tracer.Start(ctx, "run "+spanSubject(t), trace.WithAttributes(append(attrsOf(t), append(o.attemptAttrs(t), semconv.AttemptKind.String(kind))...)...))
	return span
}

// attemptAttrs returns the attributes that tell the attempts at a task apart.
func (o *observer) attemptAttrs(t Task) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.TaskAttempt.Int64(t.Lease.Adoption + 1), semconv.Replica.String(string(o.replica))}
}

// attrsOf returns the attributes of each span of a task, or of a plain call.
func attrsOf(t Task) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 8)
	attrs = append(attrs, semconv.Upstream.String(t.Upstream))
	if t.ID != "" {
		attrs = append(attrs, semconv.TaskID.String(string(t.ID)))
	}
	if t.Method == callTool {
		return append(attrs, semconv.GenAITool.String(spanSubject(t)))
	}
	return append(attrs, semconv.MCPMethod.String(t.Method))
}

// maxSpanName bounds the name of a tool in a span.
const maxSpanName = 256

// spanSubject returns the subject of a span: the tool, whose name a client wrote, or the method. Other
// names in a request may be URIs, an unbounded set.
func spanSubject(t Task) string {
	if t.Method != callTool {
		return t.Method
	}
	return strings.ToValidUTF8(t.Tool[:min(len(t.Tool), maxSpanName)], "")
}

var w3c propagation.TraceContext

// contextOf returns the span that the record of a task names.
func contextOf(t Task) trace.SpanContext {
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.MapCarrier(t.Trace)))
}

// carryTrace returns the W3C context of ctx as a map, nil if it has none.
func carryTrace(ctx context.Context) map[string]string {
	m := propagation.MapCarrier{}
	w3c.Inject(ctx, m)
	if len(m) == 0 {
		return nil
	}
	return m
}

// linkTo links the span of a request to the trace of its task.
func linkTo(ctx context.Context, t Task) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if sc := contextOf(t); sc.IsValid() {
		span.AddLink(trace.Link{SpanContext: sc})
	}
}

func (o *observer) logTask(t Task, level slog.Level, message string, more ...any) {
	o.logTaskAt(time.Now(), contextOf(t), t, level, message, more...)
}

// logTaskAt is logTask for an earlier event, below a given span.
func (o *observer) logTaskAt(at time.Time, above trace.SpanContext, t Task, level slog.Level, message string, more ...any) {
	ctx := o.life.ctx
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

package shim

import (
	"context"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of a task's span. The first is the registry's; the others are ours.
const (
	attrTool     = attribute.Key("gen_ai.tool.name")
	attrTask     = attribute.Key("taskgate.task.id")
	attrUpstream = attribute.Key("taskgate.upstream")
	attrAdoption = attribute.Key("taskgate.task.adoption")
)

var w3c propagation.TraceContext

// maxSpanName bounds what a span shows of the name of a tool.
const maxSpanName = 256

// startSpan begins the span of the detached run. It is a new root, linked to the
// request that made the task: a span is only exported at its end, and the
// request's trace should not wait for hours. Its context goes into the record, so
// that whoever reads or adopts the task can link to the run. Where nothing is
// recorded, the creating context itself is kept.
func (r *run) startSpan(t *Task) trace.Span {
	ctx, span := r.s.span(r.base, *t)
	t.Trace = carry(ctx)
	return span
}

// resumeSpan begins the span of a run that goes on with another's task.
func (s *Shim) resumeSpan(t Task) (context.Context, trace.Span) {
	before := trace.SpanContextFromContext(w3c.Extract(s.life.ctx, propagation.MapCarrier(t.Trace)))
	return s.span(trace.ContextWithRemoteSpanContext(s.life.ctx, before), t, attrAdoption.Int64(t.Lease.Adoption))
}

// span begins a span of a task, linked to what ctx has.
func (s *Shim) span(ctx context.Context, t Task, more ...attribute.KeyValue) (context.Context, trace.Span) {
	name := strings.ToValidUTF8(t.Tool[:min(len(t.Tool), maxSpanName)], "") // a client wrote it
	return s.tracer.Start(ctx, "task "+name, trace.WithNewRoot(), trace.WithLinks(links(trace.SpanContextFromContext(ctx))...),
		trace.WithAttributes(append(more, attrTool.String(name), attrTask.String(string(t.ID)), attrUpstream.String(t.Upstream))...))
}

func links(sc trace.SpanContext) []trace.Link {
	if !sc.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: sc}}
}

// carry is the W3C context of ctx as a map, nil if there is none.
func carry(ctx context.Context) map[string]string {
	m := propagation.MapCarrier{}
	w3c.Inject(ctx, m)
	if len(m) == 0 {
		return nil
	}
	return m
}

// endSpan closes the task's span with how the run ended. r.mu is held.
func (r *run) endSpan() {
	switch {
	case r.err != nil:
		r.record.span.SetStatus(codes.Error, kindOf(r.err))
	case r.reply.Error != nil:
		r.record.span.SetStatus(codes.Error, strconv.FormatInt(r.reply.Error.Code, 10))
	case r.reply.IsError:
		r.record.span.SetStatus(codes.Error, "tool_error")
	}
	r.record.span.End()
}

// kindOf is a label of low cardinality for an error.
func kindOf(err error) string {
	text := err.Error()
	if kind, _, ok := strings.Cut(text, ":"); ok {
		return kind
	}
	return text
}

// Package logging ties log records to traces.
package logging

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// WithTrace returns a handler that adds trace_id and span_id to every record that
// is logged with the context of a span, so that a log line leads to its trace.
func WithTrace(next slog.Handler) slog.Handler { return handler{next} }

type handler struct{ slog.Handler }

// Handle adds the ids of the span in ctx.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the wrapper around the handler with attributes.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler { return handler{h.Handler.WithAttrs(attrs)} }

// WithGroup keeps the wrapper around the handler with a group.
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }

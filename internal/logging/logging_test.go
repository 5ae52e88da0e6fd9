package logging

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestWithTrace(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(WithTrace(slog.NewTextHandler(&out, nil))).With("a", 1)
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	log.InfoContext(trace.ContextWithSpanContext(context.Background(), sc), "with")
	log.Info("without")

	with, without, _ := strings.Cut(out.String(), "\n")
	if !strings.Contains(with, "trace_id="+sc.TraceID().String()) || !strings.Contains(with, "span_id="+sc.SpanID().String()) {
		t.Errorf("record in a span: %s", with)
	}
	if strings.Contains(without, "trace_id") {
		t.Errorf("record outside a span: %s", without)
	}
}

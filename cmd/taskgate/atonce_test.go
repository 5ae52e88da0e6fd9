package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// exports is an exporter that keeps the names of spans, a text for each batch.
type exports struct {
	mu      sync.Mutex
	batches []string
}

func (e *exports) ExportSpans(_ context.Context, batch []sdktrace.ReadOnlySpan) error {
	var names []string
	for _, s := range batch {
		names = append(names, s.Name())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.batches = append(e.batches, strings.Join(names, " "))
	return nil
}

func (*exports) Shutdown(context.Context) error { return nil }

// What a task, or an attempt at one, begins with is exported as soon as it has ended, at a bounded
// rate, and what else there is waits for its batch.
func TestTasksLeaveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &exports{}
		p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(newAtOnce(sdktrace.NewBatchSpanProcessor(e, sdktrace.WithBatchTimeout(time.Hour)))))
		remote := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled}))
		ends := func(ctx context.Context, name string, kind trace.SpanKind) context.Context {
			ctx, span := p.Tracer("").Start(ctx, name, trace.WithSpanKind(kind))
			span.End()
			return ctx
		}
		want := func(when string, batches ...string) {
			t.Helper()
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			if !slices.Equal(e.batches, batches) {
				t.Errorf("%s: there is %q, want %q", when, e.batches, batches)
			}
			e.batches = nil
		}
		synctest.Wait()
		ends(remote, "call", trace.SpanKindServer)
		want("a request")
		task := ends(t.Context(), "task", trace.SpanKindInternal)
		want("a task", "call task")
		<-time.After(time.Second)
		ends(task, "question", trace.SpanKindInternal)
		want("what is below it")
		ends(remote, "adopt", trace.SpanKindInternal)
		want("an adoption", "question adopt")
		ends(t.Context(), "task", trace.SpanKindInternal)
		ends(t.Context(), "task", trace.SpanKindInternal)
		want("the next moment")
		<-time.After(atOnceEvery)
		want("a moment later", "task task")
		ends(remote, "call", trace.SpanKindServer)
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		want("the end", "call")
	})
}

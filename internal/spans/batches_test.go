package spans_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"taskgate/internal/spans"
)

// kept is an exporter that keeps the names of spans, a batch each.
type kept struct {
	mu      sync.Mutex
	batches [][]string
	takes   time.Duration // how long an export takes
	stopped bool
}

func (k *kept) ExportSpans(ctx context.Context, batch []sdktrace.ReadOnlySpan) error {
	var names []string
	for _, s := range batch {
		names = append(names, s.Name())
	}
	select {
	case <-time.After(k.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.batches = append(k.batches, names)
	return nil
}

func (k *kept) Shutdown(context.Context) error {
	k.stopped = true
	return nil
}

// world is a tracer whose spans go through batches, in a bubble.
type world struct {
	*spans.Batches
	kept   *kept
	tracer trace.Tracer
	remote context.Context // with a span of another process
}

func newWorld(b spans.Bounds) *world {
	w := &world{kept: &kept{}}
	w.Batches = spans.NewBatches(w.kept, b)
	w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.Batches)).Tracer("")
	w.remote = trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled}))
	return w
}

// ends is a span that has ended.
func (w *world) ends(ctx context.Context, name string, kind trace.SpanKind) context.Context {
	ctx, span := w.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	span.End()
	return ctx
}

func (w *world) want(t *testing.T, when string, batches ...string) {
	t.Helper()
	synctest.Wait()
	w.kept.mu.Lock()
	defer w.kept.mu.Unlock()
	var got []string
	for _, b := range w.kept.batches {
		got = append(got, fmt.Sprint(b))
	}
	if !slices.Equal(got, batches) {
		t.Errorf("%s: there is %q, want %q", when, got, batches)
	}
	w.kept.batches = nil
}

var bounds = spans.Bounds{Delay: time.Hour, Queue: 5, Batch: 3, Timeout: time.Minute}

// What a task, or an attempt at one, begins with is exported as soon as it has ended, at a bounded
// rate, and what else there is waits for its batch.
func TestTasksLeaveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(bounds)
		w.ends(w.remote, "call", trace.SpanKindServer)
		w.want(t, "a request")
		task := w.ends(t.Context(), "task", trace.SpanKindInternal)
		<-time.After(time.Millisecond)
		w.want(t, "a task", "[call task]")
		<-time.After(time.Second)
		w.ends(task, "question", trace.SpanKindInternal)
		<-time.After(time.Second)
		w.want(t, "what is below it")
		w.ends(w.remote, "adopt", trace.SpanKindInternal)
		<-time.After(time.Millisecond)
		w.want(t, "an adoption", "[question adopt]")
		w.ends(t.Context(), "task", trace.SpanKindInternal)
		w.ends(t.Context(), "task", trace.SpanKindInternal)
		<-time.After(time.Millisecond)
		w.want(t, "the next moment")
		<-time.After(100 * time.Millisecond)
		w.want(t, "a moment later", "[task task]")
		if err := w.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Spans leave when there are enough, when the first has waited for long enough, and at the end.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(bounds)
		for _, name := range []string{"a", "b", "c"} {
			w.want(t, "too few")
			w.ends(w.remote, name, trace.SpanKindServer)
		}
		w.want(t, "enough", "[a b c]")
		w.ends(w.remote, "d", trace.SpanKindServer)
		<-time.After(bounds.Delay + time.Second)
		w.want(t, "late", "[d]")
		w.kept.takes = time.Second
		for _, name := range []string{"e", "f", "g", "h", "i", "j", "k", "l", "m"} {
			w.ends(w.remote, name, trace.SpanKindServer)
			synctest.Wait()
		}
		<-time.After(bounds.Delay + time.Minute)
		w.want(t, "more than may wait", "[e f g]", "[h i j]", "[k l]") // m was dropped
		w.ends(w.remote, "n", trace.SpanKindServer)
		if err := w.Shutdown(t.Context()); err != nil || !w.kept.stopped {
			t.Errorf("%v, the exporter is stopped: %v", err, w.kept.stopped)
		}
		w.ends(w.remote, "o", trace.SpanKindServer)
		w.want(t, "the end", "[n]")
	})
}

// An export that takes too long is given up, and so is the last one when the process has no more time.
func TestExportTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(bounds)
		w.kept.takes = time.Hour
		w.ends(w.remote, "a", trace.SpanKindServer)
		begun := time.Now()
		if err := w.ForceFlush(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != bounds.Timeout {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		w.ends(w.remote, "b", trace.SpanKindServer)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !w.kept.stopped {
			t.Errorf("%v, the exporter is stopped: %v", err, w.kept.stopped)
		}
	})
}

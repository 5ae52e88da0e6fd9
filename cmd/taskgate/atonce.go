package main

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"taskgate/internal/work"
)

// atOnceEvery is the least time between two exports that spans of tasks ask for.
const atOnceEvery = 100 * time.Millisecond

// atOnce exports spans in batches, as the processor in it does. A span that begins the trace of a task, or
// of an attempt at it, is exported as soon as it has ended, with all waiting spans: so it is seen even if
// the replica is killed in the next moment. Such a span has kind internal, and its parent, if any, is in
// another process.
type atOnce struct {
	sdktrace.SpanProcessor
	due     chan struct{} // of one: there is such a span
	exports *work.Background
}

func newAtOnce(batches sdktrace.SpanProcessor) *atOnce {
	p := &atOnce{SpanProcessor: batches, due: make(chan struct{}, 1), exports: work.NewBackground(context.Canceled)}
	p.exports.Go(context.Background(), p.exportUntilStopped)
	return p
}

// OnEnd takes a span. It returns at once.
func (p *atOnce) OnEnd(s sdktrace.ReadOnlySpan) {
	p.SpanProcessor.OnEnd(s)
	if s.SpanKind() == trace.SpanKindInternal && (!s.Parent().IsValid() || s.Parent().IsRemote()) {
		work.Signal(p.due)
	}
}

// exportUntilStopped exports until it is stopped. The exporter's own timeout bounds an export.
func (p *atOnce) exportUntilStopped(ctx context.Context) {
	for {
		select {
		case <-p.due:
		case <-ctx.Done():
			return
		}
		if err := p.ForceFlush(ctx); err != nil && ctx.Err() == nil {
			otel.Handle(err)
		}
		if work.Pause(ctx, atOnceEvery) != nil {
			return
		}
	}
}

// Shutdown exports the waiting spans, and stops the processor in it.
func (p *atOnce) Shutdown(ctx context.Context) error {
	return errors.Join(p.exports.Close(ctx), p.SpanProcessor.Shutdown(ctx))
}

package spans

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// soonEvery is the least time between two exports that spans of tasks ask for.
const soonEvery = 100 * time.Millisecond

// Bounds of Batches.
type Bounds struct {
	Delay   time.Duration // how long a span waits for others to be exported with
	Queue   int           // how many wait; more are dropped
	Batch   int           // how many are exported together
	Timeout time.Duration // how long an export may take
}

// Batches has spans exported together. Those with which the trace of a task begins, or an attempt
// at it, leave as soon as they have ended, and with them whatever waits: what a replica begins can
// be seen then although it is killed in the next moment. They are those of kind internal without a
// parent in this process.
//
// It is a SpanProcessor. The SDK's own wakes a goroutine for each span.
type Batches struct {
	exporter   sdktrace.SpanExporter
	bounds     Bounds
	due        chan struct{} // of one: there are enough for a batch
	early      chan struct{} // of one: there is one that does not wait
	stop, done chan struct{}
	soon       atomic.Bool // an early export is under way

	mu      sync.Mutex // guards what follows
	waiting []sdktrace.ReadOnlySpan
	stopped bool

	exporting sync.Mutex
}

// NewBatches makes one that exports until Shutdown.
func NewBatches(exporter sdktrace.SpanExporter, b Bounds) *Batches {
	p := &Batches{exporter: exporter, bounds: b, due: make(chan struct{}, 1), early: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go p.run()
	return p
}

// OnStart does nothing.
func (p *Batches) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd takes a span. It does not wait.
func (p *Batches) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	p.mu.Lock()
	if p.stopped || len(p.waiting) >= p.bounds.Queue {
		p.mu.Unlock()
		return
	}
	p.waiting = append(p.waiting, s)
	n := len(p.waiting)
	p.mu.Unlock()
	if n == p.bounds.Batch {
		nudge(p.due)
	}
	if s.SpanKind() == trace.SpanKindInternal && (!s.Parent().IsValid() || s.Parent().IsRemote()) && p.soon.CompareAndSwap(false, true) {
		nudge(p.early)
	}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run exports until it is stopped.
func (p *Batches) run() {
	defer close(p.done)
	timer := time.NewTimer(p.bounds.Delay)
	defer timer.Stop()
	last := time.Time{}
	for {
		select {
		case <-p.stop:
			return
		case <-p.early:
			timer.Reset(max(0, soonEvery-time.Since(last)))
			continue
		case <-p.due:
		case <-timer.C:
		}
		p.soon.Store(false)
		if err := p.ForceFlush(context.Background()); err != nil {
			otel.Handle(err)
		}
		last = time.Now()
		timer.Reset(p.bounds.Delay)
	}
}

// ForceFlush exports what there is.
func (p *Batches) ForceFlush(ctx context.Context) error {
	p.exporting.Lock()
	defer p.exporting.Unlock()
	p.mu.Lock()
	spans := p.waiting
	p.waiting = make([]sdktrace.ReadOnlySpan, 0, p.bounds.Batch)
	p.mu.Unlock()
	var failed error
	for batch := range slices.Chunk(spans, p.bounds.Batch) {
		bounded, cancel := context.WithTimeout(ctx, p.bounds.Timeout)
		if err := p.exporter.ExportSpans(bounded, batch); err != nil {
			failed = err
		}
		cancel()
	}
	return failed
}

// Shutdown exports what there is and stops the exporter. It is called once.
func (p *Batches) Shutdown(ctx context.Context) error {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	close(p.stop)
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	err := p.ForceFlush(ctx)
	if stop := p.exporter.Shutdown(ctx); err == nil {
		err = stop
	}
	return err
}

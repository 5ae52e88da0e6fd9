package shim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"taskgate/shim"
)

// observedWorld is a world whose spans and records are kept.
type observedWorld struct {
	*world
	spans *tracetest.InMemoryExporter
	mu    sync.Mutex
	out   bytes.Buffer
}

func newObservedWorld(t *testing.T) *observedWorld {
	return &observedWorld{world: newWorld(t), spans: tracetest.NewInMemoryExporter()}
}

func (o *observedWorld) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.Write(b)
}

// observed starts a Shim whose spans and records are kept.
func (o *observedWorld) observed(name string, u shim.Upstream, p shim.Policy) *shim.Shim {
	o.t.Helper()
	srv := shim.Server{Upstream: u, Policy: func(string) shim.Policy { return p }, Queue: 10, QueueWait: 5 * time.Second}
	return o.gatewayOf(name, srv, func(opts *shim.Options) {
		opts.Logger = slog.New(slog.NewJSONHandler(o, &slog.HandlerOptions{Level: slog.LevelDebug}))
		opts.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(o.spans)).Tracer("")
	})
}

// events are the names of what was told of tasks.
func (o *observedWorld) events() (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for line := range strings.Lines(o.out.String()) {
		var rec struct{ Event string }
		if json.Unmarshal([]byte(line), &rec) == nil && rec.Event != "" {
			names = append(names, strings.TrimPrefix(rec.Event, "taskgate.task."))
		}
	}
	return names
}

// names are the names of the spans that have ended, each with its parent's.
func (o *observedWorld) names() (names []string) {
	spans := o.spans.GetSpans()
	for _, s := range spans {
		name := s.Name
		for _, p := range spans {
			if p.SpanContext.SpanID() == s.Parent.SpanID() {
				name += " < " + p.Name
			}
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestTraceOfARepeatedCreation: a creation whose reply was lost is repeated in the trace that
// the record has by then.
func TestTraceOfARepeatedCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObservedWorld(t)
		defer o.close()
		s := o.observed("a", takes(20*time.Second), policy(shim.Auto))
		pass(time.Minute)
		o.store.deaf.Store(true)
		go func() {
			<-time.After(10 * time.Second)
			o.store.deaf.Store(false)
		}()
		a, err := s.Call(context.Background(), call())
		if err != nil || a.Task == nil {
			t.Fatalf("%+v %v", a, err)
		}
		pass(time.Minute)
		want := []string{"run slow < task slow", "task slow"}
		if got := o.names(); !slices.Equal(got, want) {
			t.Errorf("spans %q, want %q", got, want)
		}
		if got, want := o.events(), []string{"made", "sent", "ended"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

// TestProgressIsToldAtABoundedRate: the first progress of a task is told at once, and what
// follows every ten seconds at most.
func TestProgressIsToldAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObservedWorld(t)
		defer o.close()
		u := takes(0)
		u.call = func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if err := s.Checkpoint(json.RawMessage(`{"sent":true}`))(ctx); err != nil {
				return shim.Reply{}, err
			}
			for i := range 350 {
				s.Progress(shim.Progress{Progress: float64(i)})
				<-time.After(100 * time.Millisecond)
			}
			return after(ctx, 0)
		}
		s := o.observed("a", u, policy(shim.Always))
		pass(time.Minute)
		if _, err := s.Call(context.Background(), call()); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if got, want := o.events(), []string{"made", "sent", "progress", "progress", "progress", "progress", "ended"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

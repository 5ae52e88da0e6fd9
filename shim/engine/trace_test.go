package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/semconv"
	"taskgate/shim"
	"taskgate/shim/engine"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// observedWorld is a world whose spans and records are kept.
type observedWorld struct {
	*world
	spans *tracetest.InMemoryExporter
	mu    sync.Mutex
	out   bytes.Buffer
}

// observe is a bubble with such a world.
func observe(t *testing.T, f func(t *testing.T, o *observedWorld)) {
	t.Helper()
	bubble(t, func(t *testing.T, w *world) { f(t, &observedWorld{world: w, spans: tracetest.NewInMemoryExporter()}) })
}

func (o *observedWorld) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.Write(b)
}

// observed starts a Shim whose spans and records are kept.
func (o *observedWorld) observed(name string, u shim.Upstream, p shim.Policy) *engine.Shim {
	o.t.Helper()
	srv := shim.Server{Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return p }, Queue: 10, QueueWait: 5 * time.Second}
	return o.gatewayOf(name, srv, func(opts *engine.Options) {
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
	observe(t, func(t *testing.T, o *observedWorld) {
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
	observe(t, func(t *testing.T, o *observedWorld) {
		u := takes(0)
		u.call = sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			for i := range 350 {
				s.Progress(shim.Progress{Progress: float64(i)})
				<-time.After(100 * time.Millisecond)
			}
			return after(ctx, 0)
		})
		s := o.observed("a", u, policy(shim.Always))
		pass(time.Minute)
		must(t, errorOf(s.Call(context.Background(), call())))
		pass(time.Minute)
		if got, want := o.events(), []string{"made", "sent", "progress", "progress", "progress", "progress", "ended"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

// TestTraceOfACallThatQueues: a call that becomes a task while it waits for its place has that time
// in the trace of the task, too.
func TestTraceOfACallThatQueues(t *testing.T) {
	observe(t, func(t *testing.T, o *observedWorld) {
		srv := shim.Server{Upstream: takes(20 * time.Second), Policy: func(string, shim.Hints) shim.Policy { return policy(shim.Auto) }, Concurrency: 1, Queue: 10, QueueWait: time.Minute}
		s := o.gatewayOf("a", srv, func(opts *engine.Options) {
			opts.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(o.spans)).Tracer("")
		})
		pass(time.Minute)
		begin(t, s, call())
		begin(t, s, call()) // five seconds later
		pass(time.Minute)
		want := []string{"queue slow", "queue slow < task slow", "run slow < task slow", "run slow < task slow", "task slow", "task slow"}
		if got := o.names(); !slices.Equal(got, want) {
			t.Errorf("spans %q, want %q", got, want)
		}
		for _, s := range o.spans.GetSpans() {
			if want := 10 * time.Second; s.Parent.IsValid() && s.Name == "queue slow" && s.EndTime.Sub(s.StartTime) != want {
				t.Errorf("in the trace of the task it waits for %v, want %v", s.EndTime.Sub(s.StartTime), want)
			}
		}
	})
}

// TestTraceOfAnAdoption: it names the replica that is gone, and the questions that this has asked
// are not told again.
func TestTraceOfAnAdoption(t *testing.T) {
	observe(t, func(t *testing.T, o *observedWorld) {
		s := o.observed("b", elicits(0, "a"), policy(shim.Auto))
		pass(6 * time.Second)
		id := o.lost(elicits(0, "a"), policy(shim.Auto), taskCall(), time.Second).Task.ID
		pass(20 * time.Second)
		updateTask(t, s, id, results("a"))
		pass(time.Second)
		if got, want := o.events(), []string{"adopted", "resumed", "answered", "ended"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		if from := `"from":"a"`; !strings.Contains(o.out.String(), from) {
			t.Errorf("no %s in %s", from, o.out.String())
		}
		for _, s := range o.spans.GetSpans() {
			if s.Name == "adopt slow" && !slices.Contains(s.Attributes, semconv.TaskFrom.String("a")) {
				t.Errorf("the adoption has %v", s.Attributes)
			}
		}
	})
}

package main

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// A task is sampled if its request was, and what belongs to it follows
// its root, whatever the sampler says of others.
func TestSampler(t *testing.T) {
	span := func(sampled, remote bool) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.TraceFlags(0).WithSampled(sampled), Remote: remote,
		})
	}
	task := []attribute.KeyValue{attribute.String("taskgate.task.id", "x")}
	for name, c := range map[string]struct {
		parent trace.SpanContext
		link   trace.SpanContext
		attrs  []attribute.KeyValue
		want   bool
	}{
		"a request":                        {},
		"a request below a sampled one":    {parent: span(true, true)},
		"a task of a sampled request":      {link: span(true, false), attrs: task, want: true},
		"a task of another request":        {link: span(false, false), attrs: task},
		"an attempt at a sampled task":     {parent: span(true, true), attrs: task, want: true},
		"an attempt at another task":       {parent: span(false, true), attrs: task},
		"a request of an attempt":          {parent: span(true, false), want: true},
		"a request of an attempt, dropped": {parent: span(false, false)},
	} {
		p := sdktrace.SamplingParameters{ParentContext: trace.ContextWithSpanContext(context.Background(), c.parent), Attributes: c.attrs}
		if c.link.IsValid() {
			p.Links = []trace.Link{{SpanContext: c.link}}
		}
		got := linked{sdktrace.NeverSample()}.ShouldSample(p).Decision == sdktrace.RecordAndSample
		if got != c.want {
			t.Errorf("%s is sampled: %v", name, got)
		}
	}
}

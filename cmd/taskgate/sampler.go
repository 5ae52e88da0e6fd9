package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// linked samples a root span that links to a sampled one. The trace of a task has a new root;
// another random decision for it could lose the task of a sampled request. All spans of the trace
// follow the root, on all replicas.
type linked struct{ sdktrace.Sampler }

// ShouldSample asks the wrapped sampler unless a link, or the root of a task, has decided.
func (s linked) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanContextFromContext(p.ParentContext)
	task := slices.ContainsFunc(p.Attributes, func(kv attribute.KeyValue) bool { return kv.Key == "taskgate.task.id" })
	sampled := sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample, Tracestate: parent.TraceState()}
	switch {
	case parent.IsValid() && (task || !parent.IsRemote()):
		if !parent.IsSampled() {
			sampled.Decision = sdktrace.Drop
		}
		return sampled
	case slices.ContainsFunc(p.Links, func(l trace.Link) bool { return l.SpanContext.IsSampled() }):
		return sampled
	}
	return s.Sampler.ShouldSample(p)
}

// Description names the sampler in diagnostics.
func (s linked) Description() string { return "Linked{" + s.Sampler.Description() + "}" }

// samplerFromEnv reads OTEL_TRACES_SAMPLER and its argument. The SDK itself reads them only for a bare
// sampler.
func samplerFromEnv() (sdktrace.Sampler, error) {
	name := cmp.Or(os.Getenv("OTEL_TRACES_SAMPLER"), "parentbased_always_on")
	kind, parent := strings.CutPrefix(name, "parentbased_")
	var s sdktrace.Sampler
	switch kind {
	case "always_on":
		s = sdktrace.AlwaysSample()
	case "always_off":
		s = sdktrace.NeverSample()
	case "traceidratio":
		ratio, err := strconv.ParseFloat(cmp.Or(os.Getenv("OTEL_TRACES_SAMPLER_ARG"), "1"), 64)
		if err != nil || ratio < 0 || ratio > 1 {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG: %q is no number from 0 to 1", os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
		}
		s = sdktrace.TraceIDRatioBased(ratio)
	default:
		return nil, fmt.Errorf("OTEL_TRACES_SAMPLER: %q is not supported", name)
	}
	if parent {
		s = sdktrace.ParentBased(s)
	}
	return s, nil
}

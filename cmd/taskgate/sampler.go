package main

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// linked samples a root span that links to a sampled one. The detached run of a
// task is a new root; without this it would throw the dice again, and a sampled
// request would lead to a run that nobody recorded.
type linked struct{ sdktrace.Sampler }

// ShouldSample asks the wrapped sampler unless a link has decided.
func (s linked) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	for _, l := range p.Links {
		if l.SpanContext.IsSampled() {
			return sdktrace.SamplingResult{
				Decision:   sdktrace.RecordAndSample,
				Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState(),
			}
		}
	}
	return s.Sampler.ShouldSample(p)
}

// Description names the sampler in diagnostics.
func (s linked) Description() string { return "Linked{" + s.Sampler.Description() + "}" }

// samplerFromEnv reads OTEL_TRACES_SAMPLER and its argument. The SDK does so too,
// but only for a sampler that is not wrapped.
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

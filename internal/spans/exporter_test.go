package spans_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"taskgate/internal/spans"
)

// taken is a client that keeps what a receiver would read.
type taken struct {
	message *collectorpb.ExportTraceServiceRequest
}

func (*taken) Start(context.Context) error { return nil }
func (*taken) Stop(context.Context) error  { return nil }

func (c *taken) UploadTraces(_ context.Context, m []*tracepb.ResourceSpans) error {
	b, err := proto.Marshal(&collectorpb.ExportTraceServiceRequest{ResourceSpans: m})
	if err != nil {
		return err
	}
	c.message = &collectorpb.ExportTraceServiceRequest{}
	return proto.Unmarshal(b, c.message)
}

// samples are spans with all that a span may have.
func samples() []sdktrace.ReadOnlySpan {
	context := func(i byte, sampled, remote bool, state string) trace.SpanContext {
		ts, _ := trace.ParseTraceState(state)
		return trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{i, 1}, SpanID: trace.SpanID{i, 2}, TraceFlags: trace.TraceFlags(0).WithSampled(sampled), Remote: remote, TraceState: ts,
		})
	}
	res := resource.NewWithAttributes("https://resource", attribute.String("service.name", "taskgate"), attribute.Int("n", 3))
	begun := time.Unix(1_700_000_000, 123456789)
	kinds := []trace.SpanKind{trace.SpanKindServer, trace.SpanKindClient, trace.SpanKindInternal, trace.SpanKindProducer, trace.SpanKindConsumer}
	var stubs tracetest.SpanStubs
	for i, kind := range kinds {
		scope := instrumentation.Scope{Name: "taskgate"}
		if i > 2 {
			scope = instrumentation.Scope{Name: "other", Version: "v1", SchemaURL: "https://scope", Attributes: attribute.NewSet(attribute.Bool("b", true))}
		}
		stubs = append(stubs, tracetest.SpanStub{
			Name: "name", SpanKind: kind, SpanContext: context(byte(i+1), true, false, "a=b"), Resource: res, InstrumentationScope: scope,
			StartTime: begun, EndTime: begun.Add(time.Duration(i) * time.Millisecond),
		})
	}
	stubs[4].SpanContext = context(6, true, false, "")
	stubs[0].Parent = context(7, true, true, "")
	stubs[1].Parent = context(8, true, false, "")
	stubs[1].Status = sdktrace.Status{Code: codes.Error, Description: "why"}
	stubs[2].Status = sdktrace.Status{Code: codes.Ok}
	stubs[1].Attributes = []attribute.KeyValue{
		attribute.String("text", "ü"), attribute.String("empty", ""), attribute.Int64("negative", -1), attribute.Int64("zero", 0),
		attribute.Bool("no", false), attribute.Bool("yes", true), attribute.Float64("part", 0.5), attribute.String("", string(make([]byte, 300))),
	}
	stubs[1].Links = []sdktrace.Link{{SpanContext: context(9, true, true, "")}, {SpanContext: context(10, false, false, ""), Attributes: []attribute.KeyValue{attribute.Int("i", 1)}, DroppedAttributeCount: 2}}
	stubs[2].Events = []sdktrace.Event{{Name: "exception", Time: begun, Attributes: []attribute.KeyValue{attribute.String("k", "v")}, DroppedAttributeCount: 1}, {Name: "other", Time: begun}}
	stubs[3].DroppedAttributes, stubs[3].DroppedEvents, stubs[3].DroppedLinks = 1, 2, 3
	return stubs.Snapshots()
}

// TestSameAsTheSDK: a receiver reads the same as from the SDK's own exporter.
func TestSameAsTheSDK(t *testing.T) {
	ours, theirs := &taken{}, &taken{}
	e, err := spans.New(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	all := samples()
	for range 2 { // buffers are used again
		for _, batch := range [][]sdktrace.ReadOnlySpan{all, all[:1], slices.Concat(all[3:], all[:3])} {
			if err := e.ExportSpans(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			if err := otlptrace.NewUnstarted(theirs).ExportSpans(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(theirs.message, ours.message, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		}
	}
	ours.message = nil
	if err := e.ExportSpans(t.Context(), nil); err != nil || ours.message != nil {
		t.Errorf("nothing was sent: %v %v", ours.message, err)
	}
}

// TestNoGarbage: what an export allocates does not grow with the spans.
func TestNoGarbage(t *testing.T) {
	e, err := spans.New(t.Context(), drain{})
	if err != nil {
		t.Fatal(err)
	}
	one := samples()[4:]
	many := slices.Repeat(one, 500)
	count := func(batch []sdktrace.ReadOnlySpan) float64 {
		return testing.AllocsPerRun(10, func() { _ = e.ExportSpans(t.Context(), batch) })
	}
	count(many)
	if few, lots := count(one), count(many); lots > few+1 {
		t.Errorf("%v allocations for one span, %v for 500", few, lots)
	}
}

// drain takes what is sent.
type drain struct{}

func (drain) Start(context.Context) error                                  { return nil }
func (drain) Stop(context.Context) error                                   { return nil }
func (drain) UploadTraces(context.Context, []*tracepb.ResourceSpans) error { return nil }

// written is a client that writes messages, and sends them nowhere.
type written struct{ drain }

func (written) UploadTraces(_ context.Context, m []*tracepb.ResourceSpans) error {
	_, err := proto.Marshal(&collectorpb.ExportTraceServiceRequest{ResourceSpans: m})
	return err
}

// BenchmarkExport compares the exporter with the SDK's, for a span as a call has.
func BenchmarkExport(b *testing.B) {
	ours, err := spans.New(b.Context(), written{})
	if err != nil {
		b.Fatal(err)
	}
	batch := slices.Repeat(samples()[1:2], 512)
	for name, e := range map[string]sdktrace.SpanExporter{"ours": ours, "sdk": otlptrace.NewUnstarted(written{})} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := e.ExportSpans(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

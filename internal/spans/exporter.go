// Package spans exports spans by OTLP at little cost: many calls make many spans. In come spans
// of the SDK of OpenTelemetry; out go messages of OTLP, by the SDK's own clients. The SDK's exporter
// builds a tree of objects of each span, and has it written by reflection; this one writes spans
// straight away.
package spans

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Exporter sends spans with a client of OTLP. Its spans are of one resource.
type Exporter struct {
	client otlptrace.Client
	encoder
}

// New starts the client.
func New(ctx context.Context, client otlptrace.Client) (*Exporter, error) {
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return &Exporter{client: client}, nil
}

// ExportSpans sends a batch. As the SDK has it, it is called for one batch after the other.
func (e *Exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	// The client takes messages, and writes the fields of a message that it does not know as they
	// are. To it, all fields are such.
	m := &tracepb.ResourceSpans{}
	m.ProtoReflect().SetUnknown(e.encode(spans))
	if err := e.client.UploadTraces(ctx, []*tracepb.ResourceSpans{m}); err != nil {
		return fmt.Errorf("traces export: %w", err)
	}
	return nil
}

// Shutdown stops the client.
func (e *Exporter) Shutdown(ctx context.Context) error { return e.client.Stop(ctx) }

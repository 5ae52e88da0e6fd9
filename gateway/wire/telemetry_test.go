package wire

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"

	"go.opentelemetry.io/otel/baggage"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// TestBaggage: only what the operator lets through goes on.
func TestBaggage(t *testing.T) {
	tel := &Telemetry{baggage: []string{"tenant"}}
	r := httptest.NewRequest("POST", "/mcp", nil)
	r.Header.Set("Baggage", "tenant=header")
	for params, want := range map[string]string{
		`{"_meta":{"baggage":"tenant=a,secret=b"}}`: "tenant=a",
		`{"_meta":{"baggage":"secret=b"}}`:          "",
		`{"_meta":{"baggage":";;"}}`:                "",
		`{}`:                                        "tenant=header",
	} {
		if got := baggage.FromContext(tel.withBaggage(context.Background(), r, metaOf([]byte(params)))).String(); got != want {
			t.Errorf("%s: %q", params, got)
		}
	}
	tel.baggage = nil
	if got := baggage.FromContext(tel.withBaggage(context.Background(), r, nil)).String(); got != "" {
		t.Errorf("nothing allowed: %q", got)
	}
}

// nobody drops the spans that it gets.
type nobody struct{}

func (nobody) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (nobody) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (nobody) Shutdown(context.Context) error                  { return nil }
func (nobody) ForceFlush(context.Context) error                { return nil }

// observers are the ways in which a request can be looked at.
func observers() map[string]*Telemetry {
	traced := func(s sdktrace.Sampler) *Telemetry {
		return NewTelemetry(sdktrace.NewTracerProvider(sdktrace.WithSampler(s), sdktrace.WithSpanProcessor(nobody{})), nil, nil, slog.New(slog.DiscardHandler), false)
	}
	return map[string]*Telemetry{
		"off": NewTelemetry(noop.NewTracerProvider(), nil, nil, slog.New(slog.DiscardHandler), false), "not sampled": traced(sdktrace.NeverSample()), "sampled": traced(sdktrace.AlwaysSample()),
	}
}

// observe makes what is done for one plain call.
func observe(tel *Telemetry) func() {
	r := httptest.NewRequest("POST", "/mcp", nil)
	q := Request{Version: mcp.Version20260728, Upstream: "up", Name: "greet",
		Meta: []byte(`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`)}
	q.Msg.Method, q.Msg.ID = mcp.MethodToolsCall, jsonrpc.StringID("1")
	return func() {
		_, op := tel.Start(r.Context(), r, q)
		op.End()
	}
}

// TestAllocations: nothing is made for a span that nobody looks at, and attributes only for one
// that is sampled.
func TestAllocations(t *testing.T) {
	for name, tel := range observers() {
		most := map[string]float64{"off": 0, "not sampled": 5, "sampled": 11}[name]
		if n := testing.AllocsPerRun(100, observe(tel)); n > most {
			t.Errorf("%s: %v allocations, more than %v", name, n, most)
		}
	}
}

package upstream

import (
	"context"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"taskgate/internal/jsonrpc"
	"taskgate/shim/shimtest/fake"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// from is the context of a client that sent a trace and baggage.
func from(t *testing.T) context.Context {
	ctx := propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": parent, "tracestate": "a=b"})
	b, err := baggage.Parse("tenant=x,secret=y")
	must(t, err)
	return baggage.ContextWithBaggage(ctx, b)
}

// Without telemetry a client's context passes through; only baggage that is
// allowed does.
func TestContextPasses(t *testing.T) {
	for _, m := range []fake.Mode{fake.Stateful, fake.Modern} {
		bubble(t, m, Config{Baggage: []string{"tenant"}}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			must(t, errorOf(h.Call(from(t), in("a", ``), nil)))
			got := s.Seen("tools/call")[0]
			for key, want := range map[string]string{"traceparent": parent, "tracestate": "a=b", "baggage": "tenant=x"} {
				if v, _ := jsonrpc.GetString(got.Params, "_meta", key); v != want {
					t.Errorf("_meta %s: %q, want %q", key, v, want)
				}
				if v := got.Header.Get(key); v != want {
					t.Errorf("header %s: %q, want %q", key, v, want)
				}
			}
		})
	}
}

func TestSpans(t *testing.T) {
	for _, c := range []struct {
		mode fake.Mode
		do   fake.Behaviour
		want map[string]string
	}{
		{fake.Stateful, fake.Text("ok"), map[string]string{"mcp.session.id": "session-1", "mcp.protocol.version": "2025-11-25"}},
		{fake.Modern, fake.Text("ok"), map[string]string{"mcp.protocol.version": "2026-07-28", "gen_ai.tool.name": "t", "gen_ai.operation.name": "execute_tool", "network.transport": "tcp", "server.address": "fake", "taskgate.upstream": "up"}},
		{fake.Modern, fake.Result(`{"isError":true,"content":[]}`), map[string]string{"error.type": "tool_error"}},
		{fake.Modern, fake.RPCError(200, -32602, "secret", ""), map[string]string{"error.type": "-32602", "rpc.response.status_code": "-32602"}},
		{fake.Modern, fake.HTML(), map[string]string{"error.type": "protocol"}},
		{fake.Modern, fake.Status(401, "", ""), map[string]string{"error.type": "refused"}},
	} {
		bubble(t, c.mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", c.do)
			rec := tracetest.NewSpanRecorder()
			cfg := h.wire.cfg
			cfg.Name, cfg.TracerProvider = "up", sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
			traced, err := New(cfg)
			must(t, err)
			baseOf(traced).DialContext = baseOf(h).DialContext
			_, _ = traced.Call(from(t), in("a", ``), nil)
			_ = traced.Close(t.Context())
			var call sdktrace.ReadOnlySpan
			for _, span := range rec.Ended() {
				if span.Name() == "tools/call t" {
					call = span
				}
			}
			if call == nil || call.SpanKind() != trace.SpanKindClient || call.Parent().SpanID().String() != "00f067aa0ba902b7" {
				t.Fatalf("span %+v", call)
			}
			attrs := map[string]string{}
			for _, kv := range call.Attributes() {
				attrs[string(kv.Key)] = kv.Value.Emit()
			}
			for k, v := range c.want {
				if attrs[k] != v {
					t.Errorf("%s: %q, want %q in %v", k, attrs[k], v, attrs)
				}
			}
			want := fmt.Sprintf("00-%s-%s-01", call.SpanContext().TraceID(), call.SpanContext().SpanID())
			if v, _ := jsonrpc.GetString(s.Seen("tools/call")[0].Params, "_meta", "traceparent"); v != want {
				t.Errorf("traceparent %q, want %q", v, want)
			}
		})
	}
}

// nobody drops the spans that it gets.
type nobody struct{}

func (nobody) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (nobody) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (nobody) Shutdown(context.Context) error                  { return nil }
func (nobody) ForceFlush(context.Context) error                { return nil }

// observers are the ways in which a request can be looked at: each is what is done for one.
func observers(t testing.TB) map[string]func() {
	traced := func(s sdktrace.Sampler) trace.TracerProvider {
		return sdktrace.NewTracerProvider(sdktrace.WithSampler(s), sdktrace.WithSpanProcessor(nobody{}))
	}
	ways := map[string]func(){}
	for name, tp := range map[string]trace.TracerProvider{"off": nil, "not sampled": traced(sdktrace.NeverSample()), "sampled": traced(sdktrace.AlwaysSample())} {
		h := newTestClient(t, Config{URL: "http://127.0.0.1:1/mcp", TracerProvider: tp})
		x := h.wire.modernExchange(in("t", `{}`), nil, "2026-07-28")
		ways[name] = func() {
			ctx := x.startSpan(context.Background())
			x.measureRequest(ctx, nil)
			x.endSpan(nil)
		}
	}
	return ways
}

// TestAllocations: nothing is made for a span that nobody looks at, and attributes only for one
// that is sampled. One that is not is passed on all the same. The bounds leave room for two more
// than there are: under the race detector a pool loses some of what it holds.
func TestAllocations(t *testing.T) {
	for name, do := range observers(t) {
		most := map[string]float64{"off": 0, "not sampled": 8, "sampled": 14}[name]
		if n := testing.AllocsPerRun(100, do); n > most {
			t.Errorf("%s: %v allocations, more than %v", name, n, most)
		}
	}
}

package legacy_test

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"taskgate/gateway"
	"taskgate/internal/mcp"
	"taskgate/internal/semconv"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// TestLegacySpans: every request has a span, and notifications have none.
func TestLegacySpans(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`), Replies: map[string]scriptReply{
		"tools/call":     {IsError: true, Result: []byte(`{"content":[],"isError":true}`)},
		"resources/read": {Error: &shim.RPCError{Code: mcp.CodeResourceNotFound, Message: "none"}},
	}}, nil, func(o *gateway.Options) { o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)) })
	h := s.Handler()
	body := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c","version":"2"}}}`
	id := serve(t, h, t.Context(), "POST", "", body).Header().Get(mcp.HeaderSession)
	for _, body := range []string{
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"greet"}}`,
		`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"a:b"}}`,
	} {
		if w := serve(t, h, t.Context(), "POST", id, body); w.Code >= http.StatusBadRequest {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	var got [][5]string
	for _, span := range spans.GetSpans() {
		attrs := make(map[string]string)
		for _, kv := range span.Attributes {
			attrs[string(kv.Key)] = kv.Value.Emit()
		}
		if attrs[string(semconv.MCPSessionID)] != id || attrs[string(semconv.MCPProtocolVersion)] != "2025-03-26" || span.SpanKind != semconv.KindClient {
			t.Errorf("%s: %v", span.Name, attrs)
		}
		failed := ""
		if span.Status.Code == codes.Error {
			failed = "failed"
		}
		got = append(got, [5]string{span.Name, attrs[string(semconv.RequestID)], attrs[string(semconv.ErrorType)], attrs[string(semconv.RPCStatusCode)], failed})
	}
	want := [][5]string{
		{"initialize", "0", "", "", ""},
		{"tools/call greet", "a", "tool_error", "", "failed"},
		{"resources/read", "2", "-32002", "-32002", "failed"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestLegacySpanCancelled: a cancelled call has a span that says so.
func TestLegacySpanCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewInMemoryExporter()
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{}`), Replies: map[string]scriptReply{"prompts/get": {Blocks: true}}},
			nil, func(o *gateway.Options) { o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)) })
		h := s.Handler()
		id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		done := make(chan struct{})
		go func() {
			defer close(done)
			serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p"}}`)
		}()
		synctest.Wait()
		spans.Reset()
		serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		<-done
		got := spans.GetSpans()
		if len(got) != 1 {
			t.Fatalf("%d spans", len(got))
		}
		for _, kv := range got[0].Attributes {
			if kv.Key == semconv.ErrorType && kv.Value.AsString() != "" {
				return
			}
		}
		t.Errorf("%v", got[0].Attributes)
	})
}

package wire

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"

	"go.opentelemetry.io/otel/baggage"

	"taskgate/internal/semconv"
)

// Of the names of tools that exist only so many make series.
func TestNames(t *testing.T) {
	var s names
	for i := range maxNames + 10 {
		want := fmt.Sprint("tool-", i)
		if i >= maxNames {
			want = semconv.OtherName
		}
		if got := s.bound(semconv.GenAITool.String(fmt.Sprint("tool-", i)), true).Value.AsString(); got != want {
			t.Errorf("tool %d: %s", i, got)
		}
	}
	if got := s.bound(semconv.GenAITool.String("tool-0"), false).Value.AsString(); got != "tool-0" {
		t.Errorf("a failure of a known tool counts for %s", got)
	}
}

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

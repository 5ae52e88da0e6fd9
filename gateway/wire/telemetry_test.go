package wire

import (
	"context"
	"net/http/httptest"
	"testing"

	"go.opentelemetry.io/otel/baggage"
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

package metrics_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"taskgate/internal/metrics"
)

// Anybody may send requests under any name: what is told of a minute stays small, and nothing is lost of the sum.
func TestCallersAreBounded(t *testing.T) {
	m, err := metrics.New(noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		m.Sent(t.Context(), "up", metrics.Caller{Address: "192.0.2.1", Client: fmt.Sprint("client\t", i)}, "ping")
	}
	for range 70 {
		m.Sent(t.Context(), "up", metrics.Caller{Principal: "ada"}, "tools/call")
	}
	all, most := 0, 0
	for _, minute := range m.Recent() {
		note, err := json.Marshal(minute)
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]metrics.Counts
		if err := json.Unmarshal(note, &back); err != nil || !reflect.DeepEqual(back["up"].Sent, minute["up"].Sent) {
			t.Errorf("%v: %s is read as %v", err, note, back)
		}
		for _, n := range minute["up"].Sent {
			all += n
		}
		most = max(most, len(minute["up"].Sent))
	}
	if all != 5070 || most > 22 {
		t.Errorf("%d requests of %d kinds, want 5070 of at most 22", all, most)
	}
}

// Package metricstest reads the metrics of package metrics in tests, as text by which a test can look
// them up.
package metricstest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"taskgate/internal/metrics"
	"taskgate/internal/semconv"
)

// Reader reads metrics.
type Reader struct {
	t      testing.TB
	reader *sdkmetric.ManualReader
}

// New makes metrics, and their Reader.
func New(t testing.TB) (*metrics.Metrics, *Reader) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	m, err := metrics.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	return m, &Reader{t, reader}
}

// Metrics returns all present metrics.
func (r *Reader) Metrics() []metricdata.Metrics {
	r.t.Helper()
	var data metricdata.ResourceMetrics
	if err := r.reader.Collect(context.Background(), &data); err != nil {
		r.t.Error(err)
	}
	var all []metricdata.Metrics
	for _, s := range data.ScopeMetrics {
		all = append(all, s.Metrics...)
	}
	return all
}

// Points returns the values of counters and gauges, and the counts of histograms, each by its metric
// and attributes, sorted: "taskgate.call.answers gen_ai.tool.name=t taskgate.upstream=up". The sum of
// a histogram has " sum" behind that.
func (r *Reader) Points() map[string]float64 {
	r.t.Helper()
	points := map[string]float64{}
	for _, m := range r.Metrics() {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				points[spell(m.Name, p.Attributes)] = float64(p.Value)
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				points[spell(m.Name, p.Attributes)] = p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				points[spell(m.Name, p.Attributes)] = float64(p.Count)
				points[spell(m.Name, p.Attributes)+" sum"] = p.Sum
			}
		default:
			r.t.Errorf("%s is %T", m.Name, m.Data)
		}
	}
	return points
}

// Want fails the test unless these points have these values.
func (r *Reader) Want(want map[string]float64) {
	r.t.Helper()
	got := r.Points()
	for name, value := range want {
		if at, ok := got[name]; !ok || at != value {
			r.t.Errorf("%s is %v, want %v; there is\n%s", name, at, value, strings.Join(like(got, name), "\n"))
		}
	}
}

// Text returns all metrics, with everything that a metric may carry.
func (r *Reader) Text() string {
	r.t.Helper()
	var b strings.Builder
	for _, m := range r.Metrics() {
		fmt.Fprintf(&b, "%+v\n", m)
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok {
			for _, p := range h.DataPoints {
				fmt.Fprintln(&b, spell("", p.Attributes), p.Exemplars)
			}
		}
	}
	for name := range r.Points() {
		fmt.Fprintln(&b, name)
	}
	return b.String()
}

// like returns the points of the same metric.
func like(got map[string]float64, name string) []string {
	metric, _, _ := strings.Cut(name, " ")
	var out []string
	for k, v := range got {
		if k == metric || strings.HasPrefix(k, metric+" ") {
			out = append(out, fmt.Sprint(k, ": ", v))
		}
	}
	slices.Sort(out)
	return out
}

func spell(name string, set attribute.Set) string {
	for _, kv := range set.ToSlice() { // sorted
		name += " " + string(kv.Key) + "=" + kv.Value.Emit()
	}
	return name
}

// MayHave reports whether an attribute may be on a metric: ids and URIs have unbounded values.
func MayHave(k attribute.Key) bool {
	switch k {
	case semconv.MCPSessionID, semconv.RequestID, semconv.MCPResourceURI, semconv.TaskID, semconv.TaskAttempt, semconv.ClientAddress, semconv.ClientPort:
		return false
	}
	return true
}

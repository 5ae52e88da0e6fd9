package otlptest

import (
	"fmt"
	"slices"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// Points are the values of counters, and how often each histogram was measured, of all replicas
// together, each by its metric and attributes: "taskgate.call.answers gen_ai.tool.name=t". Zeros
// are left out, and attributes whose values differ from run to run.
func (r *Receiver) Points() map[string]float64 {
	last := map[[2]string]float64{} // by replica and point: each export has the sum until then
	for _, rm := range r.Metrics() {
		replica := plain(rm.GetResource().GetAttributes())["service.instance.id"]
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				for _, p := range m.GetSum().GetDataPoints() {
					last[[2]string{replica, point(m.GetName(), p.GetAttributes())}] = float64(p.GetAsInt()) + p.GetAsDouble()
				}
				for _, p := range m.GetHistogram().GetDataPoints() {
					last[[2]string{replica, point(m.GetName(), p.GetAttributes())}] = float64(p.GetCount())
				}
			}
		}
	}
	points := map[string]float64{}
	for at, n := range last {
		if n != 0 {
			points[at[1]] += n
		}
	}
	return points
}

func point(name string, attributes []*commonpb.KeyValue) string {
	var texts []string
	for k, v := range plain(attributes) {
		if !varying[k] {
			texts = append(texts, fmt.Sprintf(" %s=%s", k, v))
		}
	}
	slices.Sort(texts)
	return name + strings.Join(texts, "")
}

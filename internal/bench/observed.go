package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// The gateways of the part about what it costs to be looked at, besides the one that nobody looks
// at. They have its configuration, and a plain call is all that they are asked for.
const (
	gatewayScraped = "taskgate, tasks: never, with /metrics"
	gatewaySampled = "taskgate, tasks: never, all telemetry, 1 trace in 10"
	gatewayTraced  = "taskgate, tasks: never, all telemetry, each trace"
)

// observed are the addresses of that part: of the gateways, each with that of its operators, and of
// what the latter two send to.
type observed struct {
	scraped, sampled, traced [2]string
	receiver                 string
}

func (o *observed) addrs() []*string {
	return []*string{&o.scraped[0], &o.scraped[1], &o.sampled[0], &o.sampled[1], &o.traced[0], &o.traced[1], &o.receiver}
}

// receive takes what OpenTelemetry sends and keeps nothing of it.
func receive(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // cut off at the end of the benchmark
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// observedParties are a gateway with /metrics, and two that send spans, metrics and their log to a
// receiver as well.
func (s *stage) observedParties(self, taskgate string) ([]party, error) {
	o := &s.observed
	parties := []party{{o.receiver, self, []string{"-as", "receiver", "-listen", o.receiver}}}
	for _, g := range []struct {
		at  [2]string
		env []string
	}{
		{o.scraped, nil},
		{o.sampled, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + o.receiver, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.1"}},
		{o.traced, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + o.receiver, "OTEL_TRACES_SAMPLER=always_on"}},
	} {
		file := filepath.Join(s.dir, "observed-"+g.at[0]+".yaml")
		text := fmt.Sprintf(gatewayConfig, g.at[0], s.redis, s.upstream) + "admin: " + g.at[1] + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		parties = append(parties, party{g.at[0], "env", append(g.env, taskgate, "serve", "--config", file)})
	}
	return parties, nil
}

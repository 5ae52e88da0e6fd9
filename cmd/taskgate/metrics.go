package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"

	"taskgate/gateway/config"
	"taskgate/internal/metrics"
)

// startMeasuring makes the metrics and their readers: an exporter if the environment asks for one, and
// Prometheus if scraped is true, since there is an address for it.
func (t *telemetry) startMeasuring(ctx context.Context, res *resource.Resource, scraped bool) error {
	options := []sdkmetric.Option{sdkmetric.WithResource(res)}
	if wantsSignal("METRICS") {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		options = append(options, sdkmetric.WithReader(reader))
	}
	if scraped {
		registry := prometheus.NewRegistry()
		reader, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo(),
			otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
		if err != nil {
			return err
		}
		t.gathered = registry
		options = append(options, sdkmetric.WithReader(reader))
	}
	if len(options) == 1 {
		return nil
	}
	p := sdkmetric.NewMeterProvider(options...)
	t.stop = append(t.stop, p.Shutdown)
	var err error
	if t.metrics, err = metrics.New(p); err != nil {
		return err
	}
	return runtime.Start(runtime.WithMeterProvider(p))
}

// learnTools takes the names of tools in the configuration.
func (t *telemetry) learnTools(c *config.Config) {
	if t.metrics == nil {
		return
	}
	for _, u := range c.Upstreams {
		for _, tool := range u.Tools {
			if tool.Match.IsName() {
				t.metrics.Names.Learn(u.Name, "tools/call", tool.Match.Name)
			}
		}
	}
}

// metricsPage is /metrics; nil without Prometheus. Clients that ask for OpenMetrics get exemplars.
func (t *telemetry) metricsPage(log *slog.Logger) http.Handler {
	if t.gathered == nil {
		return nil
	}
	return promhttp.HandlerFor(t.gathered, promhttp.HandlerOpts{
		EnableOpenMetrics: true, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
	})
}

// reachableParts says, for metrics, which parts can be reached. ok is false while the process drains, since
// it lets go of them itself.
func (r *readiness) reachableParts() (store bool, upstreams map[string]bool, ok bool) {
	if r.draining() {
		return false, nil, false
	}
	found := r.askParts(checkAge, nil)
	upstreams = make(map[string]bool, len(found.Upstreams))
	for name, s := range found.Upstreams {
		upstreams[name] = s.Reachable
	}
	return found.Store.Reachable, upstreams, true
}

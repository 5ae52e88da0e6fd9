package main

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"taskgate/gateway/config"
	"taskgate/internal/metrics"
)

// measurement is what metrics need. The zero value measures nothing.
type measurement struct {
	metrics  *metrics.Metrics
	provider metric.MeterProvider // nil: none
	// gathered is what /metrics shows; nil where there is no such page.
	gathered prometheus.Gatherer
}

// measure makes the metrics and who reads them: an exporter that the environment asks for, and
// Prometheus where scraped says that there is an address for it.
func (t *telemetry) measure(ctx context.Context, res *resource.Resource, scraped bool) error {
	options := []sdkmetric.Option{sdkmetric.WithResource(res)}
	if wanted("METRICS") {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return err
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
	t.provider, t.stop = p, append(t.stop, p.Shutdown)
	var err error
	if t.metrics, err = metrics.New(p); err != nil {
		return err
	}
	return runtime.Start(runtime.WithMeterProvider(p))
}

// names takes the names of tools that the configuration has.
func (t *telemetry) names(c *config.Config) {
	if t.metrics == nil {
		return
	}
	for _, u := range c.Upstreams {
		for _, tool := range u.Tools {
			if !strings.ContainsAny(tool.Match, `*?[\`) {
				t.metrics.Names.Learn(u.Name, "tools/call", tool.Match)
			}
		}
	}
}

// requests measures the HTTP requests to a handler, if anything is measured. Their spans are made
// elsewhere, and the name of a host is the client's text.
func (t *telemetry) requests(next http.Handler) http.Handler {
	if t.provider == nil {
		return next
	}
	return otelhttp.NewHandler(next, "taskgate", otelhttp.WithMeterProvider(t.provider), otelhttp.WithTracerProvider(tracenoop.NewTracerProvider()),
		otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator()), otelhttp.WithServerName("taskgate"))
}

// page is /metrics; nil for none. Clients that ask for OpenMetrics get exemplars.
func (t *telemetry) page(log *slog.Logger) http.Handler {
	if t.gathered == nil {
		return nil
	}
	return promhttp.HandlerFor(t.gathered, promhttp.HandlerOpts{
		EnableOpenMetrics: true, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
	})
}

// parts says, for metrics, which parts can be reached. A process that ends does not say it: it has
// let go of them itself.
func (r *readiness) parts() (store bool, upstreams map[string]bool, ok bool) {
	if r.draining() {
		return false, nil, false
	}
	found := r.look(nil)
	upstreams = make(map[string]bool, len(found.Upstreams))
	for name, s := range found.Upstreams {
		upstreams[name] = s.Reachable
	}
	return found.Store.Reachable, upstreams, true
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/time/rate"

	"taskgate/internal/metrics"
	"taskgate/internal/semconv"
	"taskgate/shim"
)

// telemetry has the providers of OpenTelemetry. A signal is sent only if the OTEL_* environment asks for it:
// the exporters' own default, OTLP to localhost, would fill the log of every user who lacks a collector.
// Metrics are also read at /metrics.
type telemetry struct {
	traces   trace.TracerProvider
	logs     *log.LoggerProvider // nil: logs go to stderr only
	metrics  *metrics.Metrics    // nil: no metrics
	gathered prometheus.Gatherer // the content of /metrics; nil if there is no such page
	stop     []func(context.Context) error
}

// newTelemetry makes the providers that the environment asks for. autoexport reads from OTEL_* which exporter
// to use, where to send, and with which headers. All signals name the replica that they come from. scraped
// says that there is an address for /metrics.
func newTelemetry(ctx context.Context, replica shim.Replica, scraped bool) (*telemetry, error) {
	t := &telemetry{traces: tracenoop.NewTracerProvider()}
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return t, nil
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "taskgate"), attribute.String("service.version", moduleVersion()),
			attribute.String("service.instance.id", string(replica)), semconv.Replica.String(string(replica))),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, err
	}
	return t, errors.Join(t.startTracing(ctx, res), t.startMeasuring(ctx, res, scraped), t.startRecording(ctx, res))
}

// wantsSignal reports whether the environment asks for a signal: it names an exporter for it, or an OTLP
// endpoint and no exporter.
func wantsSignal(signal string) bool {
	switch os.Getenv("OTEL_" + signal + "_EXPORTER") {
	case "none":
		return false
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
	}
	return true
}

// spanDelay is how long a span waits for others to be exported with, unless the environment sets that time: a
// running task should be found while it runs.
const spanDelay = time.Second

func (t *telemetry) startTracing(ctx context.Context, res *resource.Resource) error {
	if !wantsSignal("TRACES") {
		return nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	sampler, err := samplerFromEnv()
	if err != nil {
		return err
	}
	var batch []sdktrace.BatchSpanProcessorOption
	if os.Getenv("OTEL_BSP_SCHEDULE_DELAY") == "" {
		batch = append(batch, sdktrace.WithBatchTimeout(spanDelay))
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithBatcher(exporter, batch...),
		sdktrace.WithSampler(linked{sampler}), sdktrace.WithRawSpanLimits(spanLimits()))
	t.traces, t.stop = p, append(t.stop, p.Shutdown)
	return nil
}

// spanLimits returns the limits of the environment. By default the length of attributes has the limit of the
// log, because ids and names come from clients.
func spanLimits() sdktrace.SpanLimits {
	l := sdktrace.NewSpanLimits()
	if l.AttributeValueLengthLimit < 0 {
		l.AttributeValueLengthLimit = maxAttr
	}
	return l
}

func (t *telemetry) startRecording(ctx context.Context, res *resource.Resource) error {
	if !wantsSignal("LOGS") {
		return nil
	}
	exporter, err := autoexport.NewLogExporter(ctx)
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	t.logs = log.NewLoggerProvider(log.WithResource(res), log.WithProcessor(eventNamer{log.NewBatchProcessor(exporter)}), log.WithAttributeValueLengthLimit(maxAttr))
	t.stop = append(t.stop, t.logs.Shutdown)
	return nil
}

// eventNamer gives a record of an event the name of the event, which slog has no field for.
type eventNamer struct{ log.Processor }

// OnEmit takes the name from the attribute "event".
func (e eventNamer) OnEmit(ctx context.Context, r *log.Record) error {
	r.WalkAttributes(func(kv attribute.KeyValue) bool {
		if kv.Key == "event" {
			r.SetEventName(kv.Value.AsString())
		}
		return kv.Key != "event"
	})
	return e.Processor.OnEmit(ctx, r)
}

// logger sends records to OpenTelemetry as well, if logs are wanted there.
func (t *telemetry) logger(l *slog.Logger) *slog.Logger {
	if t.logs == nil {
		return l
	}
	return slog.New(slog.NewMultiHandler(l.Handler(), otelslog.NewHandler("taskgate", otelslog.WithLoggerProvider(t.logs))))
}

// flushAll sends what has been collected.
func (t *telemetry) flushAll(ctx context.Context) error {
	var errs []error
	for _, stop := range t.stop {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}

// exportFailures logs the errors of OpenTelemetry as warnings: of each kind the first ones, and then one in failurePause.
// Their beginning names the kind, such as "traces export"; the rest may be new each time. Its logger writes locally only:
// an export of the record would fail as well, and be logged, for ever.
type exportFailures struct {
	log *slog.Logger

	mu    sync.Mutex
	often map[string]*rate.Sometimes // by the kind; "" for those beyond mostKinds
}

const (
	failurePause = 10 * time.Minute
	mostKinds    = 16
)

func newExportFailures(log *slog.Logger) *exportFailures {
	return &exportFailures{log: log, often: map[string]*rate.Sometimes{}}
}

// Handle implements otel.ErrorHandler.
func (e *exportFailures) Handle(err error) {
	kind, _, _ := strings.Cut(err.Error(), ":")
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.often[kind] == nil && len(e.often) >= mostKinds {
		kind = ""
	}
	if e.often[kind] == nil {
		e.often[kind] = &rate.Sometimes{First: 3, Interval: failurePause}
	}
	e.often[kind].Do(func() { e.log.Warn("OpenTelemetry reports an error", "err", err) })
}

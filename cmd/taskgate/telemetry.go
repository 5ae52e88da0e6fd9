package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"taskgate/internal/semconv"
	"taskgate/shim"
)

// telemetry is what OpenTelemetry needs to run. No signal is sent until the
// OTEL_* environment asks for it: the exporters' own default, OTLP to localhost,
// would fill the log of everybody who has no collector. Metrics are also read at /metrics.
type telemetry struct {
	traces trace.TracerProvider
	logs   *log.LoggerProvider // nil: logs go to stderr alone
	stop   []func(context.Context) error
	measurement
}

// newTelemetry makes the providers that the environment asks for. Which exporter,
// where to, and with which headers is read from OTEL_* by autoexport. All signals name the
// replica that they come from. scraped says that there is an address for /metrics.
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

// wantsSignal reports whether the environment asks for a signal: it names an exporter
// for it, or an OTLP endpoint and no exporter.
func wantsSignal(signal string) bool {
	switch os.Getenv("OTEL_" + signal + "_EXPORTER") {
	case "none":
		return false
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
	}
	return true
}

// spanDelay is how long a span waits for others to be exported with, unless the environment
// says so: a task that runs is to be found while it does.
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
	p := sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithSpanProcessor(newAtOnce(sdktrace.NewBatchSpanProcessor(exporter, batch...))),
		sdktrace.WithSampler(linked{sampler}), sdktrace.WithRawSpanLimits(spanLimits()))
	t.traces, t.stop = p, append(t.stop, p.Shutdown)
	return nil
}

// spanLimits are those of the environment. Without one for the length of attributes it is
// that of the log: ids and names are what a client wrote.
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

// eventNamer gives a record that tells of an event the name of that: slog has no place for it.
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

// logger sends records to OpenTelemetry besides where they go already, if logs
// are wanted there.
func (t *telemetry) logger(l *slog.Logger) *slog.Logger {
	if t.logs == nil {
		return l
	}
	return slog.New(slog.NewMultiHandler(l.Handler(), otelslog.NewHandler("taskgate", otelslog.WithLoggerProvider(t.logs))))
}

// flushAll flushes what has been collected.
func (t *telemetry) flushAll(ctx context.Context) error {
	var errs []error
	for _, stop := range t.stop {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}

// exportFailures logs why OpenTelemetry reports an error: as a warning, and each reason once in failurePause, not with each
// batch. Its logger is not one that sends records, too: that would fail as well, and be logged, for ever.
type exportFailures struct {
	log *slog.Logger

	mu     sync.Mutex
	logged map[string]time.Time // by the reason
}

const failurePause = 10 * time.Minute

func newExportFailures(log *slog.Logger) *exportFailures {
	return &exportFailures{log: log, logged: map[string]time.Time{}}
}

// Handle implements otel.ErrorHandler.
func (e *exportFailures) Handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, reason := time.Now(), err.Error()
	maps.DeleteFunc(e.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= failurePause })
	if _, known := e.logged[reason]; known {
		return
	}
	e.logged[reason] = now
	e.log.Warn("OpenTelemetry reports an error", "err", err)
}

// Package metrics has the instruments of the gateway's metrics, with their names, units, bounds and
// attributes. It takes durations, counts and functions to read, and gives them to the API of
// OpenTelemetry, whose providers cmd makes. Those who measure and those who read are outside of it.
//
// Clients and servers cannot make up the value of an attribute: Names bounds names of tools and
// prompts, and Code bounds codes of errors. The sets of attributes are made once and kept. State
// that lasts as long as a task is counted when it changes; only the oldest one is looked up when
// metrics are read.
//
// A nil receiver means that metrics are off: all methods do nothing.
package metrics

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"taskgate/internal/semconv"
)

// Names of the gateway's own metrics. The others are in semconv.
const (
	taskDuration      = "taskgate.task.duration"
	taskSendDelay     = "taskgate.task.send_delay"
	taskAdoptions     = "taskgate.task.adoptions"
	taskRecoveries    = "taskgate.task.recoveries"
	jobPolls          = "taskgate.job.polls"
	callRepeats       = "taskgate.call.repeats"
	taskUnknown       = "taskgate.task.unknown_outcomes"
	tasksRunning      = "taskgate.tasks.running"
	tasksOldest       = "taskgate.tasks.oldest_age"
	callAnswers       = "taskgate.call.answers"
	callsOpen         = "taskgate.calls.open"
	queueLength       = "taskgate.queue.length"
	questionsOpen     = "taskgate.questions.open"
	questionsOldest   = "taskgate.questions.oldest_age"
	questionDuration  = "taskgate.question.duration"
	storeDuration     = "taskgate.store.operation.duration"
	storeSkipped      = "taskgate.store.skipped_records"
	callerRequests    = "taskgate.caller.requests"
	storeUp           = "taskgate.store.up"
	upstreamUp        = "taskgate.upstream.up"
	upstreamPaused    = "taskgate.upstream.paused"
	configInfo        = "taskgate.config.info"
	connectionsOpen   = "taskgate.connections.open"
	streamsOpen       = "taskgate.streams.open"
	sessionsActive    = "taskgate.sessions.active"
	limitUsage        = "taskgate.limit.usage"
	bytesInFlight     = "taskgate.bytes_in_flight"
	bytesKept         = "taskgate.kept_bytes"
	httpDuration      = "http.server.request.duration" // of the conventions for HTTP
	scope             = semconv.Scope
	mostSets          = 10_000 // sets of attributes that are kept for one instrument
	unitSeconds       = "s"
	errorUnavailable  = "unavailable"
	errorOther        = "_OTHER" // of the conventions: any other value
	transportProtocol = "http"
)

var (
	// taskBounds are the bucket bounds of times that may be as long as a task, up to 24 hours.
	taskBounds = []float64{1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 28800, 57600, 86400}
	// httpBounds are those that the conventions for HTTP ask for.
	httpBounds = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
	// storeBounds are those of operations on the store.
	storeBounds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
)

// Metrics are the instruments of one process. They are safe for concurrent use.
type Metrics struct {
	// Names has the names with series of their own.
	Names Names

	serverOperation, serverSession metric.Float64Histogram
	clientOperation, clientSession metric.Float64Histogram
	taskDuration, taskSendDelay    metric.Float64Histogram
	questionDuration, store        metric.Float64Histogram
	http                           metric.Float64Histogram
	calls, refusals, requestsSent  metric.Int64Counter
	adoptions, recoveries, unknown metric.Int64Counter
	polls                          metric.Int64Counter
	repeats                        metric.Int64Counter
	skippedRecords                 metric.Int64Counter

	operations sets[Operation]
	sessions   sets[session]
	limits     sets[string]
	stored     sets[operation]
	requests   sets[request]
	senders    sets[sent]

	meter  metric.Meter
	gauges map[string]metric.Float64ObservableGauge
	recent recent

	mu    sync.Mutex // guards tasks
	tasks map[string]*Tasks
}

// New makes the instruments.
func New(mp metric.MeterProvider) (*Metrics, error) {
	b := &builder{meter: mp.Meter(scope), gauges: make(map[string]metric.Float64ObservableGauge)}
	m := &Metrics{
		serverOperation:  b.seconds(semconv.ServerOperationDuration, "Duration of MCP requests as the server sees them.", semconv.DurationBounds),
		serverSession:    b.seconds(semconv.ServerSessionDuration, "Duration of MCP sessions as the server sees them.", semconv.DurationBounds),
		clientOperation:  b.seconds(semconv.ClientOperationDuration, "Duration of MCP requests as the client sees them: those to upstreams.", semconv.DurationBounds),
		clientSession:    b.seconds(semconv.ClientSessionDuration, "Duration of MCP sessions as the client sees them: those with upstreams.", semconv.DurationBounds),
		taskDuration:     b.seconds(taskDuration, "Time from the creation of a task to its end.", taskBounds),
		taskSendDelay:    b.seconds(taskSendDelay, "Time from the creation of a task to the sending of its call, of tasks that were made before that.", taskBounds),
		questionDuration: b.seconds(questionDuration, "Time from a question of a server to its end.", taskBounds),
		store:            b.seconds(storeDuration, "Duration of operations on the store, with their repeats.", storeBounds),
		http:             b.seconds(httpDuration, "Duration of HTTP server requests.", httpBounds),
		calls:            b.count(callAnswers, "{call}", "Calls of tools, by what their client got."),
		refusals:         b.count(semconv.LimitRefusals, "{refusal}", "Requests, streams and connections that a limit of the gateway has kept out."),
		requestsSent:     b.count(callerRequests, "{request}", "Requests of clients, by who has sent them."),
		adoptions:        b.count(taskAdoptions, "{adoption}", "Tasks, and calls that wait for an answer, that were taken over from another replica."),
		repeats:          b.count(callRepeats, "{call}", "What became of calls whose client gave up."),
		recoveries:       b.count(taskRecoveries, "{recovery}", "What was done with calls that were taken over."),
		polls:            b.count(jobPolls, "{request}", "Questions to servers about the jobs of calls, by what was answered."),
		unknown:          b.count(taskUnknown, "{task}", "Tasks that failed although the server may have done the work."),
	}
	m.skippedRecords = b.count(storeSkipped, "{record}", "Records in the store that cannot be read, each time that one is left out of a list or an adoption.")
	b.gauge(tasksRunning, "{task}", "Tasks that this replica runs, by status.")
	b.gauge(tasksOldest, unitSeconds, "Age of the oldest task that this replica runs, 0 for none.")
	b.gauge(questionsOpen, "{question}", "Questions of servers that wait for an answer, of the calls that this replica runs.")
	b.gauge(questionsOldest, unitSeconds, "Age of the oldest of these questions, 0 for none.")
	b.gauge(queueLength, "{call}", "Calls that wait for a place at an upstream, or at a tool of it.")
	b.gauge(callsOpen, "{request}", "Requests that wait for a server or a task, as max_calls counts them.")
	b.gauge(connectionsOpen, "{connection}", "Connections of clients, as max_connections counts them.")
	b.gauge(streamsOpen, "{stream}", "Streams that clients listen to, as max_streams counts them.")
	b.gauge(sessionsActive, "{session}", "Client sessions of the 2025 versions that have something going on at this replica.")
	b.gauge(bytesInFlight, "By", "Bytes of requests and answers that are held, as max_bytes_in_flight counts them.")
	b.gauge(bytesKept, "By", "Bytes that the store keeps of tasks that ended at this replica, as max_kept_bytes counts them.")
	b.gauge(limitUsage, "1", "How full a limit is that follows the memory of the process: as a whole or, where that is fuller, the share of callers without an owner.")
	b.gauge(storeUp, "", "1 if the store takes writes, else 0.")
	b.gauge(upstreamUp, "", "1 if a connection to the upstream can be opened, else 0.")
	b.gauge(upstreamPaused, "", "1 if an operator has paused the calls of the upstream, or of the tool, else 0.")
	b.gauge(configInfo, "", "1, with the hash of the configuration that is in use.")
	m.meter, m.gauges = b.meter, b.gauges
	return m, b.err
}

// builder makes instruments and keeps the errors.
type builder struct {
	meter  metric.Meter
	gauges map[string]metric.Float64ObservableGauge
	err    error
}

func (b *builder) seconds(name, help string, bounds []float64) metric.Float64Histogram {
	h, err := b.meter.Float64Histogram(name, metric.WithUnit(unitSeconds), metric.WithDescription(help), metric.WithExplicitBucketBoundaries(bounds...))
	b.err = errors.Join(b.err, err)
	return h
}

func (b *builder) count(name, unit, help string) metric.Int64Counter {
	c, err := b.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(help))
	b.err = errors.Join(b.err, err)
	return c
}

func (b *builder) gauge(name, unit, help string) {
	g, err := b.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
	b.err = errors.Join(b.err, err)
	b.gauges[name] = g
}

// addReader has read called for these gauges whenever metrics are read.
func (m *Metrics) addReader(read func(metric.Observer), gauges ...string) {
	if m == nil {
		return
	}
	var observed []metric.Observable
	for _, name := range gauges {
		observed = append(observed, m.gauges[name])
	}
	// It fails only for gauges of another provider.
	_, _ = m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		read(o)
		return nil
	}, observed...)
}

// ReadOpen sets the functions that the gauges of open calls, connections and streams, and of active
// sessions, read.
func (m *Metrics) ReadOpen(calls, connections, streams, sessions func() int) {
	for name, read := range map[string]func() int{callsOpen: calls, connectionsOpen: connections, streamsOpen: streams, sessionsActive: sessions} {
		m.addReader(func(o metric.Observer) { o.ObserveFloat64(m.gauges[name], float64(read())) }, name)
	}
}

// ReadLimits sets the function that returns how full limits are, by their key.
func (m *Metrics) ReadLimits(usage func() map[string]float64) {
	m.addReader(func(o metric.Observer) {
		for key, used := range usage() {
			o.ObserveFloat64(m.gauges[limitUsage], used, metric.WithAttributes(semconv.Limit.String(key)))
		}
	}, limitUsage)
}

// ReadBytes sets the function that the gauge of bytes in flight reads.
func (m *Metrics) ReadBytes(read func() int64) {
	m.addReader(func(o metric.Observer) { o.ObserveFloat64(m.gauges[bytesInFlight], float64(read())) }, bytesInFlight)
}

// ReadKept sets the function that the gauge of kept bytes reads.
func (m *Metrics) ReadKept(read func() int) {
	m.addReader(func(o metric.Observer) { o.ObserveFloat64(m.gauges[bytesKept], float64(read())) }, bytesKept)
}

// ReadParts sets the function that the gauges of reachable parts read: the store, and the upstreams
// by their configured names. While ok is false, these gauges are hidden.
func (m *Metrics) ReadParts(up func() (store bool, upstreams map[string]bool, ok bool)) {
	m.addReader(func(o metric.Observer) { m.observeParts(o, up) }, storeUp, upstreamUp)
}

// ReadPaused sets the function that returns what operators have paused: each upstream with the tools that are, "" for
// all of them.
func (m *Metrics) ReadPaused(read func() map[string][]string) {
	m.addReader(func(o metric.Observer) {
		for upstream, tools := range read() {
			name := semconv.Upstream.String(upstream)
			o.ObserveFloat64(m.gauges[upstreamPaused], truth(slices.Contains(tools, "")), metric.WithAttributes(name))
			for _, tool := range tools {
				if tool != "" {
					o.ObserveFloat64(m.gauges[upstreamPaused], 1, metric.WithAttributes(name, semconv.GenAITool.String(semconv.Cut(tool))))
				}
			}
		}
	}, upstreamPaused)
}

// ReadConfig sets the function that returns the hash of the configuration.
func (m *Metrics) ReadConfig(hash func() string) {
	m.addReader(func(o metric.Observer) {
		o.ObserveFloat64(m.gauges[configInfo], 1, metric.WithAttributes(semconv.ConfigHash.String(hash())))
	}, configInfo)
}

func (m *Metrics) observeParts(o metric.Observer, up func() (bool, map[string]bool, bool)) {
	store, upstreams, ok := up()
	if !ok {
		return
	}
	o.ObserveFloat64(m.gauges[storeUp], truth(store))
	for name, reached := range upstreams {
		o.ObserveFloat64(m.gauges[upstreamUp], truth(reached), metric.WithAttributes(semconv.Upstream.String(name)))
	}
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Refused counts a request, stream or connection that a limit has kept out. key is that of the
// configuration that sets the limit.
func (m *Metrics) Refused(ctx context.Context, key string) {
	if m == nil {
		return
	}
	m.refusals.Add(ctx, 1, m.limits.of(key, func(key string) []attribute.KeyValue { return []attribute.KeyValue{semconv.Limit.String(key)} }).add...)
}

// SkippedRecord counts an unreadable record in the store, which a reader has left out.
func (m *Metrics) SkippedRecord(ctx context.Context) {
	if m != nil {
		m.skippedRecords.Add(ctx, 1)
	}
}

// operation is one on the store, and whether the store was unavailable.
type operation struct {
	name string
	away bool
}

// Stored measures an operation on the store. away says that the store was unavailable.
func (m *Metrics) Stored(ctx context.Context, name string, d time.Duration, away bool) {
	if m == nil {
		return
	}
	m.store.Record(ctx, d.Seconds(), m.stored.of(operation{name, away}, operation.attributes).record...)
}

func (o operation) attributes() []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.StoreOperation.String(o.name)}
	if o.away {
		attrs = append(attrs, semconv.ErrorType.String(errorUnavailable))
	}
	return attrs
}

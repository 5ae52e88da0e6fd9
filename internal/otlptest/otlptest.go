// Package otlptest is a receiver of OTLP over HTTP for tests. Programs under test export to
// it, with the variables of [Receiver.Env]; it keeps what they have sent, and a test reads
// that as plain values or as a drawing of all traces ([Tree]).
package otlptest

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	datapb "go.opentelemetry.io/proto/otlp/metrics/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that was received. Ids are in hexadecimal; Parent is "" for a root.
type Span struct {
	Name, Kind          string // Kind is server, client or internal
	TraceID, ID, Parent string
	Attributes          map[string]string
	Links               []Link
	Failed              bool // its status is an error
	StatusText          string
	Events              int
	Start, End          time.Time
	Resource            map[string]string
}

// Link is what a span is linked to.
type Link struct{ TraceID, ID string }

// Log is a log record that was received. The ids are "" where it has no trace.
type Log struct {
	Event, Body, Severity string
	TraceID, SpanID       string
	Attributes            map[string]string
	Time                  time.Time
	Resource              map[string]string
}

// Receiver is a running receiver. Its methods may be used from any goroutine.
type Receiver struct {
	URL string // for OTEL_EXPORTER_OTLP_ENDPOINT

	mu      sync.Mutex
	spans   []Span
	logs    []Log
	metrics []*datapb.ResourceMetrics
	raw     []byte
	change  chan struct{} // closed with each arrival
}

// Start starts a receiver on loopback that ends with the test.
func Start(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{change: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, req *http.Request) {
		var m tracepb.ExportTraceServiceRequest
		r.take(w, req, &m, func() { r.addSpans(&m) })
	})
	mux.HandleFunc("POST /v1/logs", func(w http.ResponseWriter, req *http.Request) {
		var m logspb.ExportLogsServiceRequest
		r.take(w, req, &m, func() { r.addLogs(&m) })
	})
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, req *http.Request) {
		var m metricspb.ExportMetricsServiceRequest
		r.take(w, req, &m, func() { r.metrics = append(r.metrics, m.GetResourceMetrics()...) })
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

// Env are the variables with which a program exports everything to the receiver.
func (r *Receiver) Env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}
}

// take reads a message, and adds what is in it.
func (r *Receiver) take(w http.ResponseWriter, req *http.Request, m proto.Message, add func()) {
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		zipped, err := gzip.NewReader(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = zipped
	}
	b, err := io.ReadAll(body)
	if err == nil {
		err = proto.Unmarshal(b, m)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	add()
	r.raw = append(r.raw, b...)
	close(r.change)
	r.change = make(chan struct{})
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (r *Receiver) addSpans(m *tracepb.ExportTraceServiceRequest) {
	for _, rs := range m.GetResourceSpans() {
		resource := plain(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				span := Span{
					Name: s.GetName(), Kind: kindOf(s.GetKind()),
					TraceID: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
					Attributes: plain(s.GetAttributes()), Failed: s.GetStatus().GetCode() == spanpb.Status_STATUS_CODE_ERROR,
					StatusText: s.GetStatus().GetMessage(), Events: len(s.GetEvents()),
					Start: at(s.GetStartTimeUnixNano()), End: at(s.GetEndTimeUnixNano()), Resource: resource,
				}
				for _, l := range s.GetLinks() {
					span.Links = append(span.Links, Link{hex.EncodeToString(l.GetTraceId()), hex.EncodeToString(l.GetSpanId())})
				}
				r.spans = append(r.spans, span)
			}
		}
	}
}

func (r *Receiver) addLogs(m *logspb.ExportLogsServiceRequest) {
	for _, rl := range m.GetResourceLogs() {
		resource := plain(rl.GetResource().GetAttributes())
		for _, sl := range rl.GetScopeLogs() {
			for _, l := range sl.GetLogRecords() {
				r.logs = append(r.logs, Log{
					Event: l.GetEventName(), Body: text(l.GetBody()), Severity: l.GetSeverityText(),
					TraceID: hex.EncodeToString(l.GetTraceId()), SpanID: hex.EncodeToString(l.GetSpanId()),
					Attributes: plain(l.GetAttributes()), Time: at(l.GetTimeUnixNano()), Resource: resource,
				})
			}
		}
	}
}

// Spans are those received so far.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Logs are the records received so far, in the order of their times.
func (r *Receiver) Logs() []Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	logs := slices.Clone(r.logs)
	slices.SortStableFunc(logs, func(a, b Log) int { return a.Time.Compare(b.Time) })
	return logs
}

// Metrics is everything received so far, in the order of arrival.
func (r *Receiver) Metrics() []*datapb.ResourceMetrics {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.metrics)
}

// Raw are the bytes of all messages received so far: what is not in them was in no signal.
func (r *Receiver) Raw() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.raw)
}

// Until waits until the condition holds, which is looked at after each arrival.
func (r *Receiver) Until(t testing.TB, what string, limit time.Duration, condition func() bool) {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		r.mu.Lock()
		change := r.change
		r.mu.Unlock()
		if condition() {
			return
		}
		select {
		case <-change:
		case <-timer.C:
			t.Fatalf("%s: not received within %v; there is\n%s%s", what, limit, Tree(r.Spans()), r.logsText())
		}
	}
}

func (r *Receiver) logsText() (out string) {
	for _, l := range r.Logs() {
		out += fmt.Sprintln(l.Severity, l.Event, l.Body, l.TraceID, l.Attributes)
	}
	return out
}

// Find returns the spans of this name.
func (r *Receiver) Find(name string) (found []Span) {
	for _, s := range r.Spans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// Events are the names of the events of a task, in the order in which they happened.
func (r *Receiver) Events(task string) (names []string) {
	for _, l := range r.Logs() {
		if l.Event != "" && l.Attributes["task_id"] == task {
			names = append(names, l.Event)
		}
	}
	return names
}

// Orphans are spans whose parent is of a trace that was received, and was not received
// itself: its parent was exported by nobody.
func Orphans(spans []Span) (orphans []Span) {
	known, roots := map[string]bool{}, map[string]bool{}
	for _, s := range spans {
		known[s.ID] = true
		roots[s.TraceID] = roots[s.TraceID] || s.Parent == ""
	}
	for _, s := range spans {
		if s.Parent != "" && !known[s.Parent] && roots[s.TraceID] {
			orphans = append(orphans, s)
		}
	}
	return orphans
}

func kindOf(k spanpb.Span_SpanKind) string {
	switch k {
	case spanpb.Span_SPAN_KIND_SERVER:
		return "server"
	case spanpb.Span_SPAN_KIND_CLIENT:
		return "client"
	}
	return "internal"
}

func at(nanos uint64) time.Time { return time.Unix(0, int64(nanos)) }

// plain are attributes as texts.
func plain(attributes []*commonpb.KeyValue) map[string]string {
	m := make(map[string]string, len(attributes))
	for _, kv := range attributes {
		m[kv.GetKey()] = text(kv.GetValue())
	}
	return m
}

func text(v *commonpb.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *commonpb.AnyValue_BoolValue:
		return fmt.Sprint(v.BoolValue)
	case *commonpb.AnyValue_DoubleValue:
		return fmt.Sprint(v.DoubleValue)
	case *commonpb.AnyValue_ArrayValue:
		out := []string{}
		for _, e := range v.ArrayValue.GetValues() {
			out = append(out, text(e))
		}
		return fmt.Sprint(out)
	case *commonpb.AnyValue_KvlistValue:
		m := plain(v.KvlistValue.GetValues())
		out := ""
		for _, k := range slices.Sorted(maps.Keys(m)) {
			out += k + "=" + m[k] + " "
		}
		return out
	}
	return ""
}

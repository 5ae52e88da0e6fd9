package gateway

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"taskgate/internal/mcp"
	"taskgate/internal/metrics/metricstest"
	"taskgate/internal/semconv"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

const (
	fromMeta   = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	fromHeader = "00-fedcba9876543210fedcba9876543210-fedcba9876543210-01"
)

// observed is a stage whose spans and metrics are kept.
type observed struct {
	*stage
	spans  *tracetest.InMemoryExporter
	reader *metricstest.Reader
}

func newObserved(t *testing.T) observed {
	o := observed{stage: newStage(t), spans: tracetest.NewInMemoryExporter()}
	o.up.Era = mcp.Legacy
	o.up.Capabilities = json.RawMessage(`{"tools":{},"resources":{}}`)
	o.up.Replies = map[string]fakeReply{
		"tools/call":     {Result: []byte(`{"content":[]}`)},
		"tools/call bad": {Result: []byte(`{"content":[],"isError":true}`)},
		"resources/read": {Error: &shim.RPCError{Code: -32002, Message: "none"}},
	}
	o.traces = sdktrace.NewTracerProvider(sdktrace.WithSyncer(o.spans))
	o.metrics, o.reader = metricstest.New(t)
	return o
}

// span posts a request and returns the one span that comes of it.
func (o observed) span(method, params, header string) tracetest.SpanStub {
	o.t.Helper()
	o.spans.Reset()
	r := wiretest.ModernPost(method, params)
	if header != "" {
		r.Header.Set("Traceparent", header)
	}
	o.start().ServeHTTP(httptest.NewRecorder(), r)
	spans := o.spans.GetSpans()
	if len(spans) != 1 {
		o.t.Fatalf("%d spans", len(spans))
	}
	return spans[0]
}

func attrs(s []attribute.KeyValue) map[attribute.Key]string {
	m := map[attribute.Key]string{}
	for _, kv := range s {
		m[kv.Key] = kv.Value.Emit()
	}
	return m
}

func TestSpanAttributes(t *testing.T) {
	o := newObserved(t)
	s := o.span("tools/call", `{"name":"greet","_meta":{$META}}`, "")
	want := map[attribute.Key]string{
		"mcp.method.name": "tools/call", "mcp.protocol.version": "2026-07-28", "gen_ai.tool.name": "greet",
		"gen_ai.operation.name": "execute_tool", "jsonrpc.request.id": "1", "network.transport": "tcp",
		"network.protocol.name": "http", "network.protocol.version": "1.1", "client.address": "192.0.2.1", "client.port": "1234", "taskgate.upstream": "mcp",
	}
	if diff := cmp.Diff(want, attrs(s.Attributes)); diff != "" || s.Name != "tools/call greet" || s.SpanKind != trace.SpanKindServer {
		t.Errorf("%s %s (-want +got):\n%s", s.Name, s.SpanKind, diff)
	}
	if s = o.span("tools/call", `{"name":"bad","_meta":{$META}}`, ""); attrs(s.Attributes)[semconv.ErrorType] != "tool_error" || s.Status.Code != codes.Error {
		t.Errorf("isError: %+v", s.Attributes)
	}
	s = o.span("resources/read", `{"uri":"file:///x","_meta":{$META}}`, "")
	got := attrs(s.Attributes)
	if s.Name != "resources/read" || got["error.type"] != "-32602" || got["rpc.response.status_code"] != "-32602" || got["mcp.resource.uri"] != "file:///x" {
		t.Errorf("%s: %+v", s.Name, got)
	}
}

// TestSpanParent: _meta is the parent and the transport a link; alone, the
// transport is the parent (SEP-414).
func TestSpanParent(t *testing.T) {
	o := newObserved(t)
	withMeta := `{"name":"x","_meta":{$META,"traceparent":"` + fromMeta + `"}}`
	for _, c := range []struct{ params, header, parent, link string }{
		{`{"name":"x","_meta":{$META}}`, "", "", ""},
		{withMeta, "", fromMeta, ""},
		{`{"name":"x","_meta":{$META}}`, fromHeader, fromHeader, ""},
		{withMeta, fromHeader, fromMeta, fromHeader},
		{`{"name":"x","_meta":{$META,"traceparent":"junk"}}`, fromHeader, fromHeader, ""},
	} {
		s := o.span("tools/call", c.params, c.header)
		parent, link := "", ""
		if s.Parent.IsValid() {
			parent = traceparent(s.Parent)
		}
		if len(s.Links) == 1 {
			link = traceparent(s.Links[0].SpanContext)
		}
		if parent != c.parent || link != c.link || len(s.Links) > 1 {
			t.Errorf("%s with %q: parent %s, links %v", c.params, c.header, parent, s.Links)
		}
	}
}

func traceparent(sc trace.SpanContext) string {
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// TestTaskLink: from a request about a task one finds the run.
func TestTaskLink(t *testing.T) {
	o := newObserved(t)
	const id = "00000000-0000-4000-8000-000000000001"
	o.shim.tasks[id] = &fakeTask{Status: shim.Working, Origin: "ext", Trace: map[string]string{"traceparent": fromMeta}}
	s := o.span("tasks/cancel", `{"taskId":"`+id+`","_meta":{$TASKS}}`, "")
	if attrs(s.Attributes)[semconv.TaskID] != id || len(s.Links) != 1 || traceparent(s.Links[0].SpanContext) != fromMeta {
		t.Errorf("%+v %+v", s.Attributes, s.Links)
	}
}

// TestPolls: polls that fail have spans, and all of them have measurements.
func TestPolls(t *testing.T) {
	const id = "00000000-0000-4000-8000-000000000001"
	const unknown = "00000000-0000-4000-8000-000000000002"
	o := newObserved(t)
	o.shim.tasks[id] = &fakeTask{Status: shim.Working, Origin: "ext", Trace: map[string]string{"traceparent": fromMeta}}
	h := o.start()
	for _, task := range []string{id, unknown} {
		h.ServeHTTP(httptest.NewRecorder(), wiretest.ModernPost("tasks/get", `{"taskId":"`+task+`","_meta":{$TASKS}}`))
	}
	spans := o.spans.GetSpans()
	if len(spans) != 1 || attrs(spans[0].Attributes)[semconv.ErrorType] != "-32602" {
		t.Errorf("%+v", spans)
	}
	if n := len(o.points()); n != 2 {
		t.Errorf("%d measurements", n)
	}
}

// TestMetric: one measurement for each request, also where nothing is traced, with no attribute that has no
// bounded set of values.
func TestMetric(t *testing.T) {
	o := newObserved(t)
	o.traces = nil
	o.status(wiretest.ModernPost("tools/call", `{"name":"bad","_meta":{$META}}`))
	o.status(wiretest.ModernPost("resources/read", `{"uri":"file:///x","_meta":{$META}}`))
	m := o.measured()
	h := m.Data.(metricdata.Histogram[float64])
	if m.Name != "mcp.server.operation.duration" || m.Unit != "s" || len(h.DataPoints) != 2 || !slices.Equal(h.DataPoints[0].Bounds, semconv.DurationBounds) {
		t.Fatalf("%+v", m)
	}
	for _, p := range h.DataPoints {
		for _, kv := range p.Attributes.ToSlice() {
			if !metricstest.MayHave(kv.Key) {
				t.Errorf("metric with %s", kv.Key)
			}
		}
	}
}

// TestRefusedSpans: what is refused for its envelope, its headers or its method has
// a span and a measurement too, with nothing in them that the client made up but ids.
func TestRefusedSpans(t *testing.T) {
	for _, c := range []struct {
		method, body string
		header       [2]string
		span, code   string
	}{
		{"nobody/knows", `{"_meta":{$META}}`, [2]string{}, "unknown", "-32601"},
		{"tasks/list", `{"_meta":{$META}}`, [2]string{}, "tasks/list", "-32601"},
		{"tools/call", `{"name":"t","_meta":{$META}}`, [2]string{"Mcp-Method", "tools/list"}, "tools/call", "-32020"},
		{"tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`, [2]string{}, "tools/list", "-32602"},
		{"tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"v999","io.modelcontextprotocol/clientCapabilities":{}}}`, [2]string{"Mcp-Protocol-Version", "v999"}, "tools/list", "-32022"},
		{"tools/list", `{}`, [2]string{"Mcp-Protocol-Version", "2026-07-28"}, "tools/list", "-32602"},
	} {
		o := newObserved(t)
		r := wiretest.ModernPost(c.method, c.body)
		if c.header[0] != "" {
			r.Header.Set(c.header[0], c.header[1])
		}
		o.start().ServeHTTP(httptest.NewRecorder(), r)
		spans := o.spans.GetSpans()
		if len(spans) != 1 {
			t.Errorf("%s %s: %d spans", c.method, c.body, len(spans))
			continue
		}
		got := attrs(spans[0].Attributes)
		if spans[0].Name != c.span || got[semconv.MCPMethod] != c.span || got[semconv.ErrorType] != c.code || got[semconv.MCPProtocolVersion] == "v999" {
			t.Errorf("%s %s: %s %v", c.method, c.body, spans[0].Name, got)
		}
		if points := o.points(); len(points) != 1 || points[0][semconv.MCPMethod] != c.span || points[0][semconv.ErrorType] != c.code {
			t.Errorf("%s %s: measured %v", c.method, c.body, points)
		}
	}
}

// measured is the metric of requests.
func (o observed) measured() metricdata.Metrics {
	o.t.Helper()
	for _, m := range o.reader.Metrics() {
		if m.Name == semconv.ServerOperationDuration {
			return m
		}
	}
	o.t.Fatal("nothing was measured")
	return metricdata.Metrics{}
}

// points are the attributes of what was measured.
func (o observed) points() []map[attribute.Key]string {
	o.t.Helper()
	var out []map[attribute.Key]string
	for _, p := range o.measured().Data.(metricdata.Histogram[float64]).DataPoints {
		out = append(out, attrs(p.Attributes.ToSlice()))
	}
	return out
}

// TestMetricNames: the names of tools that a client makes up make no series.
func TestMetricNames(t *testing.T) {
	o := newObserved(t)
	o.up.Replies = map[string]fakeReply{
		"tools/call":      {Error: &shim.RPCError{Code: -32602, Message: "unknown tool"}},
		"tools/call real": {Result: []byte(`{"content":[]}`)},
	}
	o.metrics.Names.Learn("mcp", "tools/call", "real") // as the client of the upstream does
	for _, name := range []string{"real", "made-up-1", "made-up-2"} {
		if s := o.span("tools/call", `{"name":"`+name+`","_meta":{$META}}`, ""); attrs(s.Attributes)[semconv.GenAITool] != name {
			t.Errorf("%s: the span has %v", name, s.Attributes)
		}
	}
	got := map[string]bool{}
	for _, p := range o.points() {
		got[p[semconv.GenAITool]] = true
	}
	if diff := cmp.Diff(map[string]bool{"real": true, "_other": true}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"taskgate/gateway/config"
)

// seriesOf are the names of the series of a page, whichever its format is.
func seriesOf(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)[{ ]`).FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// TestMetricsPage: /metrics needs no more than the address of admin. Prometheus reads it in both
// formats, and it says which process it is of.
func TestMetricsPage(t *testing.T) {
	url, _, _ := named(t, "up")
	r := runServer(t, url, nil)
	for range 3 {
		r.post("tools/call", "work")
	}
	for _, format := range []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain), expfmt.NewFormat(expfmt.TypeOpenMetrics)} {
		text := r.shows(format, `(?m)^http_server_request_duration_seconds_count\{http_request_method="POST",http_response_status_code="200"\} 3$`)
		if format.FormatType() == expfmt.TypeTextPlain { // TestTrial reads the other one as Prometheus does
			parser := expfmt.NewTextParser(model.UTF8Validation)
			if _, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
		}
		series := seriesOf(text)
		for _, name := range []string{
			"mcp_server_operation_duration_seconds_count", "mcp_client_operation_duration_seconds_bucket", "taskgate_call_answers_total",
			"taskgate_tasks_running", "taskgate_tasks_oldest_age_seconds", "taskgate_task_adoptions_total", "taskgate_queue_length",
			"taskgate_store_up", "taskgate_upstream_up", "taskgate_store_operation_duration_seconds_sum", "taskgate_bytes_in_flight",
			"taskgate_calls_open", "taskgate_connections_open", "taskgate_streams_open", "taskgate_sessions_active",
			"http_server_request_duration_seconds_count", "go_goroutine_count", "target_info",
		} {
			if !series[name] {
				t.Errorf("%s: there is no %s", format, name)
			}
		}
		info := regexp.MustCompile(`(?m)^target_info\{.*$`).FindString(text)
		for _, want := range []string{`service_name="taskgate"`, `service_version="`, `service_instance_id="`, `taskgate_replica="`} {
			if !strings.Contains(info, want) {
				t.Errorf("no %s in %s", want, info)
			}
		}
		for _, want := range []string{
			`(?m)^taskgate_upstream_up\{taskgate_upstream="mcp"\} 1(\.0)?$`, `(?m)^taskgate_store_up 1(\.0)?$`,
			`(?m)^taskgate_call_answers_total\{gen_ai_tool_name="work",taskgate_call_answer="reply",taskgate_upstream="mcp"\} 3(\.0)?$`,
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("%s: no %s in\n%s", format, want, text)
			}
		}
	}
}

// TestMetricsPageOff: without the address there are no metrics, and the SDK can be switched off.
func TestMetricsPageOff(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp", func(c *config.Config) { c.Admin = "" })
	if r.s.tel.metrics != nil {
		t.Error("metrics that nobody reads")
	}
	r.ends()
	t.Setenv("OTEL_SDK_DISABLED", "true")
	r = runServer(t, "http://127.0.0.1:1/mcp", nil)
	if status, _ := r.asOperator("GET", "/metrics", ""); status != http.StatusNotFound {
		t.Errorf("switched off: %d", status)
	}
}

// TestMetricsBothWays: what is sent by OTLP is shown as well, and the histograms lead to traces.
func TestMetricsBothWays(t *testing.T) {
	var mu sync.Mutex
	got := map[string]int{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path]++
	}))
	defer receiver.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.URL)
	t.Setenv("OTEL_LOGS_EXPORTER", "none")
	url, _, _ := named(t, "up")
	r := runServer(t, url, nil)
	r.post("tools/call", "work")
	text := r.shows(expfmt.NewFormat(expfmt.TypeOpenMetrics), "mcp_server_operation_duration_seconds_count")
	if !regexp.MustCompile(`(?m)^mcp_server_operation_duration_seconds_bucket\{.*\} \d+ # \{.*trace_id="[0-9a-f]{32}".*\} [0-9.e-]+`).MatchString(text) {
		t.Errorf("no exemplars in\n%s", text)
	}
	r.ends()
	mu.Lock()
	defer mu.Unlock()
	if got["/v1/metrics"] == 0 || got["/v1/traces"] == 0 {
		t.Errorf("the receiver got %v", got)
	}
}

// TestMetricsCardinality: whatever a client makes up, it makes no series, and none of it is shown.
func TestMetricsCardinality(t *testing.T) {
	const marker = "marker-7411"
	r := runServer(t, "http://127.0.0.1:1/mcp", nil) // a server that answers nobody
	send := func(i int) {
		name := fmt.Sprint(marker, "-", i)
		body := `{"jsonrpc":"2.0","id":"` + name + `","method":"tools/call","params":{"name":"` + name + `","arguments":{"a":"` + name + `"},"_meta":{` +
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
		if i%3 == 1 {
			body = strings.Replace(body, `"tools/call"`, `"`+name+`"`, 1)
		}
		q, err := http.NewRequestWithContext(t.Context(), []string{"POST", "POST", "MARKER7411"}[i%3], "http://"+r.s.listener.Addr().String()+"/mcp?"+name, strings.NewReader(body))
		must(t, err)
		if i%3 == 2 { // which is refused for it
			q.Host = name + ".localhost"
		}
		for key, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name, "Authorization": "Bearer " + name, "User-Agent": name} {
			q.Header.Set(key, value)
		}
		resp, err := http.DefaultClient.Do(q)
		must(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	names := func() map[string]bool {
		text := r.scrape(expfmt.NewFormat(expfmt.TypeTextPlain))
		if i := strings.Index(strings.ToLower(text), "marker"); i >= 0 {
			t.Fatalf("shown: %s", text[max(0, i-200):min(len(text), i+200)])
		}
		found := map[string]bool{}
		for line := range strings.Lines(text) {
			name, _, _ := strings.Cut(line, "} ")
			if strings.HasPrefix(name, "mcp_") || strings.HasPrefix(name, "http_") || strings.HasPrefix(name, "taskgate_call") {
				found[name] = true
			}
		}
		return found
	}
	for i := range 6 {
		send(i)
	}
	r.shows(expfmt.NewFormat(expfmt.TypeTextPlain), `http_server_request_duration_seconds_count\{http_request_method="_OTHER",http_response_status_code="403"\} 2\n`)
	before := names()
	for i := range 60 {
		send(6 + i)
	}
	for name := range names() {
		if !before[name] {
			t.Errorf("new: %s", name)
		}
	}
	for _, method := range []string{"tools/call", "unknown"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(before)), func(name string) bool { return strings.Contains(name, `mcp_method_name="`+method+`"`) }) {
			t.Errorf("no request of %s was measured: %v", method, before)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v4"

	"taskgate/gateway/config"
	"taskgate/internal/metrics"
	"taskgate/internal/metrics/metricstest"
	"taskgate/internal/semconv"
	"taskgate/internal/wiretest"
	"taskgate/shim/job"
)

const (
	observability = "../../examples/observability"
	rulesFile     = observability + "/prometheus/taskgate.rules.yaml"
)

// everything measures each thing once, with each value that an attribute may have.
func everything(t *testing.T, m *metrics.Metrics) {
	t.Helper()
	ctx, one := t.Context(), time.Second
	zero := func() int { return 0 }
	m.ReadOpen(zero, zero, zero, zero)
	m.ReadLimits(func() map[string]float64 { return map[string]float64{"max_calls": 0} })
	m.ReadBytes(func() int64 { return 0 })
	m.ReadKept(zero)
	m.ReadParts(func() (bool, map[string]bool, bool) { return true, map[string]bool{"up": true}, true })
	m.ReadPaused(func() map[string][]string { return map[string][]string{"up": {"", "t"}} })
	m.ReadConfig(func() string { return "dc6a4b7e204b" })
	m.Refused(ctx, "rate")
	m.Sent(ctx, "up", metrics.Caller{Principal: "ada"}, "tools/call")
	m.HTTP(ctx, one, "POST", 200)
	m.Stored(ctx, "get", one, false)
	m.Stored(ctx, "get", one, true)
	m.SkippedRecord(ctx)
	client, tasks := m.Client("up", nil), m.Tasks("up")
	for _, method := range []string{"tools/call", "prompts/get", "tasks/get", "tasks/result", "tasks/list", "subscriptions/listen"} {
		for _, o := range []metrics.Operation{{Code: -32603}, {Err: semconv.ErrorTool}} {
			o.Method, o.Name, o.Upstream, o.Version = method, "t", "up", "2026-07-28"
			m.ServerOperation(ctx, one, o)
			client.Operation(ctx, one, o)
		}
	}
	m.ServerSession(ctx, one, "up", "2025-11-25")
	client.Session(ctx, one, "2025-11-25", "session")
	for _, state := range []job.Phase{job.Running, job.Done, job.Failed, job.Cancelled, job.Lost, job.Unread} {
		client.Polled(ctx, string(state))
	}
	for _, answer := range []string{semconv.AnswerReply, semconv.AnswerTask, semconv.AnswerInputRequired, semconv.AnswerCancelled, semconv.AnswerError} {
		tasks.Called(ctx, "t", answer, one)
	}
	for _, outcome := range []string{semconv.OutcomeCompleted, semconv.OutcomeToolError, semconv.OutcomeFailed, semconv.OutcomeCancelled, semconv.OutcomeUnknown} {
		tasks.Ended(ctx, "t", outcome, one)
	}
	for _, how := range []string{semconv.RepeatKept, semconv.RepeatPickedUp, semconv.RepeatRanOut, semconv.RepeatYielded, semconv.RepeatRefused} {
		tasks.Repeated(ctx, how)
	}
	tasks.Sent(ctx, one)
	m.ReadLoads(func() map[string]metrics.Load {
		return map[string]metrics.Load{"up": {Tools: map[string]metrics.ToolLoad{"t": {}}}}
	})
	for _, outcome := range []string{semconv.QuestionAnswered, semconv.QuestionExpired, semconv.QuestionWithdrawn, semconv.QuestionLost} {
		tasks.Answered(ctx, outcome, one)
	}
}

// series are the labels of each series that Prometheus gets of this process, and their values; nil
// for a label that may have any.
type series map[string]map[string][]string

// shows is what Prometheus gets, after everything was measured.
func shows(t *testing.T) series {
	t.Helper()
	tel, err := newTelemetry(t.Context(), "replica", true)
	must(t, err)
	t.Cleanup(func() { _ = tel.flushAll(t.Context()) })
	everything(t, tel.metrics)
	families, err := tel.gathered.Gather()
	must(t, err)
	all := series{"up": {"job": nil, "instance": nil}} // Prometheus' own
	for _, f := range families {
		for _, m := range f.GetMetric() {
			names := []string{f.GetName()}
			if m.GetHistogram() != nil {
				names = []string{f.GetName() + "_bucket", f.GetName() + "_sum", f.GetName() + "_count"}
			}
			for _, name := range names {
				if all[name] == nil {
					all[name] = map[string][]string{"job": nil, "instance": nil}
				}
				if strings.HasSuffix(name, "_bucket") {
					all[name]["le"] = nil
				}
				for _, l := range m.GetLabel() {
					values := all[name][l.GetName()]
					switch i, known := slices.BinarySearch(values, l.GetValue()); {
					case name == "target_info": // of this process
						all[name][l.GetName()] = nil
					case !known:
						all[name][l.GetName()] = slices.Insert(values, i, l.GetValue())
					}
				}
			}
		}
	}
	return all
}

// TestSeries: what Prometheus gets is what the queries of the example are checked with, by the
// module next to them.
func TestSeries(t *testing.T) {
	const file = observability + "/check/testdata/series.json"
	got, err := json.MarshalIndent(shows(t), "", " ")
	must(t, err)
	got = append(got, '\n')
	if *wiretest.Update {
		must(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("go test ./cmd/taskgate -run TestSeries -update writes it:\n%s", diff)
	}
}

// rule is an alert.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         model.Duration    `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// alerts are the rules.
func alerts(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	must(t, err)
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	must(t, d.Decode(&file))
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 6 {
		t.Fatalf("only %d rules", len(all))
	}
	return all
}

// TestAlertsAreExplained: each alert says what it is and what to do about it.
func TestAlertsAreExplained(t *testing.T) {
	for _, r := range alerts(t) {
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has no severity, no summary, or no description", r.Alert)
		}
	}
}

// operations is a section of docs/operations.md.
func operations(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	_, section, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/operations.md has no section %s", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// TestMetricsAreDocumented: the table in docs/operations.md has each metric, its kind and its
// attributes, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	rows := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\| (\\w+)[^|]*\\| ([^|]*) \\|.*$").FindAllStringSubmatch(strings.ReplaceAll(operations(t, "Metrics"), "| |", "|  |"), -1) {
		rows[m[1]] = m[2:]
	}
	m, r := metricstest.New(t)
	everything(t, m)
	kinds := map[string]string{"taskgate.call.answers": "counter"}
	attributes := map[string]map[string]bool{}
	for point := range r.Points() {
		name, rest, _ := strings.Cut(point, " ")
		if attributes[name] == nil {
			attributes[name] = map[string]bool{}
		}
		if strings.HasSuffix(point, " sum") {
			kinds[name] = "histogram"
			continue
		}
		for _, kv := range strings.Fields(rest) {
			key, _, _ := strings.Cut(kv, "=")
			attributes[name][key] = true
		}
	}
	for name, has := range attributes {
		row := rows[name]
		if row == nil {
			t.Errorf("%s has no row", name)
			continue
		}
		delete(rows, name)
		if kind := kinds[name]; kind != "" && kind != row[0] || kind == "" && row[0] == "histogram" {
			t.Errorf("%s is documented as a %s", name, row[0])
		}
		for key := range has {
			if strings.HasPrefix(key, "taskgate.") && key != string(semconv.Upstream) && !strings.Contains(row[1], "`"+key+"`") {
				t.Errorf("the row of %s has no %s", name, key)
			}
		}
		for _, key := range regexp.MustCompile("`([\\w.]+)`").FindAllStringSubmatch(row[1], -1) {
			if !has[key[1]] && key[1] != string(semconv.ServerAddress) {
				t.Errorf("%s has no %s", name, key[1])
			}
		}
	}
	if len(rows) > 0 {
		t.Errorf("documented, and not there: %v", slices.Sorted(maps.Keys(rows)))
	}
}

// TestCompose: what the compose file mounts is there, the gateway takes its configuration, and
// nothing listens but for this machine.
func TestCompose(t *testing.T) {
	text, err := os.ReadFile(observability + "/compose.yaml")
	must(t, err)
	var compose struct {
		Services map[string]struct {
			Volumes []string `yaml:"volumes"`
			Ports   []string `yaml:"ports"`
			Image   string   `yaml:"image"`
			Build   any      `yaml:"build"`
		} `yaml:"services"`
	}
	must(t, yaml.Unmarshal(text, &compose))
	for name, s := range compose.Services {
		if s.Image == "" && s.Build == nil {
			t.Errorf("%s is made of nothing", name)
		}
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if _, err := os.Stat(filepath.Join(observability, from)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s listens at %s", name, p)
			}
		}
	}
	if len(compose.Services) < 7 {
		t.Errorf("only %d services", len(compose.Services))
	}
	c, err := config.Load(observability + "/taskgate.yaml")
	must(t, err)
	scrapes, err := os.ReadFile(observability + "/prometheus/prometheus.yaml")
	must(t, err)
	for _, replica := range []string{"taskgate-a", "taskgate-b"} {
		if !strings.Contains(string(scrapes), `"`+replica+c.Admin+`"`) {
			t.Errorf("Prometheus does not read %s", replica)
		}
	}
}

package check

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"taskgate/internal/semconv"
)

// shown are the labels of each series that Prometheus gets of the gateway, and their values; nil
// for a label that may have any.
type shown map[string]map[string][]string

// readSeries reads what TestSeries in cmd/taskgate holds against the gateway.
func readSeries(t *testing.T) (all shown) {
	t.Helper()
	text, err := os.ReadFile("testdata/series.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &all); err != nil || len(all) < 20 {
		t.Fatalf("%d series, %v", len(all), err)
	}
	return all
}

// check says what is wrong with a query: it asks for what there is not.
func (s shown) check(t *testing.T, where, query string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v in %s", where, err, query)
		return
	}
	known := map[string]bool{}
	for _, selectors := range parser.ExtractSelectors(expr) {
		for _, m := range selectors {
			if m.Name == labels.MetricName {
				if s[m.Value] == nil {
					t.Errorf("%s: nothing is called %s", where, m.Value)
				}
				for label := range s[m.Value] {
					known[label] = true
				}
			}
		}
	}
	for _, selectors := range parser.ExtractSelectors(expr) {
		name := ""
		for _, m := range selectors {
			if m.Name == labels.MetricName {
				name = m.Value
			}
		}
		for _, m := range selectors {
			values, ok := s[name][m.Name]
			switch {
			case m.Name == labels.MetricName:
			case !ok:
				t.Errorf("%s: %s has no label %s", where, name, m.Name)
			case m.Type == labels.MatchEqual && m.Value != "" && values != nil && !slices.Contains(values, m.Value):
				t.Errorf("%s: %s has no %s=%q, but %v", where, name, m.Name, m.Value, values)
			}
		}
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, label := range a.Grouping {
				if !known[label] {
					t.Errorf("%s: no label %s to group by in %s", where, label, query)
				}
			}
		}
		return nil
	})
}

var (
	labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
	spanAttr    = regexp.MustCompile(`span\.([\w.]+)`)
)

// TestQueries: each query in the dashboards and in the rules is one that Prometheus takes, and asks
// for names, labels and values that the gateway really shows.
func TestQueries(t *testing.T) {
	all := readSeries(t)
	sources, err := os.ReadFile("../grafana/provisioning/datasources/datasources.yaml")
	if err != nil {
		t.Fatal(err)
	}
	queries := 0
	for _, d := range readDashboards(t) {
		for _, v := range d.Templating.List {
			if m := labelValues.FindStringSubmatch(v.Query); m != nil && all[m[1]][m[2]] == nil {
				t.Errorf("%s: no values for %s", d.UID, v.Query)
			}
		}
		for _, p := range d.Panels {
			where := d.UID + ", " + p.Title
			for _, q := range p.Targets {
				queries++
				if !strings.Contains(string(sources), "uid: "+q.Datasource.UID+"\n") && q.Datasource.UID != "" {
					t.Errorf("%s: no data source %s", where, q.Datasource.UID)
				}
				for _, m := range spanAttr.FindAllStringSubmatch(q.Query, -1) {
					if m[1] != string(semconv.TaskID) {
						t.Errorf("%s: no span has %s", where, m[1])
					}
				}
				if q.Expr == "" || q.Datasource.Type == "loki" { // TestTrial holds the latter against real records
					continue
				}
				query := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1d", "$upstream", "up").Replace(q.Expr)
				all.check(t, where, query)
				for _, m := range legendLabel.FindAllStringSubmatch(q.Legend, -1) {
					if !strings.Contains(query, m[1]) && m[1] != "instance" {
						t.Errorf("%s: the legend has %s, the query has not", where, m[1])
					}
				}
			}
		}
	}
	if queries < 50 {
		t.Errorf("found only %d queries", queries)
	}
	rules := readRules(t)
	if len(rules) < 6 {
		t.Errorf("found only %d rules", len(rules))
	}
	for _, r := range rules {
		all.check(t, r.Alert, r.Expr)
	}
}

// TestQueriesBite: a wrong query is found.
func TestQueriesBite(t *testing.T) {
	all := readSeries(t)
	for _, query := range []string{
		"rate(taskgate_nothing_total[5m])", "sum by (le", `sum by (colour) (taskgate_tasks_running)`,
		`taskgate_tasks_running{colour="red"}`, `taskgate_call_answers_total{taskgate_call_answer="maybe"}`,
	} {
		if !fails(func(t *testing.T) { all.check(t, "here", query) }) {
			t.Errorf("nothing is wrong with %s", query)
		}
	}
}

// fails runs a check on a test of its own.
func fails(check func(*testing.T)) bool {
	var inner testing.T
	check(&inner)
	return inner.Failed()
}

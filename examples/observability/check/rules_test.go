package check

import (
	"log/slog"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// readRules reads the alerts, as Prometheus does.
func readRules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile("../prometheus/taskgate.rules.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// TestRulesBite: a template that is none is found.
func TestRulesBite(t *testing.T) {
	const wrong = `groups: [{name: g, rules: [{alert: A, expr: up == 0, annotations: {summary: "{{ $value | humanise }}"}}]}]`
	_, errs := rulefmt.Parse([]byte(wrong), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) == 0 {
		t.Error("nothing is wrong")
	}
}

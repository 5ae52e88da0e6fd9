package check

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"go.yaml.in/yaml/v3"
)

// scrapeInterval is that of prometheus.yaml. The samples of each scrape are so much later than
// those of the one before, however soon it follows: a day of scrapes takes seconds.
const scrapeInterval = 15 * time.Second

// prometheus is what Prometheus does, with its parser and its engine: it reads the
// replicas, and evaluates queries and alerts.
type prometheus struct {
	t       *testing.T
	db      *series
	engine  *promql.Engine
	targets []target
	rules   []rulefmt.Rule

	begun, now time.Time // of the samples
	exemplars  int       // that were read
	pending    map[string]time.Time
	fired      map[string]map[string]bool // the tools of the alerts that have fired, by their names
}

// target is a replica as Prometheus knows it.
type target struct {
	instance string // its address, in prometheus.yaml
	url      string // where it really is
	known    map[string]labels.Labels
}

// newPrometheus reads the configuration and the rules of the example. at are the real addresses of
// its targets.
func newPrometheus(t *testing.T, at ...string) *prometheus {
	t.Helper()
	text, err := os.ReadFile("../prometheus/prometheus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Global struct {
			ScrapeInterval model.Duration `yaml:"scrape_interval"`
		} `yaml:"global"`
		ScrapeConfigs []struct {
			JobName       string `yaml:"job_name"`
			StaticConfigs []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if time.Duration(config.Global.ScrapeInterval) != scrapeInterval || config.ScrapeConfigs[0].JobName != "taskgate" {
		t.Fatalf("%+v", config)
	}
	p := &prometheus{t: t, pending: map[string]time.Time{}, fired: map[string]map[string]bool{}}
	for i, instance := range config.ScrapeConfigs[0].StaticConfigs[0].Targets {
		p.targets = append(p.targets, target{instance, "http://" + at[i] + "/metrics", map[string]labels.Labels{}})
	}
	if len(p.targets) != len(at) {
		t.Fatalf("%d targets, and %d replicas", len(p.targets), len(at))
	}
	p.db = &series{all: map[string]*storedSeries{}}
	p.engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 5_000_000, Timeout: 30 * time.Second})
	p.rules = readRules(t)
	p.begun = time.Now().Truncate(time.Hour)
	p.now = p.begun
	return p
}

// scrape reads all replicas once, and evaluates the alerts.
func (p *prometheus) scrape() {
	p.t.Helper()
	p.now = p.now.Add(scrapeInterval)
	for i := range p.targets {
		p.read(&p.targets[i])
	}
	for _, r := range p.rules {
		p.evaluate(r)
	}
}

// read reads one replica. The series of one that is away end.
func (p *prometheus) read(from *target) {
	p.t.Helper()
	add := func(l labels.Labels, v float64) { p.db.add(l, p.now.UnixMilli(), v) }
	up := labels.FromStrings(model.MetricNameLabel, "up", "job", "taskgate", "instance", from.instance)
	body, err := p.get(from.url)
	if err != nil {
		add(up, 0)
		for key, l := range from.known {
			add(l, math.Float64frombits(value.StaleNaN))
			delete(from.known, key)
		}
		return
	}
	add(up, 1)
	text, err := textparse.New(body, "application/openmetrics-text", nil, textparse.ParserOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		entry, err := text.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.t.Fatalf("%v in\n%s", err, body)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		text.Labels(&l)
		l = labels.NewBuilder(l).Set("job", "taskgate").Set("instance", from.instance).Labels()
		_, _, v := text.Series()
		from.known[l.String()] = l
		add(l, v)
		for e := (exemplar.Exemplar{}); text.Exemplar(&e); {
			p.exemplars++
		}
	}
}

func (p *prometheus) get(url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// fill puts values for the variables of Grafana. The range is all that was read.
func (p *prometheus) fill(query string) string {
	return strings.NewReplacer(
		"$__rate_interval", "1m", "$__range", fmt.Sprintf("%ds", int(p.now.Sub(p.begun).Seconds())), "$upstream", "lab",
	).Replace(query)
}

// instant evaluates a query now.
func (p *prometheus) instant(query string) promql.Vector {
	p.t.Helper()
	q, err := p.engine.NewInstantQuery(p.t.Context(), p.db, nil, p.fill(query), p.now)
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	defer q.Close()
	v, err := q.Exec(p.t.Context()).Vector()
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	return slices.Clone(v)
}

// values counts the values of a query over all that was read, as a panel draws it.
func (p *prometheus) values(query string) (n int) {
	p.t.Helper()
	q, err := p.engine.NewRangeQuery(p.t.Context(), p.db, nil, p.fill(query), p.begun, p.now, scrapeInterval)
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	defer q.Close()
	m, err := q.Exec(p.t.Context()).Matrix()
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	for _, s := range m {
		for _, f := range s.Floats {
			if !math.IsNaN(f.F) {
				n++
			}
		}
	}
	return n
}

// lowered are the bounds of alerts on ages, which the trial is too short for.
var lowered = strings.NewReplacer("_oldest_age_seconds) > 6 * 3600", "_oldest_age_seconds) > 1", "_oldest_age_seconds) > 300", "_oldest_age_seconds) > 1")

var templateLabel = regexp.MustCompile(`\$labels\.(\w+)`)

// evaluate looks whether an alert fires: it has held at each scrape for long enough.
func (p *prometheus) evaluate(r rulefmt.Rule) {
	p.t.Helper()
	holds := map[string]bool{}
	for _, s := range p.instant(lowered.Replace(r.Expr)) {
		key := r.Alert + s.Metric.String()
		holds[key] = true
		if _, ok := p.pending[key]; !ok {
			p.pending[key] = p.now
		}
		if p.now.Sub(p.pending[key]) < time.Duration(r.For) {
			continue
		}
		if p.fired[r.Alert] == nil {
			p.fired[r.Alert] = map[string]bool{}
		}
		p.fired[r.Alert][s.Metric.Get("gen_ai_tool_name")] = true
		for _, m := range templateLabel.FindAllStringSubmatch(r.Annotations["summary"], -1) {
			if !s.Metric.Has(m[1]) {
				p.t.Errorf("%s fires without the label %s of its summary", r.Alert, m[1])
			}
		}
	}
	for key := range p.pending {
		if strings.HasPrefix(key, r.Alert+"{") && !holds[key] {
			delete(p.pending, key)
		}
	}
}

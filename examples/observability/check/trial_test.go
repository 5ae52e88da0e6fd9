package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"

	"taskgate/internal/otlptest"
)

// TestTrial answers the questions of docs/operations.md ("Answer these from the signals") as an
// operator does: from what two replicas show, with the queries of the dashboards. One replica is
// killed on the way.
func TestTrial(t *testing.T) {
	w := newWorld(t)
	boards := readDashboards(t)
	w.scrapes(2 * scrapeInterval)
	exporting := w.call(w.b, "export", work{Gate: "never"})
	for range 3 {
		w.traffic()
		w.scrapes(scrapeInterval)
	}
	w.namesTheSlowTool(boards, "Slowest tools, 95th percentile", "report")

	slow := w.longTask()
	w.scrapes(3 * time.Minute)
	waiting := w.call(w.b, "approve", work{Asks: true, Gate: "open"})
	w.told(waiting, "asked")
	w.lasts(time.Now(), 1100*time.Millisecond)
	w.scrapes(10*time.Minute + 2*scrapeInterval)

	w.namesTheSlowTool(boards, "Longest tasks by tool", "export")
	w.explains(slow)
	w.tellsWhatWasLost(boards, slow)
	w.tellsWhoWaits(boards, waiting)
	w.alerts()
	w.showsEverything(boards)
	if events := w.rec.Events(exporting); slices.Contains(events, "taskgate.task.ended") {
		t.Errorf("the events of a task that runs are %v", events)
	}
	if w.prometheus.exemplars == 0 {
		t.Error("no histogram leads to a trace")
	}
	if strings.Contains(string(w.rec.Raw()), "secret") {
		t.Error("a signal has what was said")
	}
}

// traffic is what goes on all day.
func (w *world) traffic() {
	w.t.Helper()
	for _, r := range []*replica{w.a, w.b} {
		for range 5 {
			w.call(r, "count", work{})
		}
		for tool, what := range map[string]work{"convert": {Millis: 50}, "report": {Millis: 1200}, "check": {Fails: true}} {
			id := w.call(r, tool, what)
			w.told(id, "ended")
		}
	}
}

// long is what is known of a task that took long, and of the one that was lost with it. It was for at
// least so long in its queue, with its client, at the replica that was lost, and at the last one.
type long struct {
	id, lost                      string
	queued, asked, ran, last, all time.Duration
}

// longTask has a task wait for a place, and then for its client. Its replica is killed, and another
// one runs it again.
func (w *world) longTask() long {
	w.t.Helper()
	var l long
	first := w.call(w.a, "book", work{Gate: "first"})
	l.lost = w.call(w.a, "pay", work{Gate: "never"})
	w.told(l.lost, "sent")
	l.id = w.call(w.a, "book", work{Asks: true, Gate: "last"})
	begun := time.Now()
	w.scrapes(10*time.Minute + 2*scrapeInterval)
	w.lasts(begun, 1500*time.Millisecond)
	l.queued = time.Since(begun)
	w.lab.open("first")
	w.told(first, "ended")

	w.told(l.id, "asked")
	at := time.Now()
	w.lasts(at, 1100*time.Millisecond)
	w.scrapes(2 * time.Minute)
	l.asked = time.Since(at)
	w.answer(w.b, l.id)
	w.told(l.id, "answered")

	at = time.Now()
	w.scrapes(scrapeInterval)
	w.lasts(at, 700*time.Millisecond)
	l.ran = time.Since(at)
	w.a.Kill()
	w.told(l.id, "retried")
	at = time.Now()
	w.told(l.lost, "ended")
	w.lasts(at, 800*time.Millisecond)
	l.last, l.all = time.Since(at), time.Since(begun)
	w.lab.open("last")
	w.told(l.id, "ended")
	w.rec.Until(w.t, "the last span", patience, func() bool { return len(w.ofTask(l.id, "run book")) > 0 })
	return l
}

// namesTheSlowTool: the panel has that tool at the top.
func (w *world) namesTheSlowTool(boards []dashboard, title, tool string) {
	w.t.Helper()
	bars := w.prometheus.instant(query(w.t, boards, title))
	w.t.Logf("%s:\n%s", title, vector(bars))
	if len(bars) < 2 || bars[0].Metric.Get("gen_ai_tool_name") != tool {
		w.t.Errorf("%s: %s is not at the top of\n%s", title, tool, vector(bars))
	}
}

// explains: the spans of a task say where its time went.
func (w *world) explains(l long) {
	w.t.Helper()
	task := one(w.t, w.ofTask(l.id, "task book"))
	adopt, run := one(w.t, w.ofTask(l.id, "adopt book")), one(w.t, w.ofTask(l.id, "run book"))
	var queued, asked time.Duration
	known := task.Start // until when the time of the replica that was lost is known
	for _, s := range w.ofTask(l.id, "queue book") {
		queued += s.End.Sub(s.Start)
		known = s.End
	}
	for _, s := range w.ofTask(l.id, "question elicitation/create") {
		asked += s.End.Sub(s.Start)
		known = s.End
	}
	ran, last, all := adopt.Start.Sub(known), run.End.Sub(adopt.Start), run.End.Sub(task.Start)
	w.t.Logf("task %s took %.1f s: queue %.1f s, question %.1f s, lost with %s %.1f s, %s at %s %.1f s", l.id, all.Seconds(),
		queued.Seconds(), asked.Seconds(), adopt.Attributes["taskgate.task.from"], ran.Seconds(), run.Attributes["taskgate.task.attempt.kind"], run.Attributes["taskgate.replica"], last.Seconds())
	for name, d := range map[string][2]time.Duration{
		"queue": {queued, l.queued}, "question": {asked, l.asked}, "lost attempt": {ran, l.ran}, "last attempt": {last, l.last}, "task": {all, l.all},
	} {
		if d[0] < d[1]-50*time.Millisecond { // the clock of the store rounds
			w.t.Errorf("%s: the trace says %v, it was at least %v", name, d[0], d[1])
		}
	}
	if sum := queued + asked + ran + last; sum < all*85/100 || sum > all {
		w.t.Errorf("the parts are %v together, of %v", sum, all)
	}
}

// tellsWhatWasLost: the dashboard names the replica that died and its address, and the records its
// tasks and what became of them.
func (w *world) tellsWhatWasLost(boards []dashboard, l long) {
	w.t.Helper()
	names := map[string]string{}
	for _, s := range w.prometheus.instant(query(w.t, boards, "Names of replicas")) {
		names[s.Metric.Get("service_instance_id")] = s.Metric.Get("instance")
	}
	w.t.Logf("replicas: %v", names)
	for id, outcome := range map[string]string{l.id: "completed", l.lost: "unknown"} {
		adopted, ended := w.record(id, "adopted"), w.record(id, "ended")
		from, to := names[adopted.Attributes["from"]], names[adopted.Resource["service.instance.id"]]
		w.t.Logf("%s %s: from %s to %s, %s", adopted.Attributes["tool"], id, from, to, ended.Attributes["outcome"])
		if from != "taskgate-a:9090" || to != "taskgate-b:9090" {
			w.t.Errorf("%s went from %q to %q", id, from, to)
		}
		if ended.Attributes["outcome"] != outcome {
			w.t.Errorf("%s ended as %v", id, ended.Attributes)
		}
	}
	down := w.prometheus.instant(query(w.t, boards, "Replicas up") + " == 0")
	if len(down) != 1 || down[0].Metric.Get("instance") != "taskgate-a:9090" {
		w.t.Errorf("down is %s", vector(down))
	}
}

// tellsWhoWaits: the dashboard has the tool and the age of each question, and the records the task.
func (w *world) tellsWhoWaits(boards []dashboard, id string) {
	w.t.Helper()
	for _, title := range []string{"Open questions", "The oldest"} {
		found := w.prometheus.instant("(" + query(w.t, boards, title) + ") > 0")
		w.t.Logf("%s:\n%s", title, vector(found))
		if len(found) != 1 || found[0].Metric.Get("gen_ai_tool_name") != "approve" {
			w.t.Errorf("%s: %s", title, vector(found))
		}
	}
	open := map[string]int{}
	for _, r := range w.rec.Logs() {
		switch task := r.Attributes["task_id"]; r.Event {
		case "taskgate.task.asked":
			open[task]++
		case "taskgate.task.answered":
			open[task]--
		case "taskgate.task.ended":
			delete(open, task)
		}
	}
	maps.DeleteFunc(open, func(_ string, n int) bool { return n <= 0 })
	if len(open) != 1 || open[id] != 1 {
		w.t.Errorf("by the records, these wait: %v", open)
	}
}

// alerts: those fire that should, and no others.
func (w *world) alerts() {
	w.t.Helper()
	want := []string{"TaskgateOutcomeUnknown", "TaskgateQuestionsUnanswered", "TaskgateQueueing", "TaskgateReplicaDown", "TaskgateReplicaLost", "TaskgateTaskStuck"}
	if got := slices.Sorted(maps.Keys(w.prometheus.fired)); !slices.Equal(got, want) {
		w.t.Errorf("fired: %v, want %v", w.prometheus.fired, want)
	}
	for alert, tool := range map[string]string{"TaskgateQuestionsUnanswered": "approve", "TaskgateTaskStuck": "export"} {
		if !w.prometheus.fired[alert][tool] {
			w.t.Errorf("%s names %v", alert, w.prometheus.fired[alert])
		}
	}
}

// nothing are the panels that have nothing to show in the trial.
var nothing = []string{"Limits reached", "Unavailable", "Sessions", "Calls whose clients gave up"}

// showsEverything: each query of Prometheus shows something, and those of the records ask for
// attributes and events that there are.
func (w *world) showsEverything(boards []dashboard) {
	w.t.Helper()
	known, values := map[string]bool{"service_name": true}, map[string]bool{}
	for _, r := range w.rec.Logs() {
		for _, attrs := range []map[string]string{r.Attributes, r.Resource} {
			for key, v := range attrs {
				known[strings.ReplaceAll(key, ".", "_")] = true
				values[v] = true
			}
		}
	}
	for _, d := range boards {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				switch q.Datasource.Type {
				case "prometheus":
					if n := w.prometheus.values(q.Expr); n == 0 && !slices.Contains(nothing, p.Title) {
						w.t.Errorf("%s, %s: nothing comes of %s", d.UID, p.Title, q.Expr)
					}
				case "loki":
					checkRecords(w.t, p.Title, q.Expr, known, values)
				}
			}
		}
	}
}

var (
	grouped  = regexp.MustCompile(`by \(([\w, ]+)\)`)
	matched  = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"([^"]*)"`)
	template = regexp.MustCompile(`\{\{\.(\w+)\}\}`)
)

// checkRecords says what is wrong with a query of records: it asks for what none has.
func checkRecords(t *testing.T, title, query string, known, values map[string]bool) {
	t.Helper()
	var asked []string
	for _, m := range grouped.FindAllStringSubmatch(query, -1) {
		asked = append(asked, strings.Split(m[1], ", ")...)
	}
	for _, m := range template.FindAllStringSubmatch(query, -1) {
		asked = append(asked, m[1])
	}
	for _, m := range matched.FindAllStringSubmatch(query, -1) {
		asked = append(asked, m[1])
		if !strings.HasPrefix(m[2], "$") && !values[m[2]] {
			t.Errorf("%s: no record has %s", title, m[0])
		}
	}
	if len(asked) < 2 {
		t.Errorf("%s: found only %v in %s", title, asked, query)
	}
	for _, name := range asked {
		if !known[name] {
			t.Errorf("%s: no record has %s", title, name)
		}
	}
}

// ofTask are the spans of that name with the id of a task, the earliest first.
func (w *world) ofTask(id, name string) []otlptest.Span {
	found := slices.DeleteFunc(w.rec.Find(name), func(s otlptest.Span) bool { return s.Attributes["taskgate.task.id"] != id })
	slices.SortFunc(found, func(a, b otlptest.Span) int { return a.Start.Compare(b.Start) })
	return found
}

// record is the first record of an event of a task.
func (w *world) record(id, event string) otlptest.Log {
	w.t.Helper()
	for _, r := range w.rec.Logs() {
		if r.Event == "taskgate.task."+event && r.Attributes["task_id"] == id {
			return r
		}
	}
	w.t.Fatalf("nothing tells that %s was %s", id, event)
	return otlptest.Log{}
}

func one(t *testing.T, spans []otlptest.Span) otlptest.Span {
	t.Helper()
	if len(spans) != 1 {
		t.Fatalf("there are %d, and not one:\n%s", len(spans), otlptest.Tree(spans))
	}
	return spans[0]
}

// vector is what a query gave, a line each.
func vector(v promql.Vector) (out string) {
	for _, s := range v {
		out += fmt.Sprintf("%s %.3g\n", s.Metric, s.F)
	}
	return cmp.Or(out, "nothing\n")
}

// dashboard is what there is to check of one of Grafana's.
type dashboard struct {
	UID    string `json:"uid"`
	Panels []struct {
		Title   string `json:"title"`
		Targets []struct {
			Datasource struct {
				Type string `json:"type"`
				UID  string `json:"uid"`
			} `json:"datasource"`
			Expr   string `json:"expr"`
			Query  string `json:"query"`
			Legend string `json:"legendFormat"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query string `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

func readDashboards(t *testing.T) (boards []dashboard) {
	t.Helper()
	files, err := filepath.Glob("../grafana/dashboards/*.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		boards = append(boards, d)
	}
	return boards
}

// query is that of the first panel with this title.
func query(t *testing.T, boards []dashboard, title string) string {
	t.Helper()
	for _, d := range boards {
		for _, p := range d.Panels {
			if p.Title == title {
				return p.Targets[0].Expr
			}
		}
	}
	t.Fatalf("no panel is called %s", title)
	return ""
}

var documented = regexp.MustCompile("(?m)^```(?:promql|logql)\n(.+)\n```$")

// TestDocumentedQueries: docs/operations.md has queries of the dashboards.
func TestDocumentedQueries(t *testing.T) {
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				all[q.Expr] = true
			}
		}
	}
	found := documented.FindAllStringSubmatch(string(text), -1)
	for _, m := range found {
		if query := strings.TrimSuffix(strings.ReplaceAll(m[1], "[1d]", "[$__range]"), " > 0"); !all[query] {
			t.Errorf("no panel has %s", query)
		}
	}
	if len(found) < 3 {
		t.Errorf("found only %d", len(found))
	}
}

package metrics

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"taskgate/internal/semconv"
)

// Load is the work of this replica for one upstream.
type Load struct {
	Calls  int // in flight
	Queued int
	Tools  map[string]ToolLoad // by name; "" for calls of no tool
}

// ToolLoad is the running work of one tool.
type ToolLoad struct {
	Running, InputRequired, Queued int       // tasks
	Oldest                         time.Time // when the oldest of them was made; zero without tasks
	Questions                      int       // open, including those of calls without a task
	Asked                          time.Time // when the first of these calls asked; zero without questions
}

// ReadLoads sets the function that the gauges of running work read, by upstream.
func (m *Metrics) ReadLoads(read func() map[string]Load) {
	m.addReader(func(o metric.Observer) { m.observeLoads(o, read()) }, queueLength, tasksRunning, tasksOldest, questionsOpen, questionsOldest)
}

// observeLoads reads the loads. A tool that ever had a task is shown with zeros.
func (m *Metrics) observeLoads(o metric.Observer, loads map[string]Load) {
	for upstream, load := range loads {
		t, tools := m.Tasks(upstream), map[string]ToolLoad{}
		o.ObserveFloat64(m.gauges[queueLength], float64(load.Queued), t.own)
		for tool, l := range load.Tools {
			name := t.showTool(tool)
			tools[name] = tools[name].WithLoad(l)
		}
		t.mu.Lock()
		for tool := range t.shown {
			m.observeTool(o, upstream, tool, tools[tool])
		}
		t.mu.Unlock()
	}
}

func (m *Metrics) observeTool(o metric.Observer, upstream, tool string, l ToolLoad) {
	attrs := []attribute.KeyValue{semconv.Upstream.String(upstream)}
	if tool != "" {
		attrs = append(attrs, semconv.GenAITool.String(tool))
	}
	of := metric.WithAttributes(attrs...)
	o.ObserveFloat64(m.gauges[tasksRunning], float64(l.Running+l.Queued), of, metric.WithAttributes(semconv.TaskStatus.String("working")))
	o.ObserveFloat64(m.gauges[tasksRunning], float64(l.InputRequired), of, metric.WithAttributes(semconv.TaskStatus.String("input_required")))
	o.ObserveFloat64(m.gauges[tasksOldest], ageOf(l.Oldest), of)
	o.ObserveFloat64(m.gauges[questionsOpen], float64(l.Questions), of)
	o.ObserveFloat64(m.gauges[questionsOldest], ageOf(l.Asked), of)
}

// WithLoad returns the sum of two loads.
func (l ToolLoad) WithLoad(o ToolLoad) ToolLoad {
	return ToolLoad{
		l.Running + o.Running, l.InputRequired + o.InputRequired, l.Queued + o.Queued, Earlier(l.Oldest, o.Oldest),
		l.Questions + o.Questions, Earlier(l.Asked, o.Asked),
	}
}

// Earlier returns the earlier of two times, or the other one if one is zero.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ageOf returns how long ago a time was, in seconds; 0 for the zero time.
func ageOf(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(0, time.Since(at).Seconds())
}

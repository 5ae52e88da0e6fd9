package metrics

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"taskgate/internal/semconv"
)

// Tasks measures the calls and tasks of one upstream at this replica.
type Tasks struct {
	m        *Metrics
	upstream string
	own      metric.MeasurementOption // the upstream alone
	ended    sets[toolWith]
	called   sets[toolWith]
	with     sets[attribute.KeyValue]

	mu    sync.Mutex       // guards what follows
	loads map[string]*load // by the bounded name of the tool, "" for what calls none
	queue func() int
}

// load is what the gauges show of one tool. Tasks.mu guards it.
type load struct {
	running   int
	waiting   int // those of running that wait for an answer
	since     ages
	open      int // questions
	askedFrom ages
}

// toolWith is a tool and one more attribute.
type toolWith struct {
	upstream, tool string
	with           attribute.KeyValue
}

func (t toolWith) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{semconv.Upstream.String(t.upstream), semconv.GenAITool.String(t.tool), t.with}
}

// Tasks returns what measures the tasks of an upstream, the same for the same name. The counters
// of what should not happen begin at 0, so that a rate shows the first time that it does. queue
// says how many calls wait for a place; nil for none ever.
func (m *Metrics) Tasks(upstream string, queue func() int) *Tasks {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	t := m.tasks[upstream]
	if t == nil {
		own := semconv.Upstream.String(upstream)
		t = &Tasks{m: m, upstream: upstream, own: metric.WithAttributeSet(attribute.NewSet(own)), loads: make(map[string]*load), queue: queue}
		if m.tasks == nil {
			m.tasks = make(map[string]*Tasks)
		}
		m.tasks[upstream] = t
		m.mu.Unlock()
		t.begin(own)
		return t
	}
	m.mu.Unlock()
	return t
}

// begin has the gauges be read, and the counters exist.
func (t *Tasks) begin(own attribute.KeyValue) {
	ctx := context.Background()
	t.m.adoptions.Add(ctx, 0, t.own)
	t.m.unknown.Add(ctx, 0, t.own)
	for _, how := range []string{semconv.RecoverySent, semconv.RecoveryResumed, semconv.RecoveryRetried, semconv.RecoveryLost} {
		t.recovered(ctx, how, 0)
	}
	t.mu.Lock()
	t.load("")
	t.mu.Unlock()
	if t.queue != nil {
		t.m.read(queueLength, func() float64 { return float64(t.queue()) }, own)
	}
}

// load has the gauges show a tool from now on. It returns what they show. t.mu is held.
func (t *Tasks) load(tool string) *load {
	l := t.loads[tool]
	if l != nil {
		return l
	}
	l = &load{since: ages{}, askedFrom: ages{}}
	t.loads[tool] = l
	attrs := []attribute.KeyValue{semconv.Upstream.String(t.upstream)}
	if tool != "" {
		attrs = append(attrs, semconv.GenAITool.String(tool))
	}
	show := func(name string, value func() float64, more ...attribute.KeyValue) {
		t.m.read(name, func() float64 {
			t.mu.Lock()
			defer t.mu.Unlock()
			return value()
		}, append(slices.Clone(attrs), more...)...)
	}
	show(tasksRunning, func() float64 { return float64(l.running - l.waiting) }, semconv.TaskStatus.String("working"))
	show(tasksRunning, func() float64 { return float64(l.waiting) }, semconv.TaskStatus.String("input_required"))
	show(tasksOldest, func() float64 { return l.since.oldest() })
	show(questionsOpen, func() float64 { return float64(l.open) })
	show(questionsOldest, func() float64 { return l.askedFrom.oldest() })
	return l
}

// Called counts a call of a tool by what its client got, and when: a value of semconv.CallAnswer.
func (t *Tasks) Called(ctx context.Context, tool, answer string, d time.Duration) {
	if t == nil {
		return
	}
	t.m.recent.count(t.upstream, func(c *Counts) {
		c.Calls[answer]++
		if answer == semconv.AnswerReply {
			c.took(bucketOf(d), 1)
		}
	})
	k := toolWith{t.upstream, t.m.Names.Bound(t.upstream, methodTool, tool), semconv.CallAnswer.String(answer)}
	t.m.calls.Add(ctx, 1, t.called.of(k, toolWith.attributes).add...)
}

// Made counts a task that was made.
func (t *Tasks) Made() {
	if t != nil {
		t.m.recent.count(t.upstream, func(c *Counts) { c.Made++ })
	}
}

// Ended measures a task that has ended. outcome is a value of semconv.TaskOutcome.
func (t *Tasks) Ended(ctx context.Context, tool, outcome string, d time.Duration) {
	if t == nil {
		return
	}
	t.m.recent.count(t.upstream, func(c *Counts) {
		c.Ended[outcome]++
		c.took(bucketOf(d), 1)
	})
	k := toolWith{t.upstream, t.m.Names.Bound(t.upstream, methodTool, tool), semconv.TaskOutcome.String(outcome)}
	t.m.taskDuration.Record(ctx, d.Seconds(), t.ended.of(k, toolWith.attributes).record...)
	if outcome == semconv.OutcomeUnknown {
		t.m.unknown.Add(ctx, 1, t.own)
	}
}

// Sent measures how long after the creation of a task its call is sent.
func (t *Tasks) Sent(ctx context.Context, d time.Duration) {
	if t != nil {
		t.m.taskSendDelay.Record(ctx, d.Seconds(), t.own)
	}
}

// Adopted counts a call that was taken over from another replica.
func (t *Tasks) Adopted(ctx context.Context) {
	if t != nil {
		t.m.adoptions.Add(ctx, 1, t.own)
	}
}

// Recovered counts what is done with a call that was taken over: a value of semconv.Recovery.
func (t *Tasks) Recovered(ctx context.Context, how string) {
	if t != nil {
		t.recovered(ctx, how, 1)
	}
}

func (t *Tasks) recovered(ctx context.Context, how string, n int64) {
	set := t.with.of(semconv.Recovery.String(how), t.and)
	t.m.recoveries.Add(ctx, n, set.add...)
}

// Answered measures a question that is not open any more. outcome is a value of
// semconv.QuestionOutcome.
func (t *Tasks) Answered(ctx context.Context, outcome string, d time.Duration) {
	if t == nil {
		return
	}
	t.m.questionDuration.Record(ctx, d.Seconds(), t.with.of(semconv.QuestionOutcome.String(outcome), t.and).record...)
}

// and is the upstream with one more attribute.
func (t *Tasks) and(kv attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.Upstream.String(t.upstream), kv}
}

// Running is a call that this replica runs, as the gauges count it. The zero value is one of no
// upstream, which nobody counts.
type Running struct {
	tasks *Tasks
	tool  string // as it was sent

	// Tasks.mu guards what follows.
	load *load // nil until there is something to count
	task *time.Time
	asks *time.Time
	open int
	over bool
}

// Run returns a call that is counted as soon as it is a task or has questions. tool is the tool
// that it calls, "" for none.
func (t *Tasks) Run(tool string) Running { return Running{tasks: t, tool: tool} }

// counted is where the call is counted. Tasks.mu is held.
func (r *Running) counted() *load {
	if r.load == nil {
		r.load = r.tasks.load(r.tasks.m.Names.Bound(r.tasks.upstream, methodTool, r.tool))
	}
	return r.load
}

// Begin counts the call as a task, which was made at a time of this process's clock.
func (r *Running) Begin(made time.Time) {
	t := r.tasks
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.task != nil || r.over {
		return
	}
	l := r.counted()
	r.task = l.since.add(made)
	l.running++
	if r.open > 0 {
		l.waiting++
	}
}

// Ask says how many questions of the call are open now, 0 for none.
func (r *Running) Ask(n int) {
	t := r.tasks
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.over || n == r.open {
		return
	}
	l, was := r.counted(), r.open
	l.open += n - was
	r.open = n
	switch {
	case was == 0:
		r.asks = l.askedFrom.add(time.Now())
		if r.task != nil {
			l.waiting++
		}
	case n == 0:
		l.askedFrom.remove(r.asks)
		if r.task != nil {
			l.waiting--
		}
	}
}

// End counts the call no more, whatever is said of it later.
func (r *Running) End() {
	r.Ask(0)
	t := r.tasks
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.over = true; r.task != nil {
		r.load.since.remove(r.task)
		r.load.running--
		r.task = nil
	}
}

// ages are points in time.
type ages map[*time.Time]struct{}

func (a ages) add(at time.Time) *time.Time {
	a[&at] = struct{}{}
	return &at
}

func (a ages) remove(one *time.Time) { delete(a, one) }

// oldest is the age of the earliest in seconds, 0 for none.
func (a ages) oldest() float64 {
	var first time.Time
	for at := range a {
		if first.IsZero() || at.Before(first) {
			first = *at
		}
	}
	if first.IsZero() {
		return 0
	}
	return max(0, time.Since(first).Seconds())
}

package metrics

import (
	"context"
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
	own      metric.MeasurementOption // the upstream only
	ofTool   sets[toolWith]
	with     sets[attribute.KeyValue]

	mu    sync.Mutex
	shown map[string]bool // bounded names of tools that the gauges show; "" for calls of no tool
}

// toolWith is a tool and one more attribute.
type toolWith struct {
	upstream, tool string
	with           attribute.KeyValue
}

func (t toolWith) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{semconv.Upstream.String(t.upstream), semconv.GenAITool.String(t.tool), t.with}
}

// Tasks returns the Tasks of an upstream, the same one for the same name. Counters of failures
// begin at 0, so that a rate shows the first one.
func (m *Metrics) Tasks(upstream string) *Tasks {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[upstream]; t != nil {
		return t
	}
	own := metric.WithAttributeSet(attribute.NewSet(semconv.Upstream.String(upstream)))
	t := &Tasks{m: m, upstream: upstream, own: own, shown: map[string]bool{"": true}}
	if m.tasks == nil {
		m.tasks = make(map[string]*Tasks)
	}
	m.tasks[upstream] = t
	ctx := context.Background()
	m.adoptions.Add(ctx, 0, own)
	m.unknown.Add(ctx, 0, own)
	for _, how := range []string{semconv.RecoverySent, semconv.RecoveryResumed, semconv.RecoveryRetried, semconv.RecoveryLost} {
		t.recovered(ctx, how, 0)
	}
	return t
}

// showTool has the gauges show a tool from now on, and returns its bounded name.
func (t *Tasks) showTool(tool string) string {
	name := t.m.Names.Bound(t.upstream, methodTool, tool)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown[name] = true
	return name
}

// Called counts a call of a tool. answer, a value of semconv.CallAnswer, is what its client got,
// and d after what time.
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
	t.m.calls.Add(ctx, 1, t.ofTool.of(k, toolWith.attributes).add...)
}

// Made counts a task that was made.
func (t *Tasks) Made(tool string) {
	if t != nil {
		t.showTool(tool)
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
	t.m.taskDuration.Record(ctx, d.Seconds(), t.ofTool.of(k, toolWith.attributes).record...)
	if outcome == semconv.OutcomeUnknown {
		t.m.unknown.Add(ctx, 1, t.own)
	}
}

// Sent measures the time from the creation of a task until its call is sent.
func (t *Tasks) Sent(ctx context.Context, d time.Duration) {
	if t != nil {
		t.m.taskSendDelay.Record(ctx, d.Seconds(), t.own)
	}
}

// Adopted counts a call that was taken over from another replica.
func (t *Tasks) Adopted(ctx context.Context, tool string) {
	if t != nil {
		t.showTool(tool)
		t.m.adoptions.Add(ctx, 1, t.own)
	}
}

// Repeated counts what becomes of a call whose client gave up: a value of semconv.Repeat.
func (t *Tasks) Repeated(ctx context.Context, how string) {
	if t != nil {
		t.m.repeats.Add(ctx, 1, t.with.of(semconv.Repeat.String(how), t.and).add...)
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

// Answered measures a question that has been closed. outcome is a value of semconv.QuestionOutcome.
func (t *Tasks) Answered(ctx context.Context, outcome string, d time.Duration) {
	if t == nil {
		return
	}
	t.m.questionDuration.Record(ctx, d.Seconds(), t.with.of(semconv.QuestionOutcome.String(outcome), t.and).record...)
}

// and returns the upstream with one more attribute.
func (t *Tasks) and(kv attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.Upstream.String(t.upstream), kv}
}

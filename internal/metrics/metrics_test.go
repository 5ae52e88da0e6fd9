package metrics_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/metrics"
	"taskgate/internal/metrics/metricstest"
	"taskgate/internal/semconv"
)

// Only names that exist have series, and of those only so many.
func TestNames(t *testing.T) {
	var n metrics.Names
	if got := n.Bound("up", "tools/call", "made-up"); got != semconv.OtherName {
		t.Errorf("a name that nobody has learned is %q", got)
	}
	if got := n.Bound("up", "tools/list", ""); got != "" {
		t.Errorf("no name is %q", got)
	}
	for i := range 210 {
		name := fmt.Sprint("tool-", i)
		n.Learn("up", "tools/call", name)
		want := name
		if i >= 200 {
			want = semconv.OtherName
		}
		if got := n.Bound("up", "tools/call", name); got != want {
			t.Fatalf("%s is %q", name, got)
		}
	}
	n.Learn("other", "prompts/get", "tool-205", "")
	if got := n.Bound("other", "prompts/get", "tool-205"); got != "tool-205" {
		t.Errorf("another upstream has no room: %q", got)
	}
	if got := n.Bound("other", "tools/call", "tool-205"); got != semconv.OtherName {
		t.Errorf("a prompt is a tool: %q", got)
	}
}

func TestNamesConcurrently(t *testing.T) {
	var n metrics.Names
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				n.Learn("up", "tools/call", fmt.Sprint(j))
				n.Bound("up", "tools/call", fmt.Sprint(i, j))
			}
		})
	}
	all.Wait()
	if got := n.Bound("up", "tools/call", "49"); got != "49" {
		t.Errorf("%q", got)
	}
}

// A server may answer with any code: those that nobody has given out are one series.
func TestCode(t *testing.T) {
	for code, want := range map[int64]string{-32700: "-32700", -32603: "-32603", -32002: "-32002", 1: "_OTHER", -32500: "_OTHER", 1 << 40: "_OTHER"} {
		if got := metrics.Code(code); got != want {
			t.Errorf("%d is %s, want %s", code, got, want)
		}
	}
}

// What a client or a server makes up makes no series.
func TestSeriesAreBounded(t *testing.T) {
	m, r := metricstest.New(t)
	c := m.Client("up", nil)
	tasks := m.Tasks("up")
	ctx := context.Background()
	for i := range 1000 {
		name := fmt.Sprint("made-up-", i)
		failed := metrics.Operation{Method: "tools/call", Upstream: "up", Name: name, Code: int64(i + 1)}
		m.ServerOperation(ctx, time.Second, failed)
		c.Operation(ctx, time.Second, failed)
		m.ServerOperation(ctx, time.Second, metrics.Operation{Method: "resources/read", Upstream: "up", Name: name})
		m.HTTP(ctx, time.Second, name, 0)
		tasks.Called(ctx, name, semconv.AnswerError, time.Second)
		tasks.Ended(ctx, name, semconv.OutcomeFailed, time.Second)
		tasks.Made(name)
	}
	if n := len(r.Points()); n > 60 {
		t.Errorf("%d series", n)
	}
	r.Want(map[string]float64{
		"mcp.client.operation.duration error.type=_OTHER gen_ai.operation.name=execute_tool gen_ai.tool.name=_other mcp.method.name=tools/call rpc.response.status_code=_OTHER taskgate.upstream=up":                                                  1000,
		"mcp.server.operation.duration error.type=_OTHER gen_ai.operation.name=execute_tool gen_ai.tool.name=_other mcp.method.name=tools/call network.protocol.name=http network.transport=tcp rpc.response.status_code=_OTHER taskgate.upstream=up": 1000,
		"http.server.request.duration http.request.method=_OTHER http.response.status_code=200":                                                                                                                                                       1000,
		"mcp.server.operation.duration mcp.method.name=resources/read network.protocol.name=http network.transport=tcp taskgate.upstream=up":                                                                                                          1000,
	})
}

// The gauges show what runs at the moment, and zeros where nothing does.
func TestGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := metricstest.New(t)
		loads := map[string]metrics.Load{"up": {Queued: 3}}
		m.ReadLoads(func() map[string]metrics.Load { return loads })
		want := func(working, waiting, oldest, open, asked float64) {
			t.Helper()
			r.Want(map[string]float64{
				"taskgate.tasks.running taskgate.task.status=working taskgate.upstream=up":        working,
				"taskgate.tasks.running taskgate.task.status=input_required taskgate.upstream=up": waiting,
				"taskgate.tasks.oldest_age taskgate.upstream=up":                                  oldest,
				"taskgate.questions.open taskgate.upstream=up":                                    open,
				"taskgate.questions.oldest_age taskgate.upstream=up":                              asked,
				"taskgate.queue.length taskgate.upstream=up":                                      3,
			})
		}
		want(0, 0, 0, 0, 0)
		begun := time.Now()
		loads["up"] = metrics.Load{Queued: 3, Tools: map[string]metrics.ToolLoad{"": {
			Running: 1, Queued: 1, InputRequired: 1, Oldest: begun.Add(-time.Minute), Questions: 2, Asked: begun,
		}}}
		<-time.After(5 * time.Second)
		want(2, 1, 65, 2, 5)
		loads["up"] = metrics.Load{Queued: 3}
		want(0, 0, 0, 0, 0)
	})
}

// The gauges tell tools apart, of those whose names have series.
func TestGaugesByTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := metricstest.New(t)
		m.Names.Learn("up", "tools/call", "known")
		now := time.Now()
		loads := map[string]metrics.Load{"up": {Tools: map[string]metrics.ToolLoad{
			"known":     {Running: 1, InputRequired: 1, Oldest: now.Add(-time.Minute), Questions: 1, Asked: now},
			"made-up-1": {InputRequired: 1, Oldest: now, Questions: 1, Asked: now},
			"made-up-2": {InputRequired: 1, Oldest: now.Add(-time.Second), Questions: 1, Asked: now.Add(-time.Second)},
		}}}
		m.ReadLoads(func() map[string]metrics.Load { return loads })
		want := map[string]float64{
			"taskgate.tasks.oldest_age gen_ai.tool.name=known taskgate.upstream=up":      60,
			"taskgate.tasks.oldest_age taskgate.upstream=up":                             0,
			"taskgate.questions.open taskgate.upstream=up":                               0,
			"taskgate.questions.oldest_age gen_ai.tool.name=known taskgate.upstream=up":  0,
			"taskgate.questions.oldest_age gen_ai.tool.name=_other taskgate.upstream=up": 1,
			"taskgate.tasks.oldest_age gen_ai.tool.name=_other taskgate.upstream=up":     1,
			"taskgate.questions.open gen_ai.tool.name=_other taskgate.upstream=up":       2,
			"taskgate.questions.open gen_ai.tool.name=known taskgate.upstream=up":        1,
			"taskgate.tasks.running taskgate.task.status=working taskgate.upstream=up":   0,
		}
		for tool, n := range map[string][2]float64{"known": {1, 1}, "_other": {0, 2}} {
			want["taskgate.tasks.running gen_ai.tool.name="+tool+" taskgate.task.status=working taskgate.upstream=up"] = n[0]
			want["taskgate.tasks.running gen_ai.tool.name="+tool+" taskgate.task.status=input_required taskgate.upstream=up"] = n[1]
		}
		r.Want(want)
		loads["up"] = metrics.Load{}
		r.Want(map[string]float64{"taskgate.tasks.oldest_age gen_ai.tool.name=known taskgate.upstream=up": 0})
	})
}

// Counters of what should not happen are there before it does.
func TestCountersBeginAtZero(t *testing.T) {
	m, r := metricstest.New(t)
	if first := m.Tasks("up"); first != m.Tasks("up") {
		t.Error("an upstream has two")
	}
	r.Want(map[string]float64{
		"taskgate.task.adoptions taskgate.upstream=up":                            0,
		"taskgate.task.unknown_outcomes taskgate.upstream=up":                     0,
		"taskgate.task.recoveries taskgate.recovery=lost taskgate.upstream=up":    0,
		"taskgate.task.recoveries taskgate.recovery=resumed taskgate.upstream=up": 0,
	})
}

// What can be reached is not shown while nobody knows.
func TestParts(t *testing.T) {
	m, r := metricstest.New(t)
	known := true
	m.ReadParts(func() (bool, map[string]bool, bool) { return true, map[string]bool{"a": true, "b": false}, known })
	r.Want(map[string]float64{"taskgate.store.up": 1, "taskgate.upstream.up taskgate.upstream=a": 1, "taskgate.upstream.up taskgate.upstream=b": 0})
	known = false
	if _, ok := r.Points()["taskgate.store.up"]; ok {
		t.Error("shown")
	}
}

// Without metrics nothing is done, and nothing fails.
func TestNone(t *testing.T) {
	var m *metrics.Metrics
	ctx := context.Background()
	m.ReadOpen(nil, nil, nil, nil)
	m.ReadBytes(nil)
	m.ReadLimits(nil)
	m.ReadParts(nil)
	m.Refused(ctx, "rate")
	m.Stored(ctx, "get", 0, false)
	m.ServerOperation(ctx, 0, metrics.Operation{})
	m.ServerSession(ctx, 0, "up", "")
	m.HTTP(ctx, 0, "POST", 200)
	c := m.Client("up", nil)
	c.Operation(ctx, 0, metrics.Operation{})
	c.Listed("tools/call", nil)
	c.Session(ctx, 0, "", "")
	tasks := m.Tasks("up")
	tasks.Called(ctx, "", "", 0)
	tasks.Ended(ctx, "", "", 0)
	tasks.Sent(ctx, 0)
	tasks.Adopted(ctx, "")
	tasks.Recovered(ctx, "")
	tasks.Repeated(ctx, "")
	tasks.Answered(ctx, "", 0)
	tasks.Made("")
	m.ReadLoads(nil)
}

// A plain call is measured four times, and that allocates nothing.
func TestAllocations(t *testing.T) {
	m, _ := metricstest.New(t)
	c, tasks, ctx := m.Client("up", nil), m.Tasks("up"), context.Background()
	o := metrics.Operation{Method: "tools/call", Version: "2026-07-28", Upstream: "up", Name: "t"}
	measure := func() {
		c.Operation(ctx, time.Millisecond, o)
		m.ServerOperation(ctx, time.Millisecond, o)
		tasks.Called(ctx, "t", semconv.AnswerReply, 0)
		m.HTTP(ctx, time.Millisecond, "POST", 200)
	}
	measure()
	if n := testing.AllocsPerRun(100, measure); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

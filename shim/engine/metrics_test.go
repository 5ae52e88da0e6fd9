package engine_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"taskgate/internal/metrics/metricstest"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// measured starts a gateway whose metrics are read.
func (w *world) measured(name string, u shim.Upstream, p shim.Policy) (*engine.Shim, *metricstest.Reader) {
	w.t.Helper()
	m, r := metricstest.New(w.t)
	m.Names.Learn("up", "tools/call", "slow")
	srv := shim.Server{Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return p }, Other: p, Concurrency: 1, Queue: 10, QueueWait: 5 * time.Second}
	return w.gatewayOf(name, srv, func(o *engine.Options) { o.Metrics = m }), r
}

// ends is an upstream that ends so after a second.
func ends(reply shim.Reply, err error) *scripted {
	return &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		_ = s.Checkpoint(json.RawMessage(`{"sent":true}`))(ctx)
		if _, err := after(ctx, time.Second); err != nil {
			return shim.Reply{}, err
		}
		return reply, err
	}}
}

const (
	durationOf      = "taskgate.task.duration gen_ai.tool.name=slow taskgate.task.outcome="
	answersOf       = "taskgate.call.answers gen_ai.tool.name=slow taskgate.call.answer="
	ofUp            = " taskgate.upstream=up"
	ofSlow          = " gen_ai.tool.name=slow" + ofUp
	working         = "taskgate.tasks.running gen_ai.tool.name=slow taskgate.task.status=working" + ofUp
	waiting         = "taskgate.tasks.running gen_ai.tool.name=slow taskgate.task.status=input_required" + ofUp
	unknownOutcomes = "taskgate.task.unknown_outcomes" + ofUp
)

// What a call got is counted, and of a task that waits for a place how long.
func TestMetricsOfCalls(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s, r := w.measured("a", takes(3*time.Second), policy(shim.Always))
		plain := call()
		plain.Handle = false
		done := make(chan error, 1)
		go func() { _, err := s.Call(t.Context(), plain); done <- err }()
		pass(time.Second)
		begin(t, s, call()) // waits for the place of the first
		pass(time.Second)
		r.Want(map[string]float64{"taskgate.queue.length" + ofUp: 1, working: 1, "taskgate.tasks.oldest_age" + ofSlow: 1})
		must(t, <-done)
		pass(5 * time.Second)
		r.Want(map[string]float64{
			"taskgate.queue.length" + ofUp:             0,
			"taskgate.task.send_delay" + ofUp:          1,
			"taskgate.task.send_delay" + ofUp + " sum": 2,
			answersOf + "reply" + ofUp:                 1,
			answersOf + "task" + ofUp:                  1,
			durationOf + "completed" + ofUp + " sum":   5,
		})
		left, hangUp := context.WithCancel(t.Context())
		given, giveUp := context.WithCancelCause(t.Context())
		for _, ctx := range []context.Context{left, given} {
			go func() { _, err := s.Call(ctx, plain); done <- err }()
		}
		pass(time.Second)
		hangUp()
		giveUp(shim.ErrCancelled)
		for range 2 {
			if err := <-done; err == nil {
				t.Error("a call that its client has cancelled has an answer")
			}
		}
		r.Want(map[string]float64{answersOf + "cancelled" + ofUp: 2, answersOf + "reply" + ofUp: 1})
		made := call()
		made.Request.Name = "made up"
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, _ = s.Call(gone, made)
		pass(10 * time.Second)
		for point := range r.Points() {
			if strings.Contains(point, "made up") {
				t.Errorf("%s", point)
			}
		}
	})
}

// unread is a Stream of a client that does not read until it is let go.
type unread chan struct{}

func (s unread) Progress(shim.Progress) { <-s }
func (s unread) Log(shim.Log)           { <-s }

// A client that does not read holds up its own message alone: the call at the server hears that its replica halts.
func TestClientThatDoesNotRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		left := make(chan struct{})
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			go func() { <-ctx.Done(); close(left) }()
			s.Log(shim.Log{Level: "info"})
			return shim.Reply{}, context.Cause(ctx)
		}}
		s := w.gateway("a", u, policy(shim.Auto))
		client, c := make(unread), call()
		c.Stream = client
		k := calls(t, s, c)
		halted := make(chan error)
		go func() { halted <- s.Halt(t.Context()) }()
		<-left
		close(client)
		if <-k.done; k.err == nil {
			t.Error("a call that a halt has ended has an answer")
		}
		must(t, <-halted)
	})
}

// A question is counted while it is open, and measured at its end.
func TestMetricsOfQuestions(t *testing.T) {
	const of = "taskgate.question.duration taskgate.question.outcome="
	bubble(t, func(t *testing.T, w *world) {
		p := policy(shim.Always)
		p.InputTimeout = time.Minute
		s, r := w.measured("a", elicits(time.Second, "e1", "e2"), p)
		c := taskCall()
		task := begin(t, s, c)
		pass(10 * time.Second)
		r.Want(map[string]float64{working: 0, waiting: 1, "taskgate.questions.open" + ofSlow: 2, "taskgate.questions.oldest_age" + ofSlow: 10})
		updateTask(t, s, task.ID, results("e1"))
		pass(time.Second)
		r.Want(map[string]float64{waiting: 1, "taskgate.questions.open" + ofSlow: 1})
		pass(time.Minute)
		r.Want(map[string]float64{
			working: 0, waiting: 0, "taskgate.questions.open" + ofSlow: 0, "taskgate.questions.oldest_age" + ofSlow: 0,
			of + "answered" + ofUp: 1, of + "expired" + ofUp: 1, durationOf + "completed" + ofUp: 1,
		})

		task = begin(t, s, c)
		pass(time.Second)
		cancelTask(t, s, task.ID)
		pass(time.Second)
		r.Want(map[string]float64{waiting: 0, "taskgate.questions.open" + ofSlow: 0, of + "withdrawn" + ofUp: 2})
	})
}

// A task that is left to another replica has not ended here.
func TestMetricsOfHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(time.Hour)
		u.resume = func(ctx context.Context, _ shim.Request, _ json.RawMessage, _ shim.Sink) (shim.Reply, error) {
			return after(ctx, time.Minute)
		}
		s, r := w.measured("a", u, policy(shim.Always))
		begin(t, s, call())
		pass(time.Second)
		must(t, s.Close(t.Context()))
		r.Want(map[string]float64{working: 0, unknownOutcomes: 0})
		for point := range r.Points() {
			if strings.Contains(point, "taskgate.task.duration") {
				t.Errorf("measured: %s", point)
			}
		}
	})
}

package agents

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// row is one run of each agent: calls of tools, one after the other, and what happens
// meanwhile.
type row struct {
	name    string
	trials  []trial
	config  string // lines of the upstream in the configuration
	disturb func(*testing.T, *world)
	outcome func(*world) string // what comes of the call, if the model is not shown that
	quick   bool                // part of "make test"
}

// trial is one call of a tool, and a line of the table.
type trial struct {
	name string
	call Call
	want string            // is in what the model is shown of it
	but  map[string]string // the same for agents that show something else
}

// The lines of the configuration for a task that is told of after 2 s.
const handle = "    without_tasks: handle\n    without_tasks_after: 2s\n    task_result_wait: 4s\n"

var rows = []row{
	{name: "quick", quick: true, trials: []trial{
		{name: "an image", call: Call{"try_picture", object{}}, want: "(an image)"},
		{name: "200 kB of text", call: Call{"try_text", object{}}, want: lastWord, but: map[string]string{
			"claude": "Full output saved to", "opencode": "Full output saved to", "qwen": "Full output saved to",
		}},
		{name: "an error", call: Call{"try_failure", object{}}, want: closedToday},
		{name: "a question", call: Call{"try_question", object{}}, want: "client does not support elicitation", but: map[string]string{
			"claude": "the answer was cancel", "codex": "the answer was decline",
		}},
		{name: "silent for 6 s", call: working(6), want: worked},
	}},
	{name: "handle", quick: true, config: handle, trials: []trial{
		{name: "silent for 7 s, `handle` after 2 s", call: working(7), want: worked},
	}},
	{name: "interrupted", quick: true, disturb: interrupt, outcome: cancelled, trials: []trial{
		{name: "the user interrupts the agent (SIGINT)", call: working(60), want: wasCancelled, but: map[string]string{
			"gemini": goesOn, "opencode": goesOn, "qwen": goesOn,
		}},
	}},
}

func working(seconds float64) Call { return Call{"try_work", object{"seconds": seconds}} }

// interrupt is Ctrl-C, in the middle of a call.
func interrupt(t *testing.T, w *world) {
	if err := w.agent.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
}

// What may come of a call that is interrupted.
const wasCancelled, goesOn = "the tool is cancelled", "the tool goes on"

func cancelled(w *world) string {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-w.cancelled:
		return wasCancelled
	case <-timer.C:
		return goesOn
	}
}

func TestAgents(t *testing.T) {
	for _, r := range rows {
		for _, a := range agents {
			if !*all && (a.large || !r.quick) {
				continue
			}
			t.Run(r.name+"/"+a.name, func(t *testing.T) {
				t.Parallel()
				r.run(t, a)
			})
		}
	}
}

// run runs one agent, and compares what its model is shown with the table.
func (r row) run(t *testing.T, a agent) {
	var calls []Call
	for _, trial := range r.trials {
		calls = append(calls, trial.call)
	}
	w := newWorld(t, r.config)
	results := w.run(t, a, calls, r.disturb, 4*time.Minute)
	for i, trial := range r.trials {
		want, ok := trial.but[a.name]
		if !ok {
			want = trial.want
		}
		shown := "nothing"
		if r.outcome != nil {
			shown = r.outcome(w)
		}
		if i < len(results) {
			shown = results[i].Text
			if results[i].Images > 0 {
				shown += " (an image)"
			}
		}
		if !strings.Contains(shown, want) {
			t.Errorf("%s: the model is shown %q, and not %q", trial.name, short(shown), want)
		}
	}
}

// short is a text with its middle left out.
func short(text string) string {
	if len(text) <= 800 {
		return text
	}
	return text[:400] + " … " + text[len(text)-400:]
}

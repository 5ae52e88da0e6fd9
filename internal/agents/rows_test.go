package agents

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/redistest"
)

// row is one run of each agent: calls of tools, one after the other, and what happens
// meanwhile.
type row struct {
	name     string
	trials   []trial
	config   string                                                  // lines of the upstream in the configuration
	replicas int                                                     // with Redis; 0 is one gateway with the embedded store
	store    func(*testing.T) (url string, master *redistest.Server) // alone if nil
	disturb  func(*testing.T, *world)
	outcome  func(*world, []Result) string // what comes of the call, if the model is not shown that
	limit    time.Duration                 // how long the agent may take; 4 minutes if 0
	silent   bool                          // takes many minutes: run by "make silence" alone
	direct   bool                          // the agent calls the server, without a gateway
	again    bool                          // the model makes the call again after each failure, three times in all
}

// trial is one call of a tool, and a line of the table.
type trial struct {
	name string
	call Call
	want string            // is in what the model is shown of it
	but  map[string]string // the same for agents that show something else
}

// The lines of the configuration for a task after 4 s, of which clients without tasks are told.
const (
	handle = "    without_tasks: handle\n    without_tasks_after: 4s\n"
	soon   = handle + "    defaults: {grace: 4s}"
)

// What agents show in place of a result.
const (
	nothing   = "nothing"
	saved     = "Full output saved to"
	mayBeDone = "may have finished the work"
	reset     = "The socket connection was closed unexpectedly"
)

var rows = []row{
	{name: "quick", trials: []trial{
		{name: "an image", call: Call{"try_picture", object{}}, want: "(an image)"},
		{name: "200 kB of text", call: Call{"try_text", object{}}, want: lastWord, but: map[string]string{
			"terminal": saved, "claude": saved, "opencode": saved, "qwen": saved,
		}},
		{name: "an error", call: Call{"try_failure", object{}}, want: closedToday},
		{name: "silent for 6 s", call: working(6), want: worked},
	}},
	{name: "question", limit: time.Minute, disturb: answer, trials: []trial{
		{name: "a question", call: Call{"try_question", object{}}, want: "client does not support elicitation", but: map[string]string{
			"terminal": "the answer was accept", "claude": "the answer was cancel", "codex": "the answer was decline",
		}},
	}},
	{name: "handle", config: soon, trials: []trial{
		{name: "silent for 7 s, `handle`, `without_tasks_after: 4s`", call: working(7), want: worked},
	}},
	{name: "interrupted", limit: 15 * time.Second, disturb: interrupt, outcome: cancelled, trials: []trial{
		{name: "the user interrupts the agent (SIGINT, or Escape)", call: working(60), want: wasCancelled, but: map[string]string{
			"gemini": goesOn, "opencode": goesOn, "qwen": goesOn,
		}},
	}},
	{name: "20 s", trials: []trial{
		{name: "silent for 20 s", call: working(20), want: worked},
		{name: "20 s with progress", call: progressing(20), want: worked},
	}},
	{name: "silent 90 s", trials: []trial{{name: "silent for 90 s", call: working(90), want: worked}}},
	{name: "progress 90 s", trials: []trial{{name: "90 s with progress", call: progressing(90), want: worked}}},
	{name: "handle 90 s", config: "    without_tasks: handle", trials: []trial{
		{name: "silent for 90 s, `without_tasks: handle`", call: working(90), want: worked},
	}},
	{name: "cut", disturb: cut, trials: []trial{{name: "the connections of a call are cut", call: working(10), want: worked, but: map[string]string{
		"terminal": reset, "claude": reset, "codex": "Transport send error", "gemini": "fetch failed",
	}}}},
	{name: "cut task", config: soon, disturb: cutTask, trials: []trial{{name: "the same, `handle`", call: working(10), want: worked}}},
	{name: "outage", config: soon, replicas: 1, disturb: outage, trials: []trial{
		{name: "Redis is away for 20 s, `handle`", call: working(30), want: worked},
	}},
	{name: "killed", config: soon, replicas: 2, disturb: kill, trials: []trial{
		{name: "a replica is killed, `handle`", call: working(30), want: mayBeDone},
	}},
	{name: "killed, retry", config: handle + "    defaults: {grace: 4s, recover: retry}", replicas: 2, disturb: kill, trials: []trial{
		{name: "the same, `recover: retry`", call: working(30), want: worked},
	}},
	{name: "restarted", config: soon, disturb: restart, trials: []trial{
		{name: "the only gateway, without Redis, is restarted, `handle`", call: working(30), want: mayBeDone},
	}},
	{name: "again, directly", silent: true, again: true, direct: true, outcome: callsAndTries, limit: 8 * time.Minute, trials: []trial{
		{name: "silent for 150 s, and called again after a failure, without the gateway", call: working(150), want: firstTry, but: map[string]string{
			"terminal": threeCalls, "claude": threeCalls, "opencode": threeCalls,
		}},
	}},
	{name: "again", silent: true, again: true, outcome: callsAndTries, limit: 8 * time.Minute, trials: []trial{
		{name: "the same, through the gateway", call: working(150), want: firstTry},
	}},
	{name: "again, no progress", silent: true, config: "progress_keep_alive: 0s", again: true, outcome: callsAndTries, limit: 8 * time.Minute, trials: []trial{
		{name: "the same, `progress_keep_alive: 0s`", call: working(150), want: firstTry, but: map[string]string{
			"opencode": thirdTry,
		}},
	}},
	{name: "silent 10 min, directly", silent: true, direct: true, limit: 12 * time.Minute, trials: []trial{
		{name: "silent for 10 min, without the gateway", call: working(silence.Seconds()), want: worked, but: map[string]string{
			"terminal": "The operation timed out", "claude": "The operation timed out", "codex": "timed out awaiting tools/call after 300s",
			"gemini": "fetch failed", "opencode": "Request timed out", "qwen": "did not respond within 300000ms",
		}},
	}},
	{name: "silent 10 min", silent: true, limit: 13 * time.Minute, trials: []trial{
		{name: "silent for 10 min", call: working(silence.Seconds()), want: worked},
	}},
}

// silence is how long the tool is silent in the rows of "make silence".
const silence = 10 * time.Minute

func working(seconds float64) Call { return Call{"try_work", object{"seconds": seconds}} }

func progressing(seconds float64) Call {
	return Call{"try_work", object{"seconds": seconds, "progress": true}}
}

// answer answers the question, where the agent shows one: it fills the form and accepts.
func answer(t *testing.T, w *world) {
	if !w.agent.terminal {
		return
	}
	w.awaitThat(t, "the question is shown", func() bool { return strings.Contains(w.agent.Output(), "colour") })
	w.agent.press(t, "blue")
	answered := func() bool {
		return len(slices.DeleteFunc(w.wire.sent(), func(r request) bool { return r.tool != "try_question" })) > 1
	}
	for range 20 { // the first leads to the button, the second presses it
		w.pause(2 * time.Second)
		if answered() {
			return
		}
		w.agent.press(t, "\r")
	}
}

// interrupt is Ctrl-C, or Escape in a terminal, in the middle of a call.
func interrupt(t *testing.T, w *world) {
	if w.agent.terminal {
		w.agent.press(t, "\x1b")
		return
	}
	if err := w.agent.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
}

// What may come of a call that is interrupted.
const wasCancelled, goesOn = "the tool is cancelled", "the tool goes on"

func cancelled(w *world, _ []Result) string {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-w.cancelled:
		return wasCancelled
	case <-timer.C:
		return goesOn
	}
}

// What may come of a call that the model makes again after each failure: how many calls reach the server, and which of
// the model's gets the result.
const (
	firstTry   = "1 call, result at the 1st try"
	thirdTry   = "1 call, result at the 3rd try"
	threeCalls = "3 calls, no result"
)

func callsAndTries(w *world, results []Result) string {
	calls := fmt.Sprintf("%d call", len(w.began))
	if len(w.began) != 1 {
		calls += "s"
	}
	if n := len(results); n > 0 && strings.Contains(results[n-1].Text, worked) {
		return calls + ", result at the " + []string{"1st", "2nd", "3rd"}[n-1] + " try"
	}
	return calls + ", no result"
}

// cut breaks the connections in the middle of a call.
func cut(t *testing.T, w *world) {
	w.pause(2 * time.Second)
	w.wire.cut()
}

// cutTask breaks the connections while the agent waits for its task.
func cutTask(t *testing.T, w *world) {
	w.awaitTask(t)
	w.wire.cut()
}

// outage is 20 s without Redis.
func outage(t *testing.T, w *world) {
	w.awaitTask(t)
	w.redis.Stop()
	w.pause(20 * time.Second)
	w.redis.Restart()
}

// kill kills the replica that runs the task; the agent goes on at the other one.
func kill(t *testing.T, w *world) {
	w.awaitTask(t)
	w.wire.sendTo(w.gateways[1].addr)
	w.gateways[0].Kill()
}

// restart kills the only gateway, and starts it again.
func restart(t *testing.T, w *world) {
	w.awaitTask(t)
	w.gateways[0].Kill()
	w.gateways[0].start(t)
}

// TestAgents is no part of "make test": "make agents" runs it, and "make silence" its silent rows.
func TestAgents(t *testing.T) {
	if !*all && !*silent {
		t.Skip("make agents runs it")
	}
	for _, r := range rows {
		for _, a := range agents {
			if *silent != r.silent {
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
	if r.again {
		calls = append(calls, calls[0], calls[0])
	}
	w := newWorld(t, r)
	w.again = r.again
	begin := time.Now()
	results := w.run(t, a, calls, r.disturb, cmp.Or(r.limit, 4*time.Minute))
	t.Logf("%s ended after %s", a.title, time.Since(begin))
	sent, wanted := map[string]int{}, map[string]int{}
	for _, q := range w.wire.sent() {
		sent[q.tool]++
	}
	for _, c := range calls {
		wanted[c.Tool]++
	}
	for tool, n := range wanted {
		if sent[tool] != n && !r.again && tool != "try_question" { // which a modern client calls again with the answer
			t.Errorf("%s was called %d times, and sent %d times", tool, n, sent[tool])
		}
	}
	if w.wire.version != a.protocol && !r.direct {
		t.Errorf("%s speaks %s, and not %s", a.title, w.wire.version, a.protocol)
	}
	for i, trial := range r.trials {
		want, ok := trial.but[a.name]
		if !ok {
			want = trial.want
		}
		shown := nothing
		switch {
		case r.outcome != nil:
			shown = r.outcome(w, results)
		case i < len(results):
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

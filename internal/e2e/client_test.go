package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"taskgate/internal/taskclient"
)

// Whether a call becomes a task is up to the client's extension, the tool's
// policy and the grace, in front of servers of both eras.
func TestWhenACallBecomesATask(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"legacy server": nil, "modern server": {"--stateless"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, configured(t, `
upstreams:
  - name: slow
    path: /mcp
    url: `+startServer(t, "slowserver", args...)+`
    defaults: {tasks: auto, grace: 400ms, poll_interval: 100ms}
    tools:
      - {match: forecast, tasks: always}
      - {match: fail, tasks: required}
`)...)
			with, without := g.client(true), g.client(false)

			callPlain(t, with, "count_words", map[string]any{"text": "one"})
			slow := callTask(t, with, "research", research(1.5))
			if err := wantReport(textOf(t, waitFor(t, with, slow.ID, "completed").Result)); err != nil {
				t.Error(err)
			}
			if err := wantReport(callPlain(t, without, "research", research(1))); err != nil {
				t.Error(err)
			}
			always := callTask(t, with, "forecast", map[string]any{"city": "Oslo", "seconds": 0.1})
			end := waitFor(t, with, always.ID, "completed")
			if !strings.Contains(string(end.Result), `"structuredContent"`) {
				t.Errorf("the structured output is missing: %s", end.Result)
			}
			required := callTask(t, with, "fail", map[string]any{"seconds": 0.1})
			if end := waitFor(t, with, required.ID, "completed"); !strings.Contains(string(end.Result), `"isError":true`) {
				t.Errorf("the tool's error is missing: %s", end.Result)
			}
			var refusal *taskclient.Error
			_, _, err := without.CallTool(t.Context(), "fail", map[string]any{"seconds": 0.1})
			if !errors.As(err, &refusal) || refusal.Code != -32021 || refusal.Status != 400 {
				t.Errorf("a required task for a client without the extension: %v", err)
			}
		})
	}
}

// A client without the extension gets the progress it asked for while it waits,
// and its own token with it.
func TestProgressOnABlockingCall(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"legacy server": nil, "modern server": {"--stateless"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, "--upstream", startServer(t, "slowserver", args...), "--grace", "300ms")
			call := startCall(t, g.client(false), research(1))
			<-call.done
			if call.err != nil {
				t.Fatal(call.err)
			}
			want := []string{"collecting sources", "reading sources", "comparing claims", "checking numbers", "writing the report"}
			if !slices.Equal(call.progress, want) {
				t.Errorf("progress %q, want %q", call.progress, want)
			}
		})
	}
}

// Cancelling a task cancels the call at the server, and the task stays cancelled.
func TestCancel(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "--upstream", startServer(t, "slowserver"), "--grace", "300ms")
	client := g.client(true)
	task := callTask(t, client, "research", research(60))
	for range 2 { // the second one is acknowledged too
		if err := client.Cancel(t.Context(), task.ID); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, client, task.ID, "cancelled")
	var unknown *taskclient.Error
	err := client.Cancel(t.Context(), "00000000-0000-4000-8000-000000000000")
	if !errors.As(err, &unknown) || unknown.Code != -32602 {
		t.Errorf("cancelling an unknown task: %v", err)
	}
}

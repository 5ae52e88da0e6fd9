package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"taskgate/internal/redistest"
)

// legacyTask is what the script ts1tasks.mjs saw of one task.
type legacyTask struct {
	Created  struct{ TaskID, Status string }
	Statuses []string
	Task     struct{ Status, StatusMessage string }
	Result   json.RawMessage
	Error    string
	Answer   string
	Again    json.RawMessage
}

// The task client of the TypeScript SDK 1.32.2 makes tasks of calls, follows them
// to their end, reads their results again, lists and cancels them, and is told of
// their status, in front of servers of both eras and over a real Redis.
func TestTypeScriptTaskClient(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	store := redistest.Start(t)
	for name, args := range map[string][]string{"legacy server": nil, "modern server": {"--stateless"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			yaml := fmt.Sprintf(replica, store.URL(), startServer(t, "slowserver", args...))
			g := startGateway(t, configured(t, "key_prefix: "+strings.Fields(name)[0]+yaml)...)
			calls, err := json.Marshal(map[string]any{
				"good":    map[string]any{"name": "research", "arguments": research(1)},
				"bad":     map[string]any{"name": "fail", "arguments": map[string]any{"seconds": 0.3}},
				"endless": map[string]any{"name": "research", "arguments": research(60)},
			})
			if err != nil {
				t.Fatal(err)
			}
			var a struct {
				Support                      map[string]string
				Completed, Failed, Cancelled legacyTask
				Waited, Unknown              int
				Listed, Unheard              []string
			}
			runNodeInto(t, &a, "ts1tasks.mjs", "URL="+g.url, "CALL="+string(calls))
			if a.Support["research"] != "optional" {
				t.Errorf("tools say %v of tasks", a.Support)
			}
			checkCompleted(t, a.Completed)
			checkFailed(t, a.Failed)
			if c := a.Cancelled; c.Answer != "cancelled" || c.Task.Status != "cancelled" || string(c.Again) != "-32602" || !strings.Contains(c.Error, "cancelled") {
				t.Errorf("the cancelled call: %+v, a second time %s", c, c.Again)
			}
			if a.Waited != -32603 || a.Unknown != -32602 {
				t.Errorf("the result of a cancelled task is %d, an unknown task %d", a.Waited, a.Unknown)
			}
			made := []string{a.Completed.Created.TaskID, a.Failed.Created.TaskID, a.Cancelled.Created.TaskID}
			if !slices.Equal(a.Listed, made) {
				t.Errorf("the list is %q, made were %q", a.Listed, made)
			}
			if len(a.Unheard) > 0 {
				t.Errorf("no notification of %q", a.Unheard)
			}
		})
	}
}

func checkCompleted(t *testing.T, c legacyTask) {
	t.Helper()
	// On a busy machine the first poll may come after the end.
	seen := append([]string{c.Created.Status}, c.Statuses...)
	if !slices.Equal(slices.Compact(seen), []string{"working", "completed"}) || c.Error != "" {
		t.Errorf("the call went %s, %q, %q", c.Created.Status, c.Statuses, c.Error)
	}
	for _, result := range []json.RawMessage{c.Result, c.Again} {
		if err := wantReport(textOf(t, result)); err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(result), `"io.modelcontextprotocol/related-task":{"taskId":"`+c.Created.TaskID) {
			t.Errorf("not marked as a task's: %s", result)
		}
	}
}

// A tool's own error is a failed task whose message says what went wrong: this
// client does not ask for the result then (H1).
func checkFailed(t *testing.T, c legacyTask) {
	t.Helper()
	if c.Task.Status != "failed" || c.Task.StatusMessage == "" || !strings.Contains(c.Error, "failed") {
		t.Errorf("the failing call: %+v", c)
	}
	if !strings.Contains(string(c.Again), `"isError":true`) || textOf(t, c.Again) != c.Task.StatusMessage {
		t.Errorf("its result is %s, its message %q", c.Again, c.Task.StatusMessage)
	}
}

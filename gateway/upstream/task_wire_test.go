package upstream

import (
	"context"
	"testing"
	"time"

	"taskgate/internal/schematest"
	"taskgate/shim/shimtest/fake"
)

// What the upstream client says to a server about its tasks is what the protocol's schema has.
func TestServerTaskMessages(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: (*fake.Job).Cancelled})
		aloftIn(t, h, in("a", ``), nil).leave(t, context.Canceled)
		for method, definition := range map[string]string{
			"initialize":   "InitializeRequest",
			"tools/call":   "CallToolRequest",
			"tasks/result": "GetTaskPayloadRequest",
			"tasks/cancel": "CancelTaskRequest",
		} {
			seen := s.Seen(method)
			if len(seen) == 0 {
				t.Errorf("no %s was sent", method)
			}
			for _, x := range seen {
				schematest.Validate(t, "2025-11-25", definition, x.Message)
			}
		}
	})
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) { j.Fail(-1, "no") }})
		must(t, errorOf(h.Call(t.Context(), in("a", ``), nil)))
		for _, x := range s.Seen("tasks/get") {
			schematest.Validate(t, "2025-11-25", "GetTaskRequest", x.Message)
		}
	})
}

// A server that does not name its task in time is told of the cancellation as of that of
// any request: there is nothing else to name.
func TestServerTaskCancelledUnnamed(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		never := make(chan struct{})
		s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", First: func(*fake.Job) { <-never }, Script: func(*fake.Job) {}})
		aloftIn(t, h, in("a", ``), nil).leave(t, context.Canceled)
		close(never)
		if n, m := len(s.Seen("notifications/cancelled")), len(s.Seen("tasks/cancel")); n != 1 || m != 0 {
			t.Errorf("%d notifications/cancelled, %d tasks/cancel", n, m)
		}
	})
}

// A server that makes no task although it was asked for one (L2) has answered.
func TestServerTaskNotMade(t *testing.T) {
	for name, answer := range map[string]string{
		"a result":           `{"content":[{"type":"text","text":"at once"}]}`,
		"an immediate one":   `{"content":[{"type":"text","text":"at once"}],"_meta":{"x":1,"io.modelcontextprotocol/related-task":{"taskId":"z"}}}`,
		"with metadata only": `{"content":[{"type":"text","text":"at once"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"z"}}}`,
	} {
		bubbleOf(t, name, fake.Stateful, Config{Tasks: TasksAlways}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "optional"})
			s.Tool("t", fake.Result(answer))
			reply, err := h.Call(t.Context(), askedCall("a"), nil)
			if got := textIn(t, reply, err); got != "at once" {
				t.Errorf("%q", got)
			}
			asked(t, s, "tasks/result", 0)
		})
	}
}

// What stands before a server refuses requests about its task, in words that nobody has thought of. The task is not given
// up for that: it is asked for again, and ends the call once its outcome is there.
func TestServerTaskBehindStrangeWords(t *testing.T) {
	for name, strange := range map[string]fake.Behaviour{
		"a conflict": fake.Status(409, "", ""), "another server": fake.Status(421, "text/plain", "wrong host"), "locked": fake.Status(423, "", ""),
		"too early": fake.Status(425, "", ""), "elsewhere": fake.Redirect("/x"), "a page": fake.HTML(), "half a line": fake.Body("application/json", `{"jsonrpc":"2.0","id":`),
	} {
		bubbleOf(t, name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(j *fake.Job) {
				<-time.After(20*time.Second + time.Millisecond)
				s.On("tasks/result", fake.Result(`{"content":[{"type":"text","text":"its result"}]}`))
				j.End("completed", "")
			}})
			s.On("tasks/result", strange)
			reply, err := h.Call(t.Context(), in("a", ``), nil)
			if got := textIn(t, reply, err); got != "its result" {
				t.Errorf("%q", got)
			}
			asked(t, s, "tasks/cancel", 0)
			asked(t, s, "tools/call", 1)
		})
	}
}

// Servers that answer nonsense about their tasks end the call, and are told so.
func TestServerTaskNonsense(t *testing.T) {
	for name, c := range map[string]struct{ status, result fake.Behaviour }{
		"a status that is none":  {fake.Result(`{"taskId":"job-1","status":"asleep"}`), fake.RPCError(200, -32600, "no", "")},
		"nothing to see":         {fake.HTML(), fake.Status(502, "", "")},
		"ended, without outcome": {fake.Result(`{"taskId":"job-1","status":"completed"}`), fake.Status(502, "", "")},
		"a result that is none":  {fake.Result(`{"taskId":"job-1","status":"completed"}`), fake.Result(`[]`)},
		"a page":                 {fake.Result(`{"taskId":"job-1","status":"working"}`), fake.HTML()},
	} {
		bubbleOf(t, name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tasks(baseTasks, fake.TaskTool{Name: "t", Support: "required", Script: func(*fake.Job) {}})
			s.On("tasks/get", c.status)
			s.On("tasks/result", c.result)
			reply, err := h.Call(t.Context(), in("a", ``), nil)
			if err == nil {
				t.Errorf("answered %+v", reply)
			}
			if n := len(s.Seen("tasks/result")); s.Runs("k") != 1 || n > lostTries+1 {
				t.Errorf("%d runs, asked for the result %d times", s.Runs("k"), n)
			}
		})
	}
}

package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// hearing is a call of the tool "t" whose caller waits for the reply and hears progress.
func hearing() shim.Request {
	r := in("a", ``)
	r.NoTask, r.Progress = true, true
	return r
}

// declarations are the calls that a server has seen: D for one that declares the extension.
func declarations(s *fake.Server) string {
	var all strings.Builder
	for _, x := range s.Seen("tools/call") {
		if strings.Contains(string(x.Params), mcp.ExtensionTasks) {
			all.WriteByte('D')
		} else {
			all.WriteByte('-')
		}
	}
	return all.String()
}

// A tool that needs a task is called again with the extension declared, and at once so from then
// on, until the tools are listed anew.
func TestModernTaskDeclaredWhereNeeded(t *testing.T) {
	native(t, Config{}, complete, func(t *testing.T, s *fake.Server, tasks *fake.Tasks, h *ServerClient) {
		for i, want := range []string{"-D", "-DD", "-DD-D"} {
			sink := &shimtest.Sink{}
			reply, err := h.Call(t.Context(), hearing(), sink)
			if got := textIn(t, reply, err); got != fmt.Sprintf("result of job-%d", i+1) {
				t.Errorf("%q", got)
			}
			if got := declarations(s); got != want {
				t.Errorf("call %d: declared %s, want %s", i+1, got, want)
			}
			if i == 1 {
				h.Forget(hearing().Session)
			}
		}
		if n := s.Runs("k"); n != 3 || len(tasks.Jobs()) != 3 {
			t.Errorf("%d runs, %d tasks, after 3 calls", n, len(tasks.Jobs()))
		}
	})
}

// A tool that does not need a task tells a caller who waits all of its progress. Who hears nothing,
// may get a task, or is answered by a server without the extension, declares it at once.
func TestModernTaskDeclaredAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		use    TaskUse
		change func(*shim.Request)
		tasks  bool // the server has the extension
		want   string
	}{
		"waits, and hears progress":     {"", func(*shim.Request) {}, true, "-"},
		"waits, and hears log messages": {"", func(r *shim.Request) { r.Progress, r.LogLevel = false, "info" }, true, "-"},
		"of the older era":              {"", func(r *shim.Request) { r.Session.Legacy = true }, true, "-"},
		"waits, and hears nothing":      {"", func(r *shim.Request) { r.Progress = false }, true, "D"},
		"may get a task":                {"", func(r *shim.Request) { r.NoTask = false }, true, "D"},
		"always":                        {TasksAlways, func(*shim.Request) {}, true, "D"},
		"a server without tasks":        {"", func(*shim.Request) {}, false, "D"},
	} {
		bubbleOf(t, name, fake.Modern, Config{Tasks: c.use}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			if c.tasks {
				fake.TaskExtension(s)
			}
			s.Tool("t", fake.Text("done"))
			r := hearing()
			c.change(&r)
			reply, err := h.Call(t.Context(), r, nil)
			if got := textIn(t, reply, err); got != "done" {
				t.Errorf("%q", got)
			}
			if got := declarations(s); got != c.want {
				t.Errorf("declared %s, want %s", got, c.want)
			}
		})
	}
}

// A call is sent again upon the one refusal that proves that it was not begun, and once.
func TestModernTaskRefusedOtherwise(t *testing.T) {
	const needs = `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`
	refusal := func(status, code int, data string) fake.Behaviour {
		return func(x *fake.Exchange) { x.Run(); fake.RPCError(status, code, "no", data)(x) }
	}
	for name, c := range map[string]struct {
		answer fake.Behaviour
		code   int64
		want   string
	}{
		"again":               {refusal(400, -32021, needs), -32021, "-D"},
		"as over stdio":       {refusal(200, -32021, needs), -32021, "-D"},
		"another capability":  {refusal(400, -32021, `{"requiredCapabilities":{"sampling":{}}}`), -32021, "-"},
		"another extension":   {refusal(400, -32021, `{"requiredCapabilities":{"extensions":{"x/y":{}}}}`), -32021, "-"},
		"no capability":       {refusal(400, -32021, ""), -32021, "-"},
		"another code":        {refusal(400, -32602, needs), -32602, "-"},
		"the code of a draft": {refusal(400, -32003, needs), -32003, "-"},
		"after progress": {func(x *fake.Exchange) {
			x.Event(x.Progress(1, "begun"))
			x.Event(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32021,"message":"no","data":%s}}`, x.ID, needs))
		}, -32021, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			native(t, Config{}, nil, func(t *testing.T, s *fake.Server, _ *fake.Tasks, h *ServerClient) {
				s.Tool("t", c.answer)
				reply, err := h.Call(t.Context(), hearing(), nil)
				if err != nil || reply.Error == nil || reply.Error.Code != c.code {
					t.Errorf("%+v, %v", reply.Error, err)
				}
				if got := declarations(s); got != c.want {
					t.Errorf("declared %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A call that is left while its server makes a task of it leaves no task behind. One that its
// server makes no task of is over soon.
func TestModernTaskNamedLate(t *testing.T) {
	const begun, left = 100 * time.Millisecond, 50 * time.Millisecond
	leave := func(t *testing.T, h *ServerClient) time.Duration {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		time.AfterFunc(left, cancel)
		if _, err := h.Call(ctx, in("a", ``), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		return time.Since(start)
	}
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		over := make(chan bool)
		tasks := fake.TaskExtension(s, fake.TaskTool{
			Name: "t", First: func(*fake.Job) { <-time.After(begun) }, Script: func(j *fake.Job) { j.Cancelled(); close(over) },
		})
		leave(t, h)
		<-over
		if c, n := len(s.Seen("tasks/cancel")), len(tasks.Jobs()); c != 1 || n != 1 {
			t.Errorf("%d tasks/cancel for %d tasks", c, n)
		}
	})
	for _, offers := range []bool{true, false} {
		bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			want := left
			if offers {
				fake.TaskExtension(s)
				want += namedSoon
			}
			gone := make(chan struct{}, 1)
			s.Tool("t", fake.Hanging(gone))
			if took := leave(t, h); took != want {
				t.Errorf("it took %v, want %v", took, want)
			}
			<-gone
			synctest.Wait()
			asked(t, s, "tasks/cancel", 0)
		})
	}
}

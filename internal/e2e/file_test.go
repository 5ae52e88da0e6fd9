package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/proc"
	"taskgate/internal/taskclient"
)

// command is a command line of the gateway that is given again after each end of the process.
type command struct {
	*gateway
	line proc.Command
	args []string
}

// serveAgain runs "taskgate serve" with these arguments and a home of its own.
func serveAgain(t *testing.T, args ...string) *command {
	t.Helper()
	c := &command{line: proc.Command{Env: []string{"XDG_STATE_HOME=" + t.TempDir()}}, args: args}
	c.gateway = startAt(t, freeAddr(t), c.line, args...)
	return c
}

// again ends the process and gives the same command line.
func (c *command) again(t *testing.T, end func()) {
	t.Helper()
	end()
	within(t, c.Process, patience)
	c.gateway = startAt(t, c.addr, c.line, c.args...)
}

// A client has a slow call under way, and the gateway is killed and started again by the same
// command. The client's next poll goes on as if nothing had happened. Where the server cannot
// resume the call, it hears that the work may have been done. What had ended can be read as before.
func TestKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	for name, c := range map[string]struct {
		events mcp.EventStore
		want   func(a nodeAnswer) bool
	}{
		"resumable": {mcp.NewMemoryEventStore(nil), func(a nodeAnswer) bool { return strings.Contains(string(a.Result), "did slow") }},
		"plain": {nil, func(a nodeAnswer) bool {
			return strings.Contains(string(a.Error), "the upstream may have finished the work")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startCounting(t, c.events)
			g := serveAgain(t, "--upstream", server.url, "--grace", "300ms")
			client := g.client(true)
			before := callTask(t, client, "work", keyed("before"))
			server.finish <- struct{}{}
			ended := waitFor(t, client, before.ID, "completed")
			answer := make(chan nodeAnswer, 1)
			go func() {
				defer close(answer)
				answer <- runNode(t, "exttasks.mjs", "URL="+g.url, env(t, "work", keyed("slow")))
			}()
			until(t, "the client has a task", func() bool { return strings.Count(g.Output(), "a task was made") >= 2 })
			g.again(t, g.Kill)
			if d := cmp.Diff(ended, waitFor(t, client, before.ID, "completed")); d != "" {
				t.Errorf("what had ended has changed:\n%s", d)
			}
			close(server.finish)
			a, ok := <-answer
			if !ok || !c.want(a) || len(a.Methods) < 2 {
				t.Errorf("the client got %s, %s after %q", a.Result, a.Error, a.Methods)
			}
			if n, _ := server.times("slow"); n != 1 {
				t.Errorf("executed %d times", n)
			}
		})
	}
}

// A gateway that is told to stop says that its tasks go on at the next start, and they do. So do the session
// of a client of 2025 and the call that it was told of, and all of it once more when the gateway is killed.
func TestStoppedAndStartedAgain(t *testing.T) {
	t.Parallel()
	server := startCounting(t, mcp.NewMemoryEventStore(nil))
	g := serveAgain(t, configured(t, fmt.Sprintf(`
drain_timeout: 300ms
heartbeat: 1s
upstreams:
  - {name: slow, path: /mcp, url: %q, without_tasks: handle, without_tasks_after: 400ms, defaults: {grace: 300ms, poll_interval: 50ms}}
`, server.url))...)
	task := callTask(t, g.client(true), "work", keyed("task"))
	s := connectAs(t, g.url, "2025-11-25")
	id := toldID(t, goText(t, s.call(t, "work", keyed("told"))))
	stopped := g.Process
	g.again(t, func() { _ = g.Signal(syscall.SIGTERM) })
	if !strings.Contains(stopped.Output(), "go on at the next start") {
		t.Errorf("nothing of the next start in\n%s", stopped.Output())
	}
	if now, err := g.client(true).Get(t.Context(), task.ID); err != nil || now.Ended() {
		t.Errorf("the task is %+v, %v", now, err)
	}
	g.again(t, g.Kill)
	close(server.finish)
	if got := textOf(t, waitFor(t, g.client(true), task.ID, "completed").Result); got != "did task" {
		t.Errorf("the result is %q", got)
	}
	if r := s.read(t, id); goText(t, r) != "did told" {
		t.Errorf("the result is %+v", r)
	}
	for _, key := range []string{"task", "told"} {
		if began, cancelled := server.times(key); began != 1 || cancelled != 0 {
			t.Errorf("%s began %d times, cancelled %d times", key, began, cancelled)
		}
	}
}

// A disk that is full: nothing more fits into the files of the gateway. Calls that can be answered without a
// task are; those that cannot get an error; what runs is not lost, and ends once there is room.
func TestFullFolder(t *testing.T) {
	t.Parallel()
	_, err := exec.LookPath("prlimit")
	need(t, err == nil, "prlimit")
	folder, admin := filepath.Join(t.TempDir(), "store"), freeAddr(t)
	g := startGateway(t, configured(t, fmt.Sprintf(`
store: file:%s
admin: %s
drain_delay: 0s
upstreams:
  - name: slow
    path: /mcp
    url: %s
    defaults: {tasks: auto, grace: 300ms, poll_interval: 100ms}
    tools:
      - {match: count_words, tasks: required}
`, folder, admin, startServer(t, "slowserver")))...)
	limit := func(size string) {
		t.Helper()
		if out, err := exec.Command("prlimit", "--pid", fmt.Sprint(g.PID()), "--fsize="+size+":").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	client := g.client(true)
	running := callTask(t, client, "research", research(1))
	limit("100")
	var answer *taskclient.Error
	_, task, err := client.CallTool(t.Context(), "count_words", map[string]any{"text": "one two"})
	if task != nil || !errors.As(err, &answer) || answer.Code != -32603 {
		t.Errorf("a call that has to be a task: %v %v", task, err)
	}
	// Longer than the first one takes: its outcome has to wait.
	if err := wantReport(callPlain(t, client, "research", research(1.5))); err != nil {
		t.Error(err)
	}
	if now, err := client.Get(t.Context(), running.ID); err != nil || now.Ended() {
		t.Errorf("the task that runs: %+v %v", now, err)
	}
	until(t, "the gateway is not ready", func() bool { // a probe believes an answer for 2 s
		r, err := readyz(admin)
		return err == nil && r.status == 503 && r.Store.Kind == "file "+folder && strings.Contains(r.Store.Error, "file too large")
	})
	limit("unlimited")
	if err := wantReport(textOf(t, waitFor(t, client, running.ID, "completed").Result)); err != nil {
		t.Error(err)
	}
}

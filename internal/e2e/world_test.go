package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/taskclient"
)

// patience is how long a program may take to end.
const patience = 10 * time.Second

// freeAddr is an address to listen on.
func freeAddr(t *testing.T) string {
	t.Helper()
	return programtest.FreeAddr(t)
}

// start runs a program until the test ends, and waits until it listens.
func start(t *testing.T, addr string, c proc.Command) *proc.Process {
	t.Helper()
	return programtest.Start(t, c, patience, addr)
}

// startServer runs one of the MCP servers of this project and returns its URL.
func startServer(t *testing.T, name string, args ...string) string {
	t.Helper()
	addr := freeAddr(t)
	start(t, addr, proc.Command{Name: name, Path: filepath.Join(bin, name), Args: append(args, "--listen", addr)})
	return "http://" + addr + "/mcp"
}

// gateway is a running taskgate.
type gateway struct {
	*proc.Process
	addr string
	url  string // of the upstream at /mcp
}

// startGateway runs "taskgate serve" with these arguments.
func startGateway(t *testing.T, args ...string) *gateway {
	t.Helper()
	return startAt(t, freeAddr(t), proc.Command{}, args...)
}

// startAt is startGateway at an address, with what else a command may have.
func startAt(t *testing.T, addr string, c proc.Command, args ...string) *gateway {
	t.Helper()
	c.Name, c.Path = "taskgate", filepath.Join(bin, "taskgate")
	c.Args = append(append([]string{"serve"}, args...), "--listen", addr)
	return &gateway{Process: start(t, addr, c), addr: addr, url: "http://" + addr + "/mcp"}
}

// terminate tells a process to stop.
func terminate(t *testing.T, p *proc.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// stops tells a process to stop, and wants it to end well within the limit.
func stops(t *testing.T, p *proc.Process, limit time.Duration) {
	t.Helper()
	terminate(t, p)
	if code := within(t, p, limit); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.Output())
	}
}

// configured writes a configuration file and returns the arguments for it.
func configured(t *testing.T, yaml string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--config", file}
}

// client speaks to the gateway, with the tasks extension or without.
func (g *gateway) client(tasks bool) *taskclient.Client {
	return &taskclient.Client{URL: g.url, Tasks: tasks}
}

// as speaks to the gateway as whoever has a key or a token, with the tasks extension.
func (g *gateway) as(bearer string) *taskclient.Client {
	return &taskclient.Client{URL: g.url, Tasks: true, HTTP: &http.Client{Transport: withKey(bearer)}}
}

// sending adds headers to each request.
type sending http.Header

// RoundTrip sends a request.
func (h sending) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, h)
	return http.DefaultTransport.RoundTrip(r)
}

// withKey shows a key or a token with each request; "" is none.
func withKey(bearer string) sending {
	if bearer == "" {
		return nil
	}
	return sending{"Authorization": {"Bearer " + bearer}}
}

// output is all that a process writes, or that goes over a connection.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write takes everything.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

// String is what there was so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// count is how often something was in it so far.
func (o *output) count(text string) int { return strings.Count(o.String(), text) }

// untilDeadline bounds what makes many calls one after the other, each with a time limit of
// its own: it ends half a minute before the test binary would be stopped, for the report.
func untilDeadline(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	if end, ok := t.Deadline(); ok {
		return context.WithDeadline(t.Context(), end.Add(-30*time.Second))
	}
	return context.WithCancel(t.Context())
}

// need skips the test if what it needs is missing, or fails it in CI.
func need(t *testing.T, present bool, what string) {
	t.Helper()
	if present {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing", what)
	}
	t.Skipf("%s is missing", what)
}

// callTask calls a tool whose call has to become a task.
func callTask(t *testing.T, c *taskclient.Client, tool string, args map[string]any) *taskclient.Task {
	t.Helper()
	result, task, err := c.CallTool(t.Context(), tool, args)
	if err != nil {
		t.Fatal(err)
	}
	if task == nil {
		t.Fatalf("%s was answered without a task: %s", tool, result)
	}
	return task
}

// callPlain calls a tool whose call must not become a task, and returns the text
// of its result.
func callPlain(t *testing.T, c *taskclient.Client, tool string, args map[string]any) string {
	t.Helper()
	result, task, err := c.CallTool(t.Context(), tool, args)
	if err != nil {
		t.Fatal(err)
	}
	if task != nil {
		t.Fatalf("%s became the task %+v", tool, *task)
	}
	return textOf(t, result)
}

// waitFor polls a task to its end, which has to have this status.
func waitFor(t *testing.T, c *taskclient.Client, id, status string) taskclient.Task {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	end, err := c.Wait(ctx, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if end.Status != status {
		t.Fatalf("the task ended as %s, not %s: %+v", end.Status, status, end)
	}
	return end
}

// textOf is the text of a tool's result.
func textOf(t *testing.T, result json.RawMessage) string {
	t.Helper()
	var r struct {
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(result, &r); err != nil || len(r.Content) == 0 {
		t.Fatalf("no content in %s (%v)", result, err)
	}
	return r.Content[0].Text
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// until waits until the condition holds, which needs no words.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	programtest.Until(t, what, 30*time.Second, condition)
}

// none are no arguments, and no capabilities.
var none = map[string]any{}

// errNotYet is for conditions that need no words.
var errNotYet = errors.New("not yet")

// within waits for the end of a process.
func within(t *testing.T, p *proc.Process, limit time.Duration) int {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.Done():
		return p.ExitCode()
	case <-timer.C:
		t.Fatalf("%s has not ended within %s:\n%s", p.Name, limit, p.Output())
		return 0
	}
}

// openCall is a call of research that is on its way.
type openCall struct {
	progress []string      // the messages so far; not to be read before done
	done     chan struct{} // closed once it is answered
	result   json.RawMessage
	err      error
}

// startCall calls research for its progress, and returns with the first of it:
// from then on the call is known to be at work in the server.
func startCall(t *testing.T, c *taskclient.Client, args map[string]any) *openCall {
	t.Helper()
	call, first := &openCall{done: make(chan struct{})}, make(chan struct{}, 1)
	c.Trace = func(m taskclient.Message) {
		var n struct {
			Method string
			Params struct{ Message string }
		}
		if m.Sent || json.Unmarshal(m.Body, &n) != nil || n.Method != mcp.NotifyProgress {
			return
		}
		call.progress = append(call.progress, n.Params.Message)
		select {
		case first <- struct{}{}:
		default:
		}
	}
	go func() {
		defer close(call.done)
		call.result, call.err = c.Do(t.Context(), mcp.MethodToolsCall, map[string]any{
			"name": "research", "arguments": args, "_meta": map[string]any{mcp.MetaProgressToken: "token-1"},
		})
	}()
	select {
	case <-first:
	case <-call.done:
		t.Fatalf("the call ended without progress: %s %v", call.result, call.err)
	case <-time.After(patience):
		t.Fatal("no progress")
	}
	return call
}

// startProgram runs one of the programs under test without waiting for it.
func startProgram(t *testing.T, name string, args ...string) *proc.Process {
	t.Helper()
	return programtest.Start(t, proc.Command{Name: name, Path: filepath.Join(bin, name), Args: args}, 0)
}

// research is the call of the slow server's tool, for so long.
func research(seconds float64) map[string]any {
	return map[string]any{"topic": "tea", "seconds": seconds}
}

// wantReport checks the result of research.
func wantReport(text string) error {
	if !strings.HasPrefix(text, "Report on tea") {
		return fmt.Errorf("not a report: %q", text)
	}
	return nil
}

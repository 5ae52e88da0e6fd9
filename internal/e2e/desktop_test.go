package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
)

// TestDesktopGoSDK: a client of the Go SDK, in either era, has through the gateway what it has of each
// server directly.
func TestDesktopGoSDK(t *testing.T) {
	t.Parallel()
	for name, server := range desktopServers(t) {
		for _, version := range []string{mcp.Version20251125, mcp.Version20260728} {
			t.Run(name+", "+version, func(t *testing.T) {
				t.Parallel()
				s := connectOver(t, &sdk.CommandTransport{Command: server.command(t)}, version)
				if list := tools(t, s); len(list) < 7 {
					t.Errorf("the tools are %v", list)
				}
				if got := goText(t, s.call(t, "echo", map[string]any{"text": "hällo\nthere"})); got != "hällo\nthere" {
					t.Errorf("echo: %q", got)
				}
				if got := goText(t, s.call(t, "steps", map[string]any{})); got != "walked" {
					t.Errorf("steps: %q", got)
				}
				until(t, "all progress", func() bool { return slices.Equal(s.heard(), []string{"1 step 1", "2 step 2", "3 step 3"}) })
				if got := goText(t, s.call(t, "ask", map[string]any{})); !strings.Contains(got, "Ada") {
					t.Errorf("ask: %q", got)
				}
				if r := s.call(t, "fail", map[string]any{}); !r.IsError {
					t.Errorf("fail: %+v", r)
				}
				if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "unknown", Arguments: map[string]any{}}); err == nil {
					t.Error("an unknown tool could be called")
				}
				if got := goText(t, s.call(t, "large", map[string]any{})); got != strings.Repeat("x", largeSize) {
					t.Errorf("large: %d bytes", len(got))
				}
				desktopCancels(t, s, server, version)
				desktopManyCalls(t, s)
				if version == mcp.Version20251125 { // the SDK's modern client listens to nothing by itself
					s.call(t, "change", map[string]any{})
					awaitSignal(t, "the change of the list", s.changed)
				}
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		}
	}
}

// awaitSignal waits for a signal.
func awaitSignal(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	select {
	case <-c:
	case <-deadline.C:
		t.Errorf("%s: not heard", what)
	}
}

// desktopCancels cancels a call, of which the server hears.
func desktopCancels(t *testing.T, s *goSession, server *desktopServer, version string) {
	t.Helper()
	name := "cancel-" + version
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, &sdk.CallToolParams{Name: "hang", Arguments: keyed(name)})
		done <- err
	}()
	until(t, "the call is there", func() bool { return marked(server.dir, "ran", name) })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call: %v", err)
	}
	until(t, "the server hears of the cancellation", func() bool { return marked(server.dir, "gone", name) })
}

// desktopManyCalls makes 200 calls at a time, and none gets the answer of another.
func desktopManyCalls(t *testing.T, s *goSession) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			text := strings.Repeat(fmt.Sprint(i, " "), 1+i%50)
			r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "echo", Arguments: map[string]any{"text": text}})
			if err != nil {
				t.Errorf("call %d: %v", i, err)
				return
			}
			if got := r.Content[0].(*sdk.TextContent).Text; got != text {
				t.Errorf("call %d: %q", i, got)
			}
		})
	}
	all.Wait()
}

// TestDesktopMCPGo: a client of mcp-go over stdio has its tools, its results and its questions.
func TestDesktopMCPGo(t *testing.T) {
	t.Parallel()
	for name, server := range desktopServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := server.command(t)
			c, _ := connectMCPGo(t, transport.NewStdio(cmd.Path, append(os.Environ(), server.env...), cmd.Args[1:]...), mcp.Version20251125)
			if list, err := c.ListTools(t.Context(), mcpgo.ListToolsRequest{}); err != nil || len(list.Tools) < 7 {
				t.Errorf("tools: %+v, %v", list, err)
			}
			for tool, want := range map[string]string{"echo": "hallo", "ask": "Ada", "steps": "walked"} {
				if got := callMCPGo(t, c, tool, map[string]any{"text": "hallo"}); !strings.Contains(got, want) {
					t.Errorf("%s: %s", tool, got)
				}
			}
		})
	}
}

// TestDesktopTypeScript: the clients of both TypeScript SDKs over stdio, which stop their server as
// desktop clients do.
func TestDesktopTypeScript(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	for name, server := range desktopServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, peer := range []struct{ name, version string }{
				{"ts1", mcp.Version20251125}, {"ts2legacy", mcp.Version20251125}, {"ts2auto", mcp.Version20260728},
			} {
				cmd := server.command(t, "--log-level", "error")
				args, _ := json.Marshal(cmd.Args[1:])
				var a struct {
					Version   string
					Tools     []string
					Progress  []float64
					Texts     map[string]string
					Large     int
					Cancelled bool
					Failed    bool
					Closed    int // milliseconds
				}
				runNodeInto(t, &a, "stdio.mjs", append([]string{"PEER=" + peer.name, "COMMAND=" + cmd.Path, "ARGS=" + string(args)}, server.env...)...)
				if a.Version != peer.version || len(a.Tools) < 7 || !slices.Equal(a.Progress, []float64{1, 2, 3}) ||
					a.Texts["echo"] != "hällo\nthere" || a.Texts["steps"] != "walked" || !strings.Contains(a.Texts["ask"], "Ada") ||
					a.Large != largeSize || !a.Cancelled || !a.Failed {
					t.Errorf("%s: %+v", peer.name, a)
				}
				if a.Closed > 1900 { // else it was sent a signal
					t.Errorf("%s: it took %d ms to close", peer.name, a.Closed)
				}
			}
		})
	}
}

// desktopTask calls a tool as a client with the tasks extension, and gets a task.
func desktopTask(t *testing.T, c *wireClient, tool, args string) string {
	t.Helper()
	var made struct{ ResultType, TaskID string }
	r := c.result("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s,%s}`, tool, args, modernMeta))
	if err := json.Unmarshal(r, &made); err != nil || made.ResultType != "task" {
		t.Fatalf("no task: %s", r)
	}
	return made.TaskID
}

// desktopResult listens until a task has ended, and reads it.
func desktopResult(t *testing.T, c *wireClient, task string) json.RawMessage {
	t.Helper()
	id := c.ask("subscriptions/listen", fmt.Sprintf(`{"notifications":{"taskIds":[%q]},%s}`, task, modernMeta))
	c.await("the acknowledgement", func(m wireMessage) bool { return m.Method == mcp.NotifyAcknowledged })
	c.await("the end of the stream", func(m wireMessage) bool {
		return m.Method == mcp.NotifyCancelled && strings.Contains(string(m.Params), `"requestId":`+id)
	})
	if m := c.answer(id); m.Error != nil {
		t.Fatalf("listen: %+v", *m.Error)
	}
	r := c.result("tasks/get", fmt.Sprintf(`{"taskId":%q,%s}`, task, modernMeta))
	var got struct {
		Status string
		Result json.RawMessage
	}
	if err := json.Unmarshal(r, &got); err != nil || got.Status != "completed" {
		t.Fatalf("the task is %s", r)
	}
	return got.Result
}

// TestDesktopTasks: a slow call becomes a task, in both dialects, and nothing but messages is on
// standard output. A cancelled subscription is silent.
func TestDesktopTasks(t *testing.T) {
	t.Parallel()
	for name, server := range desktopServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--grace", "300ms"}
			if server.args[0] == "--config" {
				flags = nil
			}
			c := startWire(t, server.command(t, flags...))
			task := desktopTask(t, c, "steps", `{}`)
			if got := textOf(t, desktopResult(t, c, task)); got != "walked" {
				t.Errorf("the result is %q", got)
			}
			listen := c.ask("subscriptions/listen", fmt.Sprintf(`{"notifications":{"toolsListChanged":true},%s}`, modernMeta))
			c.await("the acknowledgement", func(m wireMessage) bool { return m.Method == mcp.NotifyAcknowledged })
			c.result("tools/call", fmt.Sprintf(`{"name":"change","arguments":{},%s}`, modernMeta))
			c.await("the change", func(m wireMessage) bool { return m.Method == mcp.NotifyToolsListChanged })
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, listen))
			task = desktopTask(t, c, "hang", `{"key":"`+listen+`"}`)
			c.result("tasks/cancel", fmt.Sprintf(`{"taskId":%q,%s}`, task, modernMeta))
			until(t, "the server hears of the cancellation", func() bool { return marked(server.dir, "gone", listen) })

			c.greet(mcp.Version20251125)
			var made struct{ Task struct{ TaskID string } }
			r := c.result("tools/call", `{"name":"steps","arguments":{},"task":{"ttl":60000},"_meta":{"progressToken":"p"}}`)
			if err := json.Unmarshal(r, &made); err != nil || made.Task.TaskID == "" {
				t.Fatalf("no task: %s", r)
			}
			c.await("a status", func(m wireMessage) bool {
				return m.Method == mcp.NotifyTaskStatus && strings.Contains(string(m.Params), made.Task.TaskID)
			})
			if got := textOf(t, c.result("tasks/result", fmt.Sprintf(`{"taskId":%q}`, made.Task.TaskID))); got != "walked" {
				t.Errorf("the result is %q", got)
			}
			if err := c.leave(); err != nil {
				t.Errorf("it ended with %v", err)
			}
			for _, m := range c.got {
				if strings.Contains(string(m), `"id":`+listen+`,`) || strings.Contains(string(m), `"requestId":`+listen+`}`) {
					t.Errorf("of a cancelled subscription: %s", m)
				}
			}
		})
	}
}

// TestDesktopWire: what a client may write over stdio and not over HTTP.
func TestDesktopWire(t *testing.T) {
	t.Parallel()
	server := stdioServer(t)
	c := startWire(t, server.command(t, "--without-tasks", "handle"))
	c.say(`{"jsonrpc":`)
	c.await("an error", func(m wireMessage) bool { return string(m.ID) == "null" && m.Error != nil && m.Error.Code == -32700 })
	// A client that sends no initialize, as people do who check a server by one line.
	if list := c.result("tools/list", `{}`); !strings.Contains(string(list), "task_result") {
		t.Errorf("without a session: %s", list)
	}
	// A client that does not wait for the answer to initialize.
	c.say(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"wire","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","id":"b","method":"ping"}]
{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"environment","arguments":{}}}`)
	c.await("initialize", func(m wireMessage) bool { return string(m.ID) == `"i"` && m.Result != nil })
	c.await("the refusal of a batch", func(m wireMessage) bool { return string(m.ID) == "null" && m.Error != nil && m.Error.Code == -32600 })
	m := c.await("the environment", func(m wireMessage) bool { return string(m.ID) == `"c"` })
	cwd, _ := os.Getwd()
	if got := textOf(t, m.Result); got != cwd+" hush" {
		t.Errorf("the server runs with %q", got)
	}
	if list := c.result("tools/list", `{}`); !strings.Contains(string(list), "task_result") {
		t.Errorf("the tools are %s", list)
	}
	if err := c.leave(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	pid, _ := strconv.Atoi(noted(server.dir, "begun")[0])
	if runs(pid) {
		t.Error("the server runs")
	}

	// 2024-11-05 has stdio, too.
	old := startWire(t, server.command(t))
	if r := old.greet(mcp.Version20241105); !strings.Contains(string(r), mcp.Version20241105) {
		t.Errorf("initialize: %s", r)
	}
	if got := textOf(t, old.result("tools/call", `{"name":"echo","arguments":{"text":"hallo"}}`)); got != "hallo" {
		t.Errorf("echo: %q", got)
	}
	if err := old.leave(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// serverPID is the process of the server that a gateway over stdio has started last.
func (s *desktopServer) serverPID(t *testing.T) int {
	t.Helper()
	all := noted(s.dir, "begun")
	if len(all) == 0 {
		t.Fatal("no server has begun")
	}
	pid, err := strconv.Atoi(all[len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestDesktopEnds: the gateway ends with its client, however that leaves, and its server with it.
func TestDesktopEnds(t *testing.T) {
	t.Parallel()
	// Under nohup the gateway would begin with SIGHUP ignored, and keep to that: a test that
	// has a handler starts it with the default.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	for name, end := range map[string]func(c *wireClient) error{
		"end of input": func(c *wireClient) error { return c.leave() },
		"SIGTERM": func(c *wireClient) error {
			if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				return err
			}
			return c.end()
		},
		"SIGHUP": func(c *wireClient) error {
			if err := c.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				return err
			}
			return c.end()
		},
		"closed output": func(c *wireClient) error {
			_ = c.pipe.Close()
			// A process that another test is about to start may have the pipe open for a moment.
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				if _, err := io.WriteString(c.in, `{"jsonrpc":"2.0","id":"last","method":"ping"}`+"\n"); err != nil {
					break
				}
				<-tick.C
			}
			if err := c.end(); c.cmd.ProcessState.ExitCode() != 1 {
				return err
			}
			return nil
		},
		"SIGKILL": func(c *wireClient) error {
			_ = c.cmd.Process.Kill()
			if err := c.end(); err == nil {
				return errors.New("it was not killed")
			}
			return nil
		},
	} {
		for _, version := range []string{mcp.Version20251125, mcp.Version20260728} {
			t.Run(name+", "+version, func(t *testing.T) {
				t.Parallel()
				server := stdioServer(t)
				c := startWire(t, server.command(t))
				meta := modernMeta
				if version == mcp.Version20251125 {
					c.greet(version)
					meta = `"_meta":{}`
				}
				c.ask("tools/call", fmt.Sprintf(`{"name":"hang","arguments":{"key":"long"},%s}`, meta))
				until(t, "the call is there", func() bool { return marked(server.dir, "ran", "long") })
				begin := time.Now()
				if err := end(c); err != nil {
					t.Errorf("it ended with %v", err)
				}
				if took := time.Since(begin); took > 8*time.Second {
					t.Errorf("it took %v", took)
				}
				pid := server.serverPID(t)
				eventually(t, "the server ends", func() error {
					if runs(pid) {
						return fmt.Errorf("process %d runs", pid)
					}
					return nil
				})
				if name != "SIGKILL" && !marked(server.dir, "gone", "long") {
					t.Error("the server has not heard that the call was cancelled")
				}
			})
		}
	}
}

// TestDesktopWithoutParent: the client is killed, and can close nothing. Its gateway ends, and the
// server.
func TestDesktopWithoutParent(t *testing.T) {
	t.Parallel()
	server := stdioServer(t)
	cmd := server.command(t)
	// A shell that holds the other ends of the pipes and then is killed.
	script := `coproc GATEWAY { exec "$@"; }; echo $GATEWAY_PID; echo "$GREETING" >&"${GATEWAY[1]}"; head -n 1 <&"${GATEWAY[0]}" >/dev/null; echo ready; read -r never`
	parent := exec.Command("bash", append([]string{"-c", script, "parent"}, cmd.Args...)...)
	parent.Args[4] = cmd.Path
	parent.Env = append(cmd.Env, `GREETING={"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`)
	parent.Stderr = cmd.Stderr
	in, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var ready string
	if _, err := fmt.Fscan(out, &pid, &ready); err != nil || ready != "ready" {
		t.Fatalf("%q, %v", ready, err)
	}
	child := server.serverPID(t)
	if !runs(pid) || !runs(child) {
		t.Fatal("they do not run")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, "all have ended", func() bool { return !runs(pid) && !runs(child) })
	_ = parent.Wait()
}

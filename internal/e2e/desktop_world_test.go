package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
)

// childEnv names the directory in which the server below notes what it does. A test binary that
// has it in its environment is that server, over stdio.
const childEnv = "TASKGATE_E2E_CHILD"

// isChild reports whether this process is the server, and runs it.
func isChild() bool {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return false
	}
	noteIn(dir, "begun", fmt.Sprint(os.Getpid()))
	_ = everyday(dir, false, nil).Run(context.Background(), &sdk.StdioTransport{})
	hanging.Wait() // at the end of its input the SDK cancels them, and does not wait
	return true
}

// noteIn adds a line to a file.
func noteIn(dir, what, line string) {
	f, err := os.OpenFile(filepath.Join(dir, what), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString(line + "\n")
		_ = f.Close()
	}
}

// noted are the lines of such a file.
func noted(dir, what string) []string {
	b, _ := os.ReadFile(filepath.Join(dir, what))
	return strings.Fields(string(b))
}

// calledIn is the era of a call.
func calledIn(r *sdk.CallToolRequest) mcp.Era {
	if _, modern := r.Params.GetMeta()[mcp.MetaProtocolVersion]; modern {
		return mcp.Modern
	}
	return mcp.Legacy
}

// promptly has a program with the race detector end at once, and not a second later.
const promptly = "GORACE=atexit_sleep_ms=0"

// desktopServer is a server that a gateway over stdio stands in front of.
type desktopServer struct {
	dir  string   // of its notes
	args []string // of "taskgate stdio"
	env  []string // of the gateway
}

// desktopServers are the servers, by name.
func desktopServers(t *testing.T) map[string]*desktopServer {
	t.Helper()
	out := map[string]*desktopServer{}
	for name, stateless := range map[string]bool{"legacy over HTTP": false, "modern over HTTP": true} {
		s := &desktopServer{dir: t.TempDir(), env: []string{promptly}}
		server := everyday(s.dir, false, nil)
		url := serve(t, streamable(server, &sdk.StreamableHTTPOptions{Stateless: stateless, PropagateRequestCancellation: true}))
		s.args = []string{"--upstream", url}
		if stateless { // it speaks the other era, too, but cannot ask in it
			s.args = append(configured(t, fmt.Sprintf(`
listen: 0.0.0.0:1
auth: {keys: [somebody:%064d]}
upstreams:
  - {name: other, url: "http://127.0.0.1:1/mcp"}
  - {name: this, url: %q, era: modern, defaults: {grace: 300ms}}
`, 0, url)), "--name", "this")
		}
		out[name] = s
	}
	out["over stdio"] = stdioServer(t)
	return out
}

// stdioServer is a server that the gateway runs.
func stdioServer(t *testing.T) *desktopServer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return &desktopServer{dir: dir, args: []string{"--", self, "-test.run=^$"}, env: []string{promptly, childEnv + "=" + dir, "DESKTOP_SECRET=hush"}}
}

// cmd is the command that a client is configured with in place of the server.
func (s *desktopServer) command(t *testing.T, flags ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "taskgate"), append(append([]string{"stdio"}, flags...), s.args...)...)
	cmd.Env = append(os.Environ(), s.env...)
	log := &output{}
	cmd.Stderr = log
	t.Cleanup(func() {
		if text := log.String(); strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic") {
			t.Errorf("standard error:\n%s", text)
		} else if t.Failed() {
			t.Logf("standard error:\n%s", text)
		}
	})
	return cmd
}

// wire is a client that reads and writes lines.
type wireClient struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	pipe  io.Closer            // its output
	out   chan json.RawMessage // closed at the end of the output
	got   []json.RawMessage    // that were read and not waited for
	wrong chan error
	id    int
}

// startWire starts a command and reads its output, which has to be messages and nothing else.
func startWire(t *testing.T, cmd *exec.Cmd) *wireClient {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &wireClient{t: t, cmd: cmd, in: in, pipe: out, out: make(chan json.RawMessage, 1000), wrong: make(chan error, 1)}
	go func() {
		defer close(c.out)
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil && len(line) == 0 {
				return
			}
			var m struct{ Jsonrpc string }
			if json.Unmarshal(line, &m) != nil || m.Jsonrpc != "2.0" {
				c.wrong <- fmt.Errorf("standard output has %q", line)
				return
			}
			c.out <- line
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		for range c.out {
		}
		_ = cmd.Wait()
		select {
		case err := <-c.wrong:
			t.Error(err)
		default:
		}
	})
	return c
}

func (c *wireClient) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// await returns the first message that is wanted.
func (c *wireClient) await(what string, wanted func(m wireMessage) bool) wireMessage {
	c.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for i := 0; ; i++ {
		if i == len(c.got) {
			select {
			case line, ok := <-c.out:
				if !ok {
					c.t.Fatalf("%s: the output has ended", what)
				}
				c.got = append(c.got, line)
			case <-deadline.C:
				c.t.Fatalf("%s: not heard among %s", what, c.got)
			}
		}
		var m wireMessage
		if err := json.Unmarshal(c.got[i], &m); err != nil {
			c.t.Fatal(err)
		}
		if wanted(m) {
			c.got = append(c.got[:i:i], c.got[i+1:]...)
			return m
		}
	}
}

// wireMessage is any message.
type wireMessage struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

// ask sends a request, and returns its id.
func (c *wireClient) ask(method, params string) string {
	c.t.Helper()
	c.id++
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.id, method, params))
	return fmt.Sprint(c.id)
}

// answer waits for the answer to a request.
func (c *wireClient) answer(id string) wireMessage {
	c.t.Helper()
	return c.await("the answer to "+id, func(m wireMessage) bool { return string(m.ID) == id && m.Method == "" })
}

// result is the answer to a request, which is no error.
func (c *wireClient) result(method, params string) json.RawMessage {
	c.t.Helper()
	m := c.answer(c.ask(method, params))
	if m.Error != nil {
		c.t.Fatalf("%s: %+v", method, *m.Error)
	}
	return m.Result
}

// greet opens a session.
func (c *wireClient) greet(version string) json.RawMessage {
	c.t.Helper()
	r := c.result("initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"elicitation":{}},"clientInfo":{"name":"wire","version":"1"}}`, version))
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return r
}

// leave closes the input of the command, and returns how that has ended.
func (c *wireClient) leave() error {
	_ = c.in.Close()
	return c.end()
}

// end waits for the end of the command.
func (c *wireClient) end() error { return c.endWithin(20 * time.Second) }

func (c *wireClient) endWithin(most time.Duration) error {
	c.t.Helper()
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	for {
		select {
		case _, ok := <-c.out:
			if !ok {
				return c.cmd.Wait()
			}
		case <-deadline.C:
			return errors.New("it does not end")
		}
	}
}

// modernMeta is the envelope of a request of 2026 that declares the tasks extension.
const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"wire","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}`

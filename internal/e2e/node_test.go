package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"taskgate/internal/proc"
	"taskgate/internal/programtest"
)

// nodeDir is where "make node" installs the packages of testdata/node, and Node: what needs it takes long.
func nodeDir(t *testing.T) string {
	t.Helper()
	programtest.Long(t)
	dir := programtest.NodeDir(t)
	need(t, exists(filepath.Join(dir, "installed")), "what \"make node\" installs")
	return dir
}

// nodeBinary is the Node that was installed with the packages, or the system's
// where there is none for it.
func nodeBinary(dir string) string {
	if own := filepath.Join(dir, "node_modules", ".bin", "node"); exists(own) {
		return own
	}
	return "node"
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// nodeAnswer is what the scripts in testdata/node print.
type nodeAnswer struct {
	Version  string
	Tools    []string
	Progress []float64
	Methods  []string
	Result   json.RawMessage
	Error    json.RawMessage
}

// runNode runs one of the scripts in testdata/node.
func runNode(t *testing.T, script string, env ...string) nodeAnswer {
	t.Helper()
	var a nodeAnswer
	runNodeInto(t, &a, script, env...)
	return a
}

// runNodeInto is runNode for a script that prints something else.
func runNodeInto(t *testing.T, answer any, script string, env ...string) {
	t.Helper()
	dir := nodeDir(t)
	text, err := os.ReadFile(filepath.Join("testdata", "node", script))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := untilDeadline(t)
	defer cancel()
	// From standard input a script finds its packages where it runs.
	cmd := exec.CommandContext(ctx, nodeBinary(dir), "--input-type=module", "-")
	cmd.Dir, cmd.Env, cmd.Stdin = dir, append(os.Environ(), env...), bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	if err := json.Unmarshal(bytes.TrimSpace(out), answer); err != nil {
		t.Fatalf("%s: %v in\n%s", script, err, out)
	}
}

// everythingScript is the reference server "everything", which is legacy.
var everythingScript = filepath.Join("node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")

// startEverything runs it over HTTP.
func startEverything(t *testing.T) string {
	t.Helper()
	addr := freeAddr(t)
	runEverything(t, "streamableHttp", addr)
	return "http://" + addr + "/mcp"
}

// runEverything runs it in one of its modes, sse or streamableHttp.
func runEverything(t *testing.T, mode, addr string) *proc.Process {
	t.Helper()
	return startNode(t, addr, nodeDir(t), nil, everythingScript, mode)
}

// startNode runs a server in Node that listens at PORT.
func startNode(t *testing.T, addr, dir string, env []string, args ...string) *proc.Process {
	t.Helper()
	_, port, _ := strings.Cut(addr, ":")
	return start(t, addr, proc.Command{Name: "node", Path: nodeBinary(nodeDir(t)), Dir: dir, Env: append(env, "PORT="+port), Args: args})
}

const longRunning = "trigger-long-running-operation"

// env is the environment variable that tells a script what to call.
func env(t *testing.T, tool string, args map[string]any) string {
	t.Helper()
	call, err := json.Marshal(map[string]any{"name": tool, "arguments": args})
	if err != nil {
		t.Fatal(err)
	}
	return "CALL=" + string(call)
}

// The clients of the TypeScript SDKs work in front of servers of both eras, in
// the version that each of them prefers, and see all progress of a call that
// blocks for longer than the grace.
func TestTypeScriptClients(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	for name, args := range map[string][]string{"legacy server": nil, "modern server": {"--stateless"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, "--upstream", startServer(t, "slowserver", args...), "--grace", "300ms")
			call := env(t, "research", research(1))
			for _, c := range []struct{ name, script, mode, version string }{
				{"1.32.2", "ts1.mjs", "", "2025-11-25"},
				{"2.4.0, legacy", "ts2.mjs", "legacy", "2025-11-25"},
				{"2.4.0, auto", "ts2.mjs", "auto", "2026-07-28"},
			} {
				a := runNode(t, c.script, "URL="+g.url, "MODE="+c.mode, call)
				if err := wantReport(textOf(t, a.Result)); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				if a.Version != c.version {
					t.Errorf("%s: version %s, want %s", c.name, a.Version, c.version)
				}
				if !slices.Equal(a.Progress, []float64{1, 2, 3, 4, 5}) {
					t.Errorf("%s: progress %v", c.name, a.Progress)
				}
				if !slices.Equal(a.Tools, []string{"count_words", "fail", "forecast", "research", "write"}) {
					t.Errorf("%s: tools %q", c.name, a.Tools)
				}
			}
		})
	}
}

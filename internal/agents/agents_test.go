package agents

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"taskgate/internal/proc"
	"taskgate/internal/programtest"
)

// agent is a coding agent: where it is installed, and how it is run once without a
// terminal. Its files in testdata/homes are its home; they and what stands here keep it
// from its maker's servers. MODEL_URL and HOME are replaced in all of it, and taskgate connect adds the server.
type agent struct {
	name     string
	title    string
	pack     string    // its npm package
	home     string    // its directory in testdata/homes
	client   string    // its name for taskgate connect
	large    bool      // a program of its own, which only "make agents" fetches
	protocol string    // the version that it speaks with the gateway
	terminal bool      // it runs in a terminal, and the prompt is typed
	screen   io.Writer // gets all that the program writes, if not nil
	program  string    // in node_modules
	args     []string
	env      []string
}

var agents = []agent{
	{
		name: "terminal", title: "Claude Code, terminal", protocol: "2026-07-28", pack: "@anthropic-ai/claude-code", home: "claude", client: "claude-code", large: true,
		terminal: true, program: claudeProgram, args: claudeArgs, env: claudeEnv,
	},
	{
		name: "claude", title: "Claude Code, `-p`", protocol: "2026-07-28", pack: "@anthropic-ai/claude-code", home: "claude", client: "claude-code", large: true,
		program: claudeProgram, args: append([]string{"-p", prompt}, claudeArgs...), env: claudeEnv,
	},
	{
		name: "codex", title: "Codex", protocol: "2025-06-18", pack: "@openai/codex", home: "codex", client: "codex", large: true,
		program: "@openai/codex-linux-" + arch + "/vendor/" + machine + "-unknown-linux-musl/bin/codex",
		args:    []string{"exec", "--skip-git-repo-check", prompt},
		env:     []string{"SCRIPTED_KEY=dummy"},
	},
	{
		name: "gemini", title: "Gemini CLI", protocol: "2025-06-18", pack: "@google/gemini-cli", home: "gemini", client: "gemini",
		program: "@google/gemini-cli/bundle/gemini.js",
		args:    []string{"-m", "gemini-2.5-flash", "--yolo", "-p", prompt},
		env:     []string{"GEMINI_API_KEY=dummy", "GOOGLE_GEMINI_BASE_URL=MODEL_URL", "GEMINI_CLI_NO_RELAUNCH=true"},
	},
	{
		name: "opencode", title: "opencode", protocol: "2025-11-25", pack: "opencode-ai", home: "opencode", client: "opencode", large: true,
		program: "opencode-linux-" + arch + "/bin/opencode",
		args:    []string{"run", prompt},
		env: []string{
			"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_SHARE=1", "npm_config_registry=MODEL_URL/registry",
		},
	},
	{
		name: "qwen", title: "Qwen Code", protocol: "2025-11-25", pack: "@qwen-code/qwen-code", home: "qwen", client: "qwen",
		program: "@qwen-code/qwen-code/cli-entry.js",
		args:    []string{"--auth-type", "openai", "--yolo", "-p", prompt},
		env:     []string{"OPENAI_API_KEY=dummy", "OPENAI_BASE_URL=MODEL_URL/v1", "OPENAI_MODEL=qwen3-vl-plus"},
	},
}

// Claude Code is run in two ways: it takes tasks only in a terminal.
var (
	claudeProgram = "@anthropic-ai/claude-code-linux-" + arch + "/claude"
	claudeArgs    = []string{"--mcp-config", "HOME/mcp.json", "--strict-mcp-config", "--allowedTools", "mcp__slow"}
	claudeEnv     = []string{
		"ANTHROPIC_API_KEY=dummy", "ANTHROPIC_BASE_URL=MODEL_URL", "ENABLE_TOOL_SEARCH=false", "TERM=xterm-256color",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1",
		"CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL=1",
	}
)

// prompt is what the user says. The model does what its script says.
const prompt = "Use the slow tool."

// The size of the terminal.
const screenRows, screenColumns = 24, 96

// arch and machine are the names of the processor in npm packages and in Rust.
var arch, machine = func() (string, string) {
	if runtime.GOARCH == "arm64" {
		return "arm64", "aarch64"
	}
	return "x64", "x86_64"
}()

// set is the directory that its package is in, in testdata and where it is installed.
func (a agent) set() string {
	if a.large {
		return "large-agents"
	}
	return "small-agents"
}

// modules is the directory in which the agent is installed.
func (a agent) modules(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(programtest.NodeDir(t), a.set(), "node_modules")
	needInstalled(t, filepath.Dir(dir), a.title)
	return dir
}

// needInstalled skips the test if what it needs was not installed, or fails it in CI and
// where all rows are to be run.
func needInstalled(t *testing.T, dir, what string) {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, "installed"))
	switch {
	case err == nil:
	case os.Getenv("CI") != "" || *all:
		t.Fatalf("%s is not installed: %v", what, err)
	default:
		t.Skipf("%s is not installed, which \"make node\" does", what)
	}
}

// version is that which is pinned.
func (a agent) version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", a.set(), "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Dependencies map[string]string }
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	return p.Dependencies[a.pack]
}

// start runs the agent in a home of its own, on loopback alone: any other connection that
// it wants goes to a proxy which refuses it.
func (a agent) start(t *testing.T, modelURL string, server []string, proxyURL string) *running {
	t.Helper()
	home := t.TempDir()
	fill := strings.NewReplacer("MODEL_URL", modelURL, "HOME", home).Replace
	from := filepath.Join("testdata", "homes", a.home)
	if err := copyHome(from, home, fill); err != nil {
		t.Fatal(err)
	}
	a.connectTo(t, home, server)
	path, args := filepath.Join(a.modules(t), a.program), []string{}
	if strings.HasSuffix(path, ".js") {
		path, args = node(t), []string{path}
	}
	for _, arg := range a.args {
		args = append(args, fill(arg))
	}
	if a.terminal {
		command := fmt.Sprintf("stty rows %d cols %d; exec '%s' %s", screenRows, screenColumns, path, strings.Join(args, " "))
		path, args = "script", []string{"--quiet", "--flush", "--return", "--command", command, "/dev/null"}
	}
	env := []string{
		"HOME=" + home, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_CACHE_HOME=", "XDG_STATE_HOME=", "CI=",
		"HTTP_PROXY=" + proxyURL, "HTTPS_PROXY=" + proxyURL, "http_proxy=" + proxyURL, "https_proxy=" + proxyURL,
		"NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost",
	}
	for _, v := range a.env {
		env = append(env, fill(v))
	}
	work := filepath.Join(home, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	read, keyboard, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if !a.terminal {
		keyboard.Close()
	}
	p, err := proc.Start(proc.Command{Name: a.name, Path: path, Args: args, Dir: work, Env: env, Stdin: read, Stdout: a.screen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(patience)
		keyboard.Close()
	})
	return &running{Process: p, agent: a, keyboard: keyboard}
}

// connectTo has taskgate connect name the server in the agent's own file: it is "--url" with a URL, or "--" with a program
// over stdio, which the agent then starts without taskgate.
func (a agent) connectTo(t *testing.T, home string, server []string) {
	t.Helper()
	args := []string{"connect", a.client, "--name", "slow", "--write", "--yes"}
	if a.client == "claude-code" { // which reads a file that it is given
		args = append(args, "--file", filepath.Join(home, "mcp.json"))
	}
	connect := exec.CommandContext(t.Context(), filepath.Join(bin, "taskgate"), append(args, server...)...)
	connect.Env = []string{"HOME=" + home}
	if out, err := connect.CombinedOutput(); err != nil {
		t.Fatalf("taskgate connect %s: %v\n%s", a.client, err, out)
	}
	if server[0] == "--" {
		if err := startsAlone(home); err != nil {
			t.Fatal(err)
		}
	}
}

// running is an agent that runs.
type running struct {
	*proc.Process
	agent
	keyboard *os.File // of a terminal
}

// press types something in the terminal.
func (r *running) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := r.keyboard.WriteString(keys); err != nil {
		t.Error(err)
	}
}

// node is the Node that "make node" installs, or the system's.
func node(t *testing.T) string {
	t.Helper()
	own := filepath.Join(programtest.NodeDir(t), "node_modules", ".bin", "node")
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return "node"
}

// copyHome copies the files of a home.
func copyHome(from, to string, fill func(string) string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), []byte(fill(string(text))), 0o600)
	})
}

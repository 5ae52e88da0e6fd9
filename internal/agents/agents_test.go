package agents

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"taskgate/internal/proc"
)

// agent is a coding agent: where it is installed, and how it is run once without a
// terminal. Its files in testdata/homes are its home; they and what stands here keep it
// from its maker's servers. MODEL_URL, SERVER_URL and HOME are replaced in all of it.
type agent struct {
	name    string // also that of its directory in testdata/homes
	title   string
	large   bool   // a program of its own, which only "make agents" fetches
	program string // in node_modules
	args    []string
	env     []string
}

var agents = []agent{
	{
		name: "claude", title: "Claude Code", large: true,
		program: "@anthropic-ai/claude-code-linux-" + arch + "/claude",
		args:    []string{"-p", prompt, "--mcp-config", "HOME/mcp.json", "--strict-mcp-config", "--allowedTools", "mcp__slow"},
		env: []string{
			"ANTHROPIC_API_KEY=dummy", "ANTHROPIC_BASE_URL=MODEL_URL", "ENABLE_TOOL_SEARCH=false",
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1",
		},
	},
	{
		name: "codex", title: "Codex", large: true,
		program: "@openai/codex-linux-" + arch + "/vendor/" + machine + "-unknown-linux-musl/bin/codex",
		args:    []string{"exec", "--skip-git-repo-check", prompt},
		env:     []string{"SCRIPTED_KEY=dummy"},
	},
	{
		name: "gemini", title: "Gemini CLI",
		program: "@google/gemini-cli/bundle/gemini.js",
		args:    []string{"-m", "gemini-2.5-flash", "--yolo", "-p", prompt},
		env:     []string{"GEMINI_API_KEY=dummy", "GOOGLE_GEMINI_BASE_URL=MODEL_URL", "GEMINI_CLI_NO_RELAUNCH=true"},
	},
	{
		name: "opencode", title: "opencode", large: true,
		program: "opencode-linux-" + arch + "/bin/opencode",
		args:    []string{"run", prompt},
		env: []string{
			"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_SHARE=1", "npm_config_registry=MODEL_URL/registry",
		},
	},
	{
		name: "qwen", title: "Qwen Code",
		program: "@qwen-code/qwen-code/cli-entry.js",
		args:    []string{"--auth-type", "openai", "--yolo", "-p", prompt},
		env:     []string{"OPENAI_API_KEY=dummy", "OPENAI_BASE_URL=MODEL_URL/v1", "OPENAI_MODEL=qwen3-vl-plus"},
	},
}

// prompt is what the user says. The model does what its script says.
const prompt = "Go."

// arch and machine are the names of the processor in npm packages and in Rust.
var arch, machine = func() (string, string) {
	if runtime.GOARCH == "arm64" {
		return "arm64", "aarch64"
	}
	return "x64", "x86_64"
}()

// nodeDir is where "make node" and "make agents" install packages.
func nodeDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TASKGATE_NODE_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", ".cache", "node")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// modules is the directory in which the agent is installed.
func (a agent) modules(t *testing.T) string {
	t.Helper()
	set := "small-agents"
	if a.large {
		set = "large-agents"
	}
	dir := filepath.Join(nodeDir(t), set, "node_modules")
	if _, err := os.Stat(filepath.Join(dir, "..", "installed")); err != nil {
		if os.Getenv("CI") != "" || a.large {
			t.Fatalf("%s is not installed: %v", a.title, err)
		}
		t.Skipf("%s is not installed, which \"make node\" does", a.title)
	}
	return dir
}

// start runs the agent in a home of its own, on loopback alone: any other connection that
// it wants goes to a proxy which refuses it.
func (a agent) start(t *testing.T, modelURL, serverURL, proxyURL string) *proc.Process {
	t.Helper()
	home := t.TempDir()
	fill := strings.NewReplacer("MODEL_URL", modelURL, "SERVER_URL", serverURL, "HOME", home).Replace
	from := filepath.Join("testdata", "homes", a.name)
	if err := copyHome(from, home, fill); err != nil {
		t.Fatal(err)
	}
	path, args := filepath.Join(a.modules(t), a.program), []string{}
	if strings.HasSuffix(path, ".js") {
		path, args = node(t), []string{path}
	}
	for _, arg := range a.args {
		args = append(args, fill(arg))
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
	p, err := proc.Start(proc.Command{Name: a.name, Path: path, Args: args, Dir: work, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// node is the Node that "make node" installs, or the system's.
func node(t *testing.T) string {
	own := filepath.Join(nodeDir(t), "node_modules", ".bin", "node")
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

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"taskgate/internal/pool"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	if server := os.Getenv(hangingVar); server != "" {
		hanging(server)
		return
	}
	if lock := os.Getenv(lockVar); lock != "" {
		locked(lock)
		return
	}
	pool.OverwriteReturned()
	_ = flag.Set("test.parallel", "20") // unless the command line says otherwise: most of them wait
	testscript.Main(m, map[string]func(){"taskgate": main})
}

// startsProcesses leaves a test out of make check.
func startsProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the test starts processes")
	}
}

// Each file in testdata is a terminal session.
func TestScripts(t *testing.T) {
	startsProcesses(t)
	root, err := filepath.Abs("../..")
	must(t, err)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("ROOT", root)
			return nil
		},
	})
}

func TestVersionText(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0"}
	info.Main.Version = "v1.2.3"
	if got, want := versionText(info), "taskgate v1.2.3 go1.26.0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	info.Settings = []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"},
		{Key: "vcs.modified", Value: "true"},
	}
	if got, want := versionText(info), "taskgate v1.2.3 (0123456789ab, modified) go1.26.0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestMistakesOfCommandLines: a wrong command line is exit code 2, says what is wrong and where to read on. A file that
// does not load, and a gateway that does not answer, are failures.
func TestMistakesOfCommandLines(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TASKGATE_ADMIN", "")
	const url = `url: "http://127.0.0.1:1/mcp"`
	for name, text := range map[string]string{
		"two.yaml": "upstreams: [{name: a, " + url + "}, {name: b, " + url + "}]",
		// Of a file, verbs for operators read the admin address alone: what else it names may be the gateway's.
		"admin.yaml": "admin: 127.0.0.1:1\nstate_keys: ['${file:/etc/taskgate/no-such-key}']\nupstreams: [{name: a, " + url + ", headers: {Authorization: 'Bearer ${TOKEN}'}}]",
		"wrong.yaml": "admin: ${ADMIN}\nupstreams: [{name: a, " + url + ", headers: {Authorization: 'Bearer ${TOKEN}'}}]",
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"tasks list", 2, "give --admin HOST:PORT, --config FILE, or TASKGATE_ADMIN"}, // which the others have
		{"nonsense", 2, `unknown verb "nonsense"`},
		{"nonsense", 2, "taskgate help"},
		{"check", 2, "check needs the name of a file"},
		{"check --fast f", 2, "check: flag provided but not defined: -fast"},
		{"schema more", 2, "schema takes no arguments"},
		{"version --long", 2, "version: flag provided but not defined: -long"},
		{"", 2, "serve: give either --config FILE or --upstream URL"},
		{"--config a.yaml --upstream http://127.0.0.1:1/", 2, "serve: give either --config FILE or --upstream URL"},
		{"--upstream 127.0.0.1:1 --log-level loud", 2, "upstreams[0].url: must begin with http:// or https://"},
		{"--upstream 127.0.0.1:1 --log-level loud", 2, "log.level: must be one of debug, info, warn, error"},
		{"--config two.yaml --grace 1s", 2, "--grace does not go with --config"},
		{"--upstream http://127.0.0.1:1/mcp --grace 30", 2, `invalid value "30" for flag -grace: it is auto, or a number with a unit, such as 300ms, 5s or 1h30m`},
		{"--config missing.yaml", 1, "missing.yaml: no such file"},

		{"stdio --config two.yaml --name c", 2, "--name NAME is one of a, b"},
		{"stdio --config two.yaml", 2, "--name NAME is one of a, b"},
		{"stdio --config missing.yaml", 1, "missing.yaml: no such file"},
		{"stdio", 2, "give one of --upstream URL, --config FILE and -- COMMAND"},
		{"stdio --upstream http://127.0.0.1:1/mcp -- server", 2, "give one of"},
		{"stdio --name a -- server", 2, "--name goes with --config"},
		{"stdio --config two.yaml --name a --grace 1s", 2, "--grace does not go with --config"},
		{"stdio --without-tasks perhaps -- server", 2, "without_tasks: must be one of auto, block, handle"},
		{"stdio --store file -- server", 2, "--store file:FOLDER names its folder here"},
		{"stdio --upstream nowhere", 2, "must begin with http"},
		{"stdio --listen 127.0.0.1:1 -- server", 2, "flag provided but not defined"},

		{"replicas", 1, "no answer: "},
		{"tasks", 1, "127.0.0.1:1/api/v1/tasks"}, // without another word, it lists them
		{"tasks list --filter age=1h", 2, "a filter is NAME=VALUE, with the name upstream, tool"},
		{"tasks list --filter status=open,running", 2, "status is one of open, queued, working, input_required, completed, tool_error, failed, cancelled, unknown"},
		{"upstreams --filter upstream=a", 2, "upstreams has no --filter"},
		{"replicas --limit 1", 2, "replicas has no --limit"},
		{"tasks show 1 --filter status=open", 2, "tasks show has no --filter"},
		{"tasks events 1 --oldest", 2, "tasks events has no --oldest"},
		{"tasks --yes", 2, "tasks list has no --yes"},
		{"tasks cancel", 2, "tasks cancel needs either ids or --filter"},
		{"tasks cancel --filter principal=ada", 2, "needs --yes where nobody can be asked"},
		{"upstreams --config two.yaml", 1, "the configuration has no admin address to ask at"},
		{"upstreams --config admin.yaml", 1, "no answer: "},
		{"reload --config admin.yaml", 1, "127.0.0.1:1: connect: connection refused"},
		{"upstreams --config wrong.yaml", 1, "wrong.yaml:1:8: environment variable ADMIN is not set"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(c.line), &stdout, &stderr)
		t.Setenv("TASKGATE_ADMIN", "127.0.0.1:1")
		if said := stderr.String(); code != c.code || !strings.Contains(said, c.says) || strings.Contains(said, "TOKEN") || stdout.Len() > 0 {
			t.Errorf("taskgate %s: exit code %d, %s%s", c.line, code, &stdout, said)
		}
	}
}

// Output that could not be written is a failure, not a success.
func TestClosedPipe(t *testing.T) {
	for _, verb := range []string{"schema", "version", "help"} {
		var stderr bytes.Buffer
		if code := run(context.Background(), []string{verb}, brokenPipe{}, &stderr); code != exitFailure {
			t.Errorf("%s: exit code %d, want %d", verb, code, exitFailure)
		}
		if !strings.Contains(stderr.String(), "broken pipe") {
			t.Errorf("%s: stderr is %q", verb, &stderr)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestLogWithoutReader: a gateway serves on when nobody reads its log any more.
func TestLogWithoutReader(t *testing.T) {
	startsProcesses(t)
	cmd := exec.CommandContext(t.Context(), "taskgate", "serve", "--upstream", "http://127.0.0.1:1/", "--listen", "127.0.0.1:0", "--store", "embedded")
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(t, err)
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var at []string
	for lines := bufio.NewScanner(log); at == nil && lines.Scan(); {
		at = regexp.MustCompile(`at=(http://\S+)`).FindStringSubmatch(lines.Text())
	}
	if at == nil {
		t.Fatal("no address in the log")
	}
	_ = log.Close()
	for range 2 { // the first is logged
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, at[1], nil)
		r.Header.Set("Origin", "https://page.example")
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		_ = resp.Body.Close()
	}
}

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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskgate/internal/connect"
)

// taskgate connect says for each client what to write where, and writes it.
func TestConnect(t *testing.T) {
	home := t.TempDir()
	for _, variable := range []string{"HOME", "USERPROFILE", "APPDATA"} {
		t.Setenv(variable, home)
	}
	for _, variable := range []string{"XDG_CONFIG_HOME", "CODEX_HOME"} {
		t.Setenv(variable, "")
	}
	t.Chdir(home)
	command := func(args ...string) (code int, out, errs string) {
		var stdout, stderr strings.Builder
		code = run(t.Context(), args, &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	for _, c := range connect.Clients {
		code, out, errs := command("connect", c.Name, "--name", "slow", "--url", "https://gate.example/mcp")
		file, err := c.File()
		must(t, err)
		if code != exitOK || !strings.Contains(out, "in "+file) || !strings.Contains(out, "https://gate.example/mcp") {
			t.Errorf("%s: %d, %s%s", c.Name, code, out, errs)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s: %s is written", c.Name, file)
		}
		for _, want := range []string{"+", "says so already"} {
			code, out, errs = command("connect", c.Name, "--name", "slow", "--write", "--yes", "--", "npx", "-y", "server")
			if code != exitOK || !strings.Contains(out, want) {
				t.Errorf("%s: %d, %s%s", c.Name, code, out, errs)
			}
		}
		text, err := os.ReadFile(file)
		must(t, err)
		if at := strings.Index(string(text), "stdio"); at < 0 || !strings.Contains(string(text)[at:], "npx") {
			t.Errorf("%s: %s has %s", c.Name, file, text)
		}
	}
	for _, name := range []string{"", "emacs"} {
		if code, _, errs := command("connect", name); code != exitUsage || !strings.Contains(errs, "claude-code, claude-desktop") {
			t.Errorf("%q: %d, %s", name, code, errs)
		}
	}
	for _, args := range [][]string{
		{"--name", "a b"}, {"--url", "ftp://x"}, {"--url", "http://"}, {"--upstream", "x"},
		{"--upstream", "http://x/mcp", "--url", "http://y/mcp"}, {"--upstream", "http://x/mcp", "--", "npx"}, {"--write"},
	} {
		if code, _, errs := command(append([]string{"connect", "cursor", "--file", filepath.Join(home, "other")}, args...)...); code != exitUsage {
			t.Errorf("%s: %d, %s", args, code, errs)
		}
	}
	if code, _, errs := command("connect", "codex", "--name", "slow", "--write", "--yes"); code != exitFailure || !strings.Contains(errs, "[mcp_servers.slow]") {
		t.Errorf("a table of that name: %d, %s", code, errs)
	}
}

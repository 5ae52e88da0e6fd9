package stdio

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"taskgate/gateway/upstream"
)

// TestBatchFile: a program that is a batch file, as npx and uvx are, is found by its name without the ending, in a folder
// with a space. It gets each argument as it was configured, and none becomes a command.
func TestBatchFile(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	folder := filepath.Join(t.TempDir(), "my tools & more")
	must(t, os.Mkdir(folder, 0o700))
	must(t, os.WriteFile(filepath.Join(folder, "tea.CMD"), []byte("@echo off\r\n\"%SELF%\" %*\r\n"), 0o600))
	t.Setenv("PATH", folder)
	spoilt := filepath.Join(folder, "spoilt")
	args := []string{
		"", "plain", "two words", `C:\a folder\`, `\\server\share\`, "für 世界", "!SELF!", "^", "a^&b", "(x)", "-x=1,2;3",
		"&echo x>" + spoilt, " & echo x>" + spoilt, "|echo x>" + spoilt, "^&echo x>" + spoilt, `\&echo x>` + spoilt,
	}
	w := &world{t: t}
	w.tr = New(Config{Command: "tea", Args: args, Env: []string{childVar + "=plain", "SELF=" + exe}})
	w.up, err = upstream.New(upstream.Config{Transport: w.tr, Era: upstream.EraLegacy, Shared: true})
	must(t, err)
	defer w.up.Close(t.Context())
	var got []string
	must(t, json.Unmarshal([]byte(w.text("arguments")), &got))
	for i := range max(len(got), len(args)) {
		if i >= len(got) || i >= len(args) || got[i] != args[i] {
			t.Errorf("argument %d is %q, want %q", i, slices.Concat(got, make([]string, len(args)))[i], slices.Concat(args, make([]string, len(got)))[i])
		}
	}
	if _, err := os.Stat(spoilt); err == nil {
		t.Error("an argument became a command")
	}
	for _, bad := range []string{"a\nb", `"&echo x>` + spoilt, "%SELF%"} {
		up, err := upstream.New(upstream.Config{Transport: New(Config{Command: "tea", Args: []string{bad}})})
		must(t, err)
		wantEnd(t, (&world{t: t, up: up}).fails("echo"), "unreachable", "a batch file cannot get an argument with")
		check(t, up.Close(t.Context()))
	}
	if _, err := os.Stat(spoilt); err == nil {
		t.Error("an argument became a command")
	}
}

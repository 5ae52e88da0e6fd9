package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

const completions = "../../deploy/completions/"

// TestCompletionsHaveEverything: each verb and option of the usage text is in the completions for
// each shell.
func TestCompletionsHaveEverything(t *testing.T) {
	words := regexp.MustCompile(`(?m)^  taskgate ([a-z][a-z-]*)|--([a-z][a-z-]*)`).FindAllStringSubmatch(usage, -1)
	if len(words) < 20 {
		t.Fatalf("the usage text has %d verbs and options", len(words))
	}
	for file, option := range map[string]string{"taskgate.bash": "--", "_taskgate": "--", "taskgate.fish": "-l "} {
		text, err := os.ReadFile(completions + file)
		must(t, err)
		for _, m := range words {
			word := m[1]
			if word == "" {
				word = option + m[2]
			}
			if !regexp.MustCompile(regexp.QuoteMeta(word) + `\b`).Match(text) {
				t.Errorf("%s lacks %s", file, word)
			}
		}
	}
}

// TestBashCompletion asks bash what it offers for the last word of a command line.
func TestBashCompletion(t *testing.T) {
	startsProcesses(t)
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/gate.yaml", nil, 0o600))
	file, err := os.ReadFile(completions + "taskgate.bash")
	must(t, err)
	for line, want := range map[string]string{
		"taskgate s":                      "serve stdio state-key schema",
		"taskgate serve --log-":           "--log-format --log-level",
		"taskgate --log-":                 "--log-format --log-level",
		"taskgate --log-level warn --gra": "--grace",
		"taskgate serve --log-level ":     "debug info warn error",
		"taskgate stdio --era mo":         "modern",
		"taskgate hash-key -":             "--force",
		"taskgate check ga":               "gate.yaml",
		"taskgate serve --config ga":      "gate.yaml",
		"taskgate serve --upstream ":      "",
		"taskgate version ":               "",
		"taskgate tasks c":                "cancel",
		"taskgate tasks list --o":         "--oldest",
		"taskgate tasks list --filter o":  "older_than=",
		"taskgate replicas --":            "--admin --config --key --json",
	} {
		words := strings.Split(line, " ")
		shell := exec.Command("bash", append([]string{"-c", string(file) + `
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_taskgate; echo "${COMPREPLY[*]}"`, "bash"}, words...)...)
		shell.Dir = dir
		got, err := shell.CombinedOutput()
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%q: got %q, %v, want %q", line, got, err, want)
		}
	}
}

// The help of a verb is the part of the usage that is about it.
func TestHelpOfAVerb(t *testing.T) {
	for verb, want := range map[string][2]string{
		"serve": {"[serve] --config", "--grace"}, "stdio": {"stdio --upstream", "--era"}, "tasks": {"tasks cancel", "--filter"},
		"replicas": {"taskgate replicas", "--filter"}, "check": {"check FILE", "Exit codes"},
	} {
		text := usageOf(verb)
		if !strings.Contains(text, want[0]) || !strings.Contains(text, want[1]) {
			t.Errorf("the help of %s leaves out %q: %s", verb, want, text)
		}
		if verb != "check" && strings.Contains(text, "state-key") {
			t.Errorf("the help of %s is about other verbs", verb)
		}
	}
}

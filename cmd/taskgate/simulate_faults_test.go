package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"taskgate/internal/programtest"
)

// The seeds in which each planted fault is found.
const (
	plantedFrom  = "4"
	plantedSeeds = "8"
	plantedCalls = "100"
)

// simulates has the test files that a program has which simulates. It is built without the others, in half the time.
var simulates = []string{"simulate_test.go", "must_test.go"}

// root is the folder of the module.
const root = "../.."

// TestPlantedFaults builds the gateway with one mistake after the other, and has the simulator find it. Each is a patch
// of internal/sim/testdata, which begins with a sentence about the mistake.
func TestPlantedFaults(t *testing.T) {
	programtest.Longest(t)
	patches, err := filepath.Glob(root + "/internal/sim/testdata/*.patch")
	must(t, err)
	atOnce := make(chan struct{}, 2)
	for _, patch := range patches {
		t.Run(strings.TrimSuffix(filepath.Base(patch), ".patch"), func(t *testing.T) {
			t.Parallel()
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			program := filepath.Join(t.TempDir(), "simulate")
			build := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", program, "-overlay", overlayOf(t, patch), ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("go test -c: %v\n%s", err, out)
			}
			out, err := exec.Command(program, "-test.run", "^TestSimulation$", "-test.failfast", "-seed", plantedFrom, "-seeds", plantedSeeds, "-calls", plantedCalls).CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte("promises broken")) {
				t.Fatalf("nobody noticed: %v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if _, sentence, ok := strings.Cut(line, "_test.go:"); ok && !strings.Contains(sentence, "promises broken") {
					t.Logf("found: %.300s", sentence)
					break
				}
			}
		})
	}
}

// overlayOf applies a patch to a copy of the files that it changes, and returns the file that has go build take those.
// A file may have moved to another folder since the patch was made.
func overlayOf(t *testing.T, patch string) string {
	text, err := os.ReadFile(patch)
	must(t, err)
	dir, replace := t.TempDir(), map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "+++ b/")
		if !ok {
			continue
		}
		source := findFile(t, name)
		content, err := os.ReadFile(source)
		must(t, err)
		changed := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(changed), 0o755))
		must(t, os.WriteFile(changed, content, 0o644))
		replace[source] = changed
	}
	tests, err := filepath.Glob("*_test.go")
	must(t, err)
	for _, test := range tests {
		if !slices.Contains(simulates, test) {
			left, err := filepath.Abs(test)
			must(t, err)
			replace[left] = "" // left out
		}
	}
	apply := exec.Command("git", "apply", "--unidiff-zero", "-C1", "-")
	apply.Dir, apply.Stdin = dir, bytes.NewReader(text)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("the patch has to be made anew: %v\n%s", err, out)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	path := filepath.Join(dir, "overlay.json")
	must(t, os.WriteFile(path, overlay, 0o644))
	return path
}

// findFile returns the absolute path of a file of the module, or of the only one with that name if it has moved.
func findFile(t *testing.T, name string) string {
	path, err := filepath.Abs(filepath.Join(root, name))
	must(t, err)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	top, _, _ := strings.Cut(name, "/")
	var found []string
	must(t, filepath.WalkDir(filepath.Join(root, top), func(at string, _ fs.DirEntry, err error) error {
		if filepath.Base(at) == filepath.Base(name) {
			found = append(found, at)
		}
		return err
	}))
	if len(found) != 1 {
		t.Fatalf("%s is gone, and these have its name: %v", name, found)
	}
	path, err = filepath.Abs(found[0])
	must(t, err)
	return path
}

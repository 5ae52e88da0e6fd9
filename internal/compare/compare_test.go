package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The comparison itself works, with what every machine of CI has: the features of a server get through taskgate and a bare
// proxy, and calls outlast a cut connection. What peers do is no matter of a test.
func TestComparisonWorks(t *testing.T) {
	o := &options{root: filepath.Join("..", ".."), installed: t.TempDir(), results: t.TempDir(), together: 3, quick: true, fault: "connections"}
	o.root, _ = filepath.Abs(o.root)
	o.only = []string{"directly", "bare proxy", "taskgate"}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if err := measure(t.Context(), o, []string{"through", "survive"}); err != nil {
		t.Fatal(err)
	}
	through, err := load[[]passage](o, "through")
	if err != nil || len(through) != 3 {
		t.Fatalf("%d entries: %v", len(through), err)
	}
	for _, e := range through {
		if e.Failed != "" || len(e.Found) != len(features) {
			t.Errorf("%s: %s, %d features", e.Peer, e.Failed, len(e.Found))
		}
		for _, f := range e.Found {
			if f.Legacy != "yes" {
				t.Errorf("%s, %s: %s", e.Peer, f.Feature, f.Legacy)
			}
		}
	}
	survived, err := load[[]survival](o, "survive")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range survived {
		if e.Failed != "" {
			t.Errorf("%s: %s", e.Peer, e.Failed)
		}
		for _, s := range e.Found {
			if s.Note != "" || s.Calls != s.Delivered+s.Failed+s.Silent || s.RunTwice > 0 {
				t.Errorf("%s: %+v", e.Peer, s)
			}
		}
	}
}

// docs/comparison.md is what the results make of it.
func TestPageIsWhatResultsSay(t *testing.T) {
	o := &options{root: filepath.Join("..", ".."), results: "results", docs: t.TempDir()}
	if err := writePage(o); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadDir(o.docs)
	if err != nil || len(written) < 3 {
		t.Fatalf("%d files: %v", len(written), err)
	}
	for _, f := range written {
		got, _ := os.ReadFile(filepath.Join(o.docs, f.Name()))
		kept, _ := os.ReadFile(filepath.Join(o.root, "docs", f.Name()))
		if !slices.Equal(got, kept) {
			t.Errorf("docs/%s is not what the results say: \"go run . page\" in internal/compare writes it", f.Name())
		}
		if strings.Contains(string(got), "/tmp/") {
			t.Errorf("docs/%s names a path of a machine", f.Name())
		}
	}
}

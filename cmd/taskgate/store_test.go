package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The key beside the store is made once, for its user alone, and one that is none is an error.
func TestKeptKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state-key")
	first, err := keptKey(path)
	must(t, err)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := keptKey(path); again != first || err != nil {
		t.Errorf("another key, %v", err)
	}
	must(t, os.WriteFile(path, []byte("none"), 0o600))
	if _, err := keptKey(path); err == nil {
		t.Error("a damaged key was taken")
	}
}

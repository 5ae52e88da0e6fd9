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
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := keptKey(path); again != first || err != nil {
		t.Errorf("another key, %v", err)
	}
	if err := os.WriteFile(path, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keptKey(path); err == nil {
		t.Error("a damaged key was taken")
	}
}

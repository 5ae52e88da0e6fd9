package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// Two keys: 32 digits, from 0 and from 1 on.
const (
	keyA = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	keyB = "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI="
)

// A key may be in the file, in a variable or in a file of its own; the first one
// seals.
func TestStateKeys(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "k"), []byte(keyB+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) (string, bool) { return keyA, name == "KEY" }
	c, err := config.Parse(filepath.Join(dir, "c.yaml"), []byte(`
state_keys: ["${KEY}", "${file:k}"]
upstreams: [{name: a, url: "http://127.0.0.1:1"}]
`), env)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"01234567890123456789012345678901", "12345678901234567890123456789012"} {
		if secret, err := c.StateKeys[i].Secret(); err != nil || !bytes.Equal(secret, []byte(want)) {
			t.Errorf("key %d is %q, %v", i, secret, err)
		}
	}
}

// The text of a mistake never shows the key.
func TestStateKeyIsNotShown(t *testing.T) {
	c := config.FromFlags("http://127.0.0.1:1/mcp")
	c.StateKeys = []config.StateKey{"c2VjcmV0", ""}
	err := c.Validate()
	if err == nil || strings.Contains(err.Error(), "c2VjcmV0") ||
		!strings.Contains(err.Error(), "state_keys[0]: a key is 32 random bytes") ||
		!strings.Contains(err.Error(), "state_keys[1]: a key is 32 random bytes") {
		t.Error(err)
	}
}

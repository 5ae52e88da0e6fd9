package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"taskgate/gateway/config"
)

var snippet = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// TestSnippetsOfDocuments: each piece of a configuration in a document is right as it stands, once it
// has an upstream. Keys of an upstream stand in one.
func TestSnippetsOfDocuments(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range snippet.FindAllStringSubmatchIndex(string(text), -1) {
			at := fmt.Sprintf("%s:%d", filepath.Base(page), 1+strings.Count(string(text[:m[2]]), "\n"))
			if err := checkSnippet(t, string(text[m[2]:m[3]])); err != nil {
				t.Errorf("%s: %v", at, err)
			}
			checked++
		}
	}
	if checked < 10 {
		t.Errorf("only %d snippets were found", checked)
	}
}

// checkSnippet loads a snippet as a file, beside the secrets that documents name.
func checkSnippet(t *testing.T, text string) error {
	t.Helper()
	var keys map[string]any
	if err := yaml.Load([]byte(text), &keys); err != nil {
		return err
	}
	switch _, whole := keys["upstreams"]; {
	case strings.HasPrefix(text, " "): // of an upstream
		text = "upstreams:\n  - name: snippet\n" + text
	case !whole:
		text += "upstreams: [{name: snippet, url: 'http://127.0.0.1:1/mcp'}]\n"
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, secret := range map[string]string{
		"secrets/state-key": keyA, "state-key": keyA, "alice.hash": strings.Repeat("5e884898", 8), "secret": "x",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := func(name string) (string, bool) {
		return "x", slices.Contains([]string{"PATH", "HOME", "RESEARCH_TOKEN", "REMOTE_TOKEN"}, name)
	}
	_, err := config.Parse(filepath.Join(dir, "config.yaml"), []byte(text), set)
	return err
}

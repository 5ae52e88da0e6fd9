package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackagesOverStdio: servers that people start with npx work over stdio: their tools are
// listed as they list them, and called.
func TestPackagesOverStdio(t *testing.T) {
	t.Parallel()
	dir, files := nodeDir(t), t.TempDir()
	// The server compares paths with what they are, and not with what they are called.
	files, err := filepath.EvalSymlinks(files)
	if err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(files, "note.txt")
	if err := os.WriteFile(note, []byte("tea at five"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, env, tool string
		args            []string
		call            func(version string) map[string]any
		want            string
	}{
		{
			name: "server-filesystem", env: "{}", args: []string{files},
			tool: "read_text_file", call: func(string) map[string]any { return map[string]any{"path": note} }, want: "tea at five",
		},
		{
			name: "server-memory", env: fmt.Sprintf("{MEMORY_FILE_PATH: %q}", filepath.Join(files, "memory.jsonl")),
			tool: "create_entities", want: "likes tea",
			call: func(version string) map[string]any { // a name that is there already is left out
				return map[string]any{"entities": []any{map[string]any{"name": "Ada " + version, "entityType": "person", "observations": []any{"likes tea"}}}}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			script := filepath.Join(dir, "node_modules", "@modelcontextprotocol", c.name, "dist", "index.js")
			g := startGateway(t, configured(t, fmt.Sprintf(`
upstreams:
  - name: it
    path: /mcp
    command: %q
    args: ["%s"]
    env: %s
    start_timeout: 30s
`, nodeBinary(dir), strings.Join(append([]string{script}, c.args...), `", "`), c.env))...)
			for _, version := range []string{"2025-11-25", "2026-07-28"} {
				session := connectAs(t, g.url, version)
				if listed := fmt.Sprint(tools(t, session)); !strings.Contains(listed, c.tool) {
					t.Errorf("%s: the tools are %s", version, listed)
				}
				r := session.call(t, c.tool, c.call(version))
				if got := fmt.Sprint(plain(t, r)); r.IsError || !strings.Contains(got, c.want) {
					t.Errorf("%s: the result is %q", version, got)
				}
			}
		})
	}
}

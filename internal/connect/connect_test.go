package connect_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskgate/internal/connect"
)

// gateway and program are what clients are pointed at.
var (
	gateway = connect.Server{Name: "slow", URL: "http://127.0.0.1:8080/mcp"}
	program = connect.Server{Name: "slow", Command: []string{"taskgate", "stdio", "--", "npx", "-y", "it's a server"}}
)

// Each client's file names its servers in its own words.
func TestSnippets(t *testing.T) {
	for name, want := range map[string][2]string{
		"claude-code": {`{"mcpServers":{"slow":{"type":"http","url":"URL"}}}`, `{"mcpServers":{"slow":PROGRAM}}`},
		"vscode":      {`{"servers":{"slow":{"type":"http","url":"URL"}}}`, `{"servers":{"slow":{"type":"stdio","command":"taskgate","args":ARGS}}}`},
		"cursor":      {`{"mcpServers":{"slow":{"url":"URL"}}}`, `{"mcpServers":{"slow":PROGRAM}}`},
		"gemini":      {`{"mcpServers":{"slow":{"httpUrl":"URL"}}}`, `{"mcpServers":{"slow":PROGRAM}}`},
		"qwen":        {`{"mcpServers":{"slow":{"httpUrl":"URL"}}}`, `{"mcpServers":{"slow":PROGRAM}}`},
		"opencode": {
			`{"mcp":{"slow":{"type":"remote","url":"URL","enabled":true}}}`,
			`{"mcp":{"slow":{"type":"local","command":["taskgate","stdio","--","npx","-y","it'sASERVER"],"enabled":true}}}`,
		},
		"codex":          {"[mcp_servers.slow]url='URL'", `[mcp_servers.slow]command='taskgate'args=['stdio','--','npx','-y',"it'sASERVER"]`},
		"claude-desktop": {"", `{"mcpServers":{"slow":PROGRAM}}`},
	} {
		c, ok := connect.Find(name)
		if !ok {
			t.Fatalf("%s is unknown", name)
		}
		for i, s := range []connect.Server{gateway, program} {
			want := strings.NewReplacer("URL", gateway.URL, "PROGRAM", `{"command":"taskgate","args":ARGS}`).Replace(want[i])
			want = strings.NewReplacer("ARGS", `["stdio","--","npx","-y","it'sASERVER"]`).Replace(want)
			if want == "" {
				continue
			}
			got := strings.ReplaceAll(c.Snippet(s), "it's a server", "it'sASERVER")
			if got = strings.Join(strings.Fields(got), ""); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
}

// A file keeps its comments, its commas, its order and its other servers.
func TestFilesStayAsTheyAre(t *testing.T) {
	for what, c := range map[string]struct{ client, before, after string }{
		"empty": {"cursor", "", "{\n  \"mcpServers\": {\n    \"slow\": {\n      \"url\": \"http://127.0.0.1:8080/mcp\"\n    }\n  }\n}\n"},
		"other keys": {"cursor", "{\n\t\"b\": 1.0, // one\n\t\"a\": [2,3] // the last\n}\n",
			"{\n\t\"b\": 1.0, // one\n\t\"a\": [2,3], // the last\n\t\"mcpServers\": {\n\t  \"slow\": {\n\t    \"url\": \"http://127.0.0.1:8080/mcp\"\n\t  }\n\t}\n}\n"},
		"another server, and commas at the end": {"vscode", "// mine\n{\n  \"servers\": {\n    \"a\": {\"url\": \"x\"}, // a\n  },\n}\n",
			"// mine\n{\n  \"servers\": {\n    \"a\": {\"url\": \"x\"}, // a\n    \"slow\": {\n      \"type\": \"http\",\n      \"url\": \"http://127.0.0.1:8080/mcp\"\n    },\n  },\n}\n"},
		"an entry of that name": {"cursor", `{"mcpServers": {"slow": {"command": "x"}, "z": {}}}`,
			"{\"mcpServers\": {\"slow\": {\n      \"url\": \"http://127.0.0.1:8080/mcp\"\n    }, \"z\": {}}}"},
		"TOML": {"codex", "model = \"m\" # mine\n\n[mcp_servers.a]\nurl = \"x\"\n",
			"model = \"m\" # mine\n\n[mcp_servers.a]\nurl = \"x\"\n\n[mcp_servers.slow]\nurl = 'http://127.0.0.1:8080/mcp'\n"},
	} {
		file := filepath.Join(t.TempDir(), "below", "file")
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must(t, os.WriteFile(file, []byte(c.before), 0o640))
		client, _ := connect.Find(c.client)
		change, err := client.Plan(file, gateway)
		must(t, err)
		kept, err := change.Write()
		must(t, err)
		if diff := cmp.Diff(c.after, read(t, file)); diff != "" {
			t.Errorf("%s:\n%s", what, diff)
		}
		if read(t, kept) != c.before {
			t.Errorf("%s: the copy is %q", what, read(t, kept))
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", what, info.Mode(), err)
		}
		again, err := client.Plan(file, gateway)
		if err != nil || !again.IsNone() {
			t.Errorf("%s: a second time: %v\n%s", what, err, again.Diff())
		}
	}
}

// A file that is missing is made, with its folder, and one behind a symbolic link is changed where it is.
func TestMissingAndLinkedFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Symlink(filepath.Join(dir, "target"), filepath.Join(dir, "link")))
	must(t, os.WriteFile(filepath.Join(dir, "target"), []byte("{}"), 0o600))
	client, _ := connect.Find("gemini")
	for _, file := range []string{"new/folder/settings.json", "link"} {
		change, err := client.Plan(filepath.Join(dir, file), gateway)
		must(t, err)
		if !strings.Contains(change.Diff(), "+") {
			t.Errorf("%s: %s", file, change.Diff())
		}
		_, err = change.Write()
		must(t, err)
		if !strings.Contains(read(t, filepath.Join(dir, file)), gateway.URL) {
			t.Errorf("%s: %s", file, read(t, filepath.Join(dir, file)))
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "link")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %v, %v", info, err)
	}
}

// What cannot be changed with certainty is left alone.
func TestFilesThatAreRefused(t *testing.T) {
	for what, c := range map[string]struct {
		client, before string
		want           error
	}{
		"broken JSON":                    {"cursor", `{"mcpServers": `, nil},
		"no object":                      {"cursor", `[]`, nil},
		"servers that are no object":     {"cursor", `{"mcpServers": 3}`, nil},
		"broken TOML":                    {"codex", "a = ", nil},
		"another table of that name":     {"codex", "[mcp_servers.slow]\nurl = \"x\"\n", connect.ErrTaken},
		"servers that are no table":      {"codex", "mcp_servers = 3\n", nil},
		"a table that is closed already": {"codex", "mcp_servers = {a = {url = \"x\"}}\n", nil},
	} {
		file := filepath.Join(t.TempDir(), "file")
		must(t, os.WriteFile(file, []byte(c.before), 0o600))
		client, _ := connect.Find(c.client)
		if _, err := client.Plan(file, gateway); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	client, _ := connect.Find("cursor")
	if _, err := client.Plan(t.TempDir(), gateway); err == nil {
		t.Error("a directory is taken for a file")
	}
}

// The command of Claude Code survives a shell.
func TestCommand(t *testing.T) {
	client, _ := connect.Find("claude-code")
	if got, want := client.Command(program), `claude mcp add slow -- taskgate stdio -- npx -y 'it'\''s a server'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}

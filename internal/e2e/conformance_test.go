package e2e

import (
	"bufio"
	"cmp"
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

// conformanceConfig is the configuration that docs/compatibility.md shows, for the
// server at this URL.
func conformanceConfig(t *testing.T, server string) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, yaml, _ := strings.Cut(string(doc), "```yaml\n")
	yaml, _, ok := strings.Cut(yaml, "```")
	if !ok || !strings.Contains(yaml, conformanceURL) {
		t.Fatal("docs/compatibility.md shows no configuration")
	}
	return strings.ReplaceAll(yaml, conformanceURL, server)
}

// conformanceURL is where the documented configuration has the server.
const conformanceURL = "http://127.0.0.1:3002/mcp"

// verdict is what the suite says of one check. A check that is made several times
// is several of them.
type verdict struct {
	scenario, check string
	bad             bool
	message         string
}

// TestConformance runs everything that revision 2026-07-28 asks of a server, and
// the scenarios of the tasks extension, through the gateway: in front of a server
// that passes by itself, but for the tasks; in front of the same server with tasks of its
// own; and in front of one of the 2025 versions that has no idea of them. What is expected
// to fail is in testdata, with reasons; both a new failure and one that is gone fail this
// test.
func TestConformance(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	nodeDir(t)
	for name, c := range map[string]struct {
		args     []string
		checks   int // how many the suite makes
		expected string
	}{
		"modern server":            {nil, 196, "conformance.txt"},
		"modern server with tasks": {[]string{"--tasks"}, 196, "conformance.txt"},
		"legacy server":            {[]string{"--legacy"}, 191, "conformance-legacy.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, "conformserver", c.args...)
			g := startGateway(t, configured(t, conformanceConfig(t, server))...)
			verdicts := conformance(t, nil, "server", "--url", g.url, "--requirements", "2026-07-28")
			if len(verdicts) < c.checks {
				t.Errorf("only %d checks were made, of %d", len(verdicts), c.checks)
			}
			compare(t, verdicts, expectedFailures(t, c.expected))
		})
	}
}

// compare holds what the suite found against what it is expected to find.
func compare(t *testing.T, verdicts []verdict, expected map[string]bool) {
	t.Helper()
	passed := 0
	for _, v := range verdicts {
		key := v.scenario + " " + v.check
		if !v.bad {
			passed++
			continue
		}
		if _, ok := expected[key]; !ok {
			t.Errorf("%s: %s", key, v.message)
		}
		expected[key] = true
	}
	for key, seen := range expected {
		if !seen {
			t.Errorf("%s is expected to fail and does not: take it out of testdata", key)
		}
	}
	t.Logf("%d of %d checks passed, %d are expected to fail", passed, len(verdicts), len(expected))
}

// conformance runs the official suite and returns what it found, with more in its environment.
func conformance(t *testing.T, env []string, args ...string) []verdict {
	t.Helper()
	dir, results := nodeDir(t), t.TempDir()
	suite := filepath.Join("node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
	ctx, cancel := untilDeadline(t)
	defer cancel()
	cmd := exec.CommandContext(ctx, nodeBinary(dir), append(append([]string{suite}, args...), "-o", results)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, _ := cmd.CombinedOutput() // its exit code tells failures, which are read from the results
	var verdicts []verdict
	err := filepath.WalkDir(results, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(file) != "checks.json" {
			return err
		}
		found := readVerdicts(t, file)
		verdicts = append(verdicts, found...)
		if slices.ContainsFunc(found, func(v verdict) bool { return v.bad }) {
			said, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "stderr.txt")) // of a client
			t.Logf("%s: %s", found[0].scenario, said)
		}
		return nil
	})
	if err != nil || len(verdicts) == 0 {
		t.Fatalf("no results: %v\n%s", err, out)
	}
	slices.SortFunc(verdicts, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(a.scenario, b.scenario), cmp.Compare(a.check, b.check))
	})
	return verdicts
}

// readVerdicts reads one scenario's results. A warning counts as a failure: what
// a server should do, the gateway does.
func readVerdicts(t *testing.T, file string) []verdict {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var checks []struct {
		ID, Status, ErrorMessage string
	}
	if err := json.Unmarshal(text, &checks); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	// The directory is server-<scenario>-<time>, and the time has 24 characters.
	scenario := strings.TrimPrefix(filepath.Base(filepath.Dir(file)), "server-")
	scenario = scenario[:len(scenario)-len("-2006-01-02T15-04-05-000Z")]
	var verdicts []verdict
	for _, c := range checks {
		if c.Status == "SUCCESS" || c.Status == "FAILURE" || c.Status == "WARNING" {
			verdicts = append(verdicts, verdict{scenario, c.ID, c.Status != "SUCCESS", c.ErrorMessage})
		}
	}
	return verdicts
}

// expectedFailures reads a file of testdata: on each line a scenario, a
// check, and after # the reason.
func expectedFailures(t *testing.T, name string) map[string]bool {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	expected := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line, reason, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case len(fields) != 2 || strings.TrimSpace(reason) == "":
			t.Fatalf("not a scenario, a check and a reason: %s", lines.Text())
		default:
			expected[fields[0]+" "+fields[1]] = false
		}
	}
	return expected
}

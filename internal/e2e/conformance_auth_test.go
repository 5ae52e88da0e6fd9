package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"taskgate/internal/proc"
)

// The test binary is a client of the official suite if throughVar is set: it starts the client that
// clientVar names, which is sent to a gateway in front of the server of the suite; throughVar is the
// program of the gateway.
const (
	throughVar = "TASKGATE_E2E_THROUGH"
	clientVar  = "TASKGATE_E2E_CLIENT"
)

// serveThrough is the test binary as that client. The suite gives it the address of its server.
func serveThrough(program string) int {
	server, err := url.Parse(os.Args[len(os.Args)-1])
	if err == nil {
		err = clientThrough(program, os.Getenv(clientVar), server)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			return ended.ExitCode()
		}
		return 1
	}
	return 0
}

// clientThrough runs a client against a gateway in front of the server.
func clientThrough(program, client string, server *url.URL) error {
	addr, err := proc.FreeAddr()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "taskgate-through")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "taskgate.yaml")
	config := fmt.Sprintf(authSuiteConfig, addr, addr, server.Path, server)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	gateway, err := proc.Start(proc.Command{Name: "taskgate", Path: program, Args: []string{"serve", "--config", file}})
	if err != nil {
		return err
	}
	defer gateway.Stop(5 * time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := gateway.WaitListening(ctx, addr); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, client, "http://"+addr+server.Path)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// authSuiteConfig is what docs/conformance.md shows: the addresses, the path and the URL are
// those of the run.
const authSuiteConfig = `
listen: %s
public_url: http://%s
auth: {passthrough: {}}
upstreams:
  - {name: suite, path: %q, url: %q}
`

// TestConformanceAuth runs what the official suite asks of clients that sign in, with the client of
// the Go SDK: directly, where all of it passes, and with the gateway between. The difference is in
// testdata, with reasons. A client that finds another resource in the metadata than the one that it
// has connected to refuses it through the gateway as well (resource-mismatch).
func TestConformanceAuth(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	client := filepath.Join(bin, "everything-client")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", client, "github.com/modelcontextprotocol/go-sdk/conformance/everything-client")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runs := [][]string{{"--suite", "auth"}}
	for _, scenario := range alsoAuth {
		runs = append(runs, []string{"--scenario", "auth/" + scenario})
	}
	var directly, through []verdict
	for _, run := range runs {
		directly = append(directly, authSuite(t, run, client)...)
		through = append(through, authSuite(t, run, self, throughVar+"="+filepath.Join(bin, "taskgate"), clientVar+"="+client)...)
	}
	for _, v := range directly {
		if v.bad {
			t.Errorf("directly: %s %s: %s", v.scenario, v.check, v.message)
		}
	}
	if names := scenarios(directly); len(names) < 14+len(alsoAuth) || !slices.Equal(names, scenarios(through)) {
		t.Errorf("directly %v, through the gateway %v", names, scenarios(through))
	}
	compare(t, through, expectedFailures(t, "conformance-auth.txt"))
}

// alsoAuth are scenarios that the suite "auth" leaves out: of versions before 2025-06-18, and of
// what a client has to refuse.
var alsoAuth = []string{
	"resource-mismatch", "authorization-server-migration",
	"2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback",
}

// clientTime is how long a client may take for one scenario, in milliseconds. The suite's own limit
// is 30 s, which is too short where much else runs.
const clientTime = "180000"

// authSuite runs scenarios with this client.
func authSuite(t *testing.T, which []string, client string, env ...string) []verdict {
	t.Helper()
	dir, results := nodeDir(t), t.TempDir()
	suite := filepath.Join("node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
	ctx, cancel := untilDeadline(t)
	defer cancel()
	cmd := exec.CommandContext(ctx, nodeBinary(dir), append([]string{suite, "client", "--command", client, "-o", results, "--timeout", clientTime}, which...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, _ := cmd.CombinedOutput() // its exit code tells failures, which are read from the results
	files, err := filepath.Glob(filepath.Join(results, "auth", "*", "checks.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no results: %v\n%s", err, out)
	}
	var verdicts []verdict
	for _, file := range files {
		verdicts = append(verdicts, readVerdicts(t, file)...)
	}
	return verdicts
}

// scenarios are those of which there are verdicts, sorted.
func scenarios(all []verdict) []string {
	names := map[string]bool{}
	for _, v := range all {
		names[v.scenario] = true
	}
	var sorted []string
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	return sorted
}

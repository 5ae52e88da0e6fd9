package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskgate/internal/proc"
	"taskgate/internal/programtest"
)

// The test binary is a client of the official suite if throughVar is set: it starts the client that
// clientVar names, which is sent to a gateway in front of the server of the suite; throughVar is the
// program of the gateway. With insteadVar the gateway has taken over the name of the server, and the
// client learns by dialVar where that is now.
const (
	throughVar = "TASKGATE_E2E_THROUGH"
	clientVar  = "TASKGATE_E2E_CLIENT"
	insteadVar = "TASKGATE_E2E_INSTEAD"
	dialVar    = "TASKGATE_E2E_DIAL"
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

// clientThrough runs a client against a gateway in front of the server. The error of a client that
// fails has the gateway's log.
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
	public, inside, forwardHost := "http://"+addr, *server, "off"
	instead := os.Getenv(insteadVar) != ""
	if instead {
		public, inside.Host, forwardHost = "http://"+server.Host, "127.0.0.1:"+server.Port(), "on"
	}
	file := filepath.Join(dir, "taskgate.yaml")
	config := fmt.Sprintf(authSuiteConfig, addr, public, server.Path, &inside, forwardHost)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	gateway, err := proc.Start(proc.Command{Name: "taskgate", Path: program, Args: []string{"serve", "--config", file}})
	if err != nil {
		return err
	}
	defer gateway.Stop(5 * time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), clientTime)
	defer cancel()
	if err := gateway.WaitListening(ctx, addr); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, client, public+server.Path)
	cmd.Env = os.Environ()
	if instead {
		if strings.HasPrefix(os.Getenv("MCP_CONFORMANCE_SCENARIO"), "auth/2025-03-26") {
			front := split(addr, inside.Host, server.Path)
			defer front.Close()
			addr = front.Listener.Addr().String()
		}
		cmd.Env = append(cmd.Env, dialVar+"="+server.Host+"="+addr)
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\nthe gateway wrote:\n%s", err, gateway.Output())
	}
	return nil
}

// split is a proxy for servers with an authorization server of the same name: what is about the
// endpoint goes to the gateway, and the rest to the server.
func split(gateway, server, path string) *httptest.Server {
	return httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		to := server
		if r.In.URL.Path == path || strings.HasPrefix(r.In.URL.Path, "/.well-known/oauth-protected-resource") {
			to = gateway
		}
		r.SetURL(&url.URL{Scheme: "http", Host: to})
		r.Out.Host = r.In.Host
	}})
}

// authSuiteConfig is what docs/compatibility.md shows: the addresses, the path and the URL are
// those of the run.
const authSuiteConfig = `
listen: %s
public_url: %s
upstreams:
  - {name: suite, path: %q, url: %q, forward_host: %s, auth: {passthrough: {}}}
`

// TestConformanceAuth runs what the official suite asks of clients that sign in, with the client of
// the Go SDK: directly, where all of it passes, and with the gateway between, two times. Where the
// gateway has taken over the name of the server there is no difference. Where it has an address of its
// own the difference is in testdata, with reasons. A client that finds another resource in the metadata
// than the one that it has connected to refuses it through the gateway as well (resource-mismatch).
func TestConformanceAuth(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	nodeDir(t)
	client := buildSuiteClient(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	between := []string{throughVar + "=" + filepath.Join(bin, "taskgate"), clientVar + "=" + client}
	runs := []*authRun{
		{name: "directly", client: client},
		{name: "in its place", client: self, env: append(slices.Clone(between), insteadVar+"=1")},
		{name: "at another address", client: self, env: between},
	}
	if !t.Run("suite", func(t *testing.T) {
		for _, r := range runs {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				r.found = authSuite(t, []string{"--suite", "auth"}, r.client, r.env...)
				for _, scenario := range alsoAuth {
					r.found = append(r.found, authSuite(t, []string{"--scenario", "auth/" + scenario}, r.client, r.env...)...)
				}
			})
		}
	}) {
		return
	}
	directly, instead, elsewhere := runs[0].found, runs[1].found, runs[2].found
	for _, v := range directly {
		if v.bad {
			t.Errorf("directly: %s %s: %s", v.scenario, v.check, v.message)
		}
	}
	if names := scenarios(instead); len(names) < 14+len(alsoAuth) || !slices.Equal(names, scenarios(elsewhere)) {
		t.Errorf("in the place of the server %v, at another address %v", names, scenarios(elsewhere))
	}
	if diff := cmp.Diff(outcomes(directly), outcomes(instead)); diff != "" {
		t.Errorf("in the place of the server (-directly +through the gateway):\n%s", diff)
	}
	compare(t, instead, map[string]bool{})
	compare(t, elsewhere, expectedFailures(t, "conformance-auth.txt"))
}

// authRun is one run of the suite.
type authRun struct {
	name, client string
	env          []string
	found        []verdict
}

// buildSuiteClient builds the client of the Go SDK with the file of testdata/dial.
func buildSuiteClient(t *testing.T) string {
	t.Helper()
	source, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "github.com/modelcontextprotocol/go-sdk/conformance/everything-client").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, from := range []string{strings.TrimSpace(string(source)), filepath.Join("testdata", "dial")} {
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	client := filepath.Join(bin, "everything-client")
	build := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", client}, files...)...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return client
}

// alsoAuth are scenarios that the suite "auth" leaves out: of versions before 2025-06-18, and of
// what a client has to refuse.
var alsoAuth = []string{
	"resource-mismatch", "authorization-server-migration",
	"2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback",
}

// clientTime is how long a client may take for one scenario. The suite's own limit
// is 30 s, which is too short where much else runs.
const clientTime = 3 * time.Minute

// authSuite runs scenarios with this client.
func authSuite(t *testing.T, which []string, client string, env ...string) []verdict {
	t.Helper()
	return conformance(t, env, append([]string{"client", "--command", client, "--timeout", strconv.FormatInt(clientTime.Milliseconds(), 10)}, which...)...)
}

// outcomes say of each check of each scenario how it ended, sorted. Some are made at each request of a
// kind, so how often says nothing.
func outcomes(all []verdict) []string {
	var found []string
	for _, v := range all {
		found = append(found, fmt.Sprintf("%s %s failed=%v", v.scenario, v.check, v.bad))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// scenarios are those of which there are verdicts, sorted.
func scenarios(all []verdict) []string {
	var names []string
	for _, v := range all {
		names = append(names, v.scenario)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

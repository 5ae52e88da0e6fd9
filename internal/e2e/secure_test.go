package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"taskgate/internal/proc"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
	"taskgate/internal/wiretest"
)

// A Redis that only one's own authority knows, and that wants a certificate of its clients, is reached
// with the files of store_tls.
func TestTLSToTheStore(t *testing.T) {
	t.Parallel()
	a, dir := wiretest.NewAuthority(t), t.TempDir()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{a.Pair("redis")}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	way := redistest.NewProxyOn(t, l, redistest.Start(t).Addr)
	way.Record()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.Issue("gateway", cert, key)
	g := startGateway(t, configured(t, fmt.Sprintf(`
store: rediss://%s/0
store_tls: {ca_file: %q, cert_file: %q, key_file: %q}
upstreams:
  - {name: slow, path: /mcp, url: %q, defaults: {tasks: always}}
`, way.Addr, a.File, cert, key, startServer(t, "slowserver")))...)
	waitFor(t, g.client(true), callTask(t, g.client(true), "count_words", map[string]any{"text": "one two"}).ID, taskclient.Completed)
	if way.Said("count_words") == 0 {
		t.Error("nothing of the task was said to Redis")
	}
}

// The audit log on standard output has a line of JSON for each thing done, and nothing else is there. Under
// passthrough a sign-in that the server refuses is in it, too.
func TestAuditOnStdout(t *testing.T) {
	t.Parallel()
	issuer := wiretest.NewIssuer(t, "")
	server := startChoosy(t, issuer.URL)
	good := issuer.Token("alice", map[string]any{"aud": server.url})
	server.takes["Bearer "+good] = true
	var out, log bytes.Buffer
	g := startAt(t, freeAddr(t), proc.Command{Stdout: &out, Stderr: &log}, configured(t, fmt.Sprintf(`
public_url: https://gateway.example
audit: stdout
upstreams:
  - {name: up, path: /mcp, url: "%s", auth: {passthrough: {}}, tools: [{match: slow, tasks: always, poll_interval: 100ms}]}
`, server.url))...)
	refused := issuer.Token("bob", map[string]any{"aud": server.url})
	var unauthorized *taskclient.Error
	if _, _, err := g.as(refused).CallTool(t.Context(), "quick", map[string]any{}); !errors.As(err, &unauthorized) || unauthorized.Status != http.StatusUnauthorized {
		t.Errorf("bob, within the grace: %v", err)
	}
	task := callTask(t, g.as(good), "slow", map[string]any{})
	waitFor(t, g.as(good), task.ID, taskclient.Completed)
	g.Stop(patience)
	var got []string
	for line := range bytes.Lines(out.Bytes()) {
		var r struct {
			Event, Task, Tool, Issuer, Name, Reason string
			Status                                  int
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if r.Issuer != issuer.URL || r.Task != "" && r.Task != task.ID {
			t.Errorf("%s", line)
		}
		got = append(got, fmt.Sprint(r.Event, ", ", r.Name, ", ", r.Tool, ", ", r.Status, ", ", r.Reason))
	}
	want := []string{"sign-in refused, bob, , 401, the server has refused it", "task created, alice, slow, 0, ", "result read, alice, , 0, "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

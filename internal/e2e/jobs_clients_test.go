package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/client/transport"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// TestJobsWithRealClients: clients of two SDKs, over HTTP at two replicas and over stdio, in both eras, call the
// tool once. They have what a client has by hand that starts the job, asks for it and fetches its result.
func TestJobsWithRealClients(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]fake.Mode{"2025-11-25": fake.Stateful, "2026-07-28": fake.Modern} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newJobsWorld(t, mode)
			byHand := w.callByHand(t)
			stdio := append([]string{"stdio", "--log-level", "error"}, configured(t, w.yaml)...)
			command := filepath.Join(bin, "taskgate")
			for client, call := range map[string]func(t *testing.T, key string) string{
				"go-sdk, 2025-06-18": func(t *testing.T, key string) string {
					return goText(t, connectAs(t, w.a.url, "2025-06-18").call(t, "start_export", keyed(key)))
				},
				"go-sdk, 2025-11-25": func(t *testing.T, key string) string {
					return goText(t, connectAs(t, w.b.url, mcp.Version20251125).call(t, "start_export", keyed(key)))
				},
				"go-sdk, 2026-07-28": func(t *testing.T, key string) string {
					return goText(t, connectAs(t, w.a.url, mcp.Version20260728).call(t, "start_export", keyed(key)))
				},
				"go-sdk, stdio": func(t *testing.T, key string) string {
					s := connectOver(t, &sdk.CommandTransport{Command: exec.Command(command, stdio...)}, mcp.Version20251125)
					return goText(t, s.call(t, "start_export", keyed(key)))
				},
				"mcp-go, 2026-07-28": func(t *testing.T, key string) string {
					c, _ := connectMCPGo(t, roadOfMCPGo(t, w.b.url, mcp.Version20260728), mcp.Version20260728)
					return textOfMCPGo(t, callMCPGo(t, c, "start_export", keyed(key)))
				},
				"mcp-go, stdio": func(t *testing.T, key string) string {
					c, _ := connectMCPGo(t, transport.NewStdio(command, nil, stdio...), mcp.Version20260728)
					return textOfMCPGo(t, callMCPGo(t, c, "start_export", keyed(key)))
				},
			} {
				t.Run(client, func(t *testing.T) {
					key := regexp.MustCompile(`\W+`).ReplaceAllString(client, "-")
					got := make(chan string, 1)
					go func() {
						defer close(got)
						got <- call(t, key)
					}()
					until(t, "the questions for the job", func() bool { return w.polls(key) > 1 })
					w.end(key)
					if text, want := <-got, strings.ReplaceAll(byHand, "hand", key); text != want {
						t.Errorf("the result is %q, and by hand %q", text, want)
					}
					wantStarted(t, w, key)
				})
			}
		})
	}
}

// callByHand starts a job, asks for it and fetches its result, through a gateway that knows of no jobs.
func (w *jobsWorld) callByHand(t *testing.T) string {
	t.Helper()
	yaml, _, _ := strings.Cut(w.yaml, "    tools:")
	c := startGateway(t, configured(t, yaml)...).client(false)
	var started struct{ JobID string }
	if err := json.Unmarshal([]byte(callPlain(t, c, "start_export", keyed("hand"))), &started); err != nil {
		t.Fatal(err)
	}
	w.end("hand")
	status, _, err := c.CallTool(t.Context(), "export_status", map[string]any{"job": started.JobID})
	if err != nil || !strings.Contains(string(status), "succeeded") {
		t.Fatalf("the job is %s, %v", status, err)
	}
	return callPlain(t, c, "export_result", map[string]any{"job": started.JobID})
}

// textOfMCPGo is the text of a content with one block, as callMCPGo returns it.
func textOfMCPGo(t *testing.T, content string) string {
	t.Helper()
	return texts(t, json.RawMessage(`{"content":`+content+`}`))
}

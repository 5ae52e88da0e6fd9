package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// A stream whose replica was killed, or stands still, is in nobody's way: the other replica lets the first attempt
// in. The TypeScript SDKs make two, within 2.5 s, and hear nothing of the server for the rest of the session then.
func TestListenWhereAReplicaIsLost(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*testing.T, *gateway){
		"killed": func(_ *testing.T, g *gateway) { g.Kill() },
		"stopped": func(t *testing.T, g *gateway) {
			if err := g.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = g.Signal(syscall.SIGCONT) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := twoReplicas(t)
			s := begin(t, a)
			s.hear(a)
			harm(t, a)
			resp := s.request(t.Context(), b, http.MethodGet, "")
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Error(resp.Status)
			}
		})
	}
}

// A replica stops while calls are under way whose clients have lost the connection. How each call ended is kept for
// them: at the other replica they hear that, and not that the replica was lost.
func TestAnswersOfAStop(t *testing.T) {
	t.Parallel()
	const calls = 150
	store, server := redistest.Start(t), startServer(t, "slowserver")
	yaml := fmt.Sprintf(`
store: %s
heartbeat: 1s
drain_timeout: 300ms
resume_after: 50ms
upstreams: [{name: slow, path: /mcp, url: "%s"}]
`, store.URL(), server)
	a, b := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	s := begin(t, a)
	var last []string
	for i := range calls {
		ctx, leave := context.WithCancel(t.Context())
		resp := s.request(ctx, a, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":"c%d","method":"tools/call","params":{"name":"research","arguments":{"topic":"tea","seconds":60}}}`, i))
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				last = append(last, id)
				break
			}
		}
		leave()
		_ = resp.Body.Close()
	}
	if len(last) != calls {
		t.Fatalf("%d of %d calls can be resumed", len(last), calls)
	}
	terminate(t, a.Process)
	within(t, a.Process, 30*time.Second)
	for _, id := range last {
		resp := s.request(t.Context(), b, http.MethodGet, "", "Accept", mcp.TypeSSE, mcp.HeaderLastEventID, id)
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(body), "the gateway was shut down while this call ran") {
			t.Errorf("%s, %v", body, err)
		}
	}
}

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// session is a client session of 2025-11-25 that any replica serves.
type session struct {
	t      *testing.T
	id     string
	serial atomic.Int64
}

// begin initializes a session at one replica.
func begin(t *testing.T, g *gateway) *session {
	t.Helper()
	s := &session{t: t}
	s.do(g, mcp.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}`)
	return s
}

func (s *session) request(ctx context.Context, g *gateway, method, body string) *http.Response {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, g.url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	if s.id != "" {
		r.Header.Set(mcp.HeaderSession, s.id)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// do sends a request to a replica and returns its result.
func (s *session) do(g *gateway, method, params string) json.RawMessage {
	s.t.Helper()
	resp := s.request(s.t.Context(), g, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.serial.Add(1), method, params))
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if id := resp.Header.Get(mcp.HeaderSession); id != "" {
		s.id = id
	}
	if resp.Header.Get("Content-Type") == mcp.TypeSSE {
		body = body[bytes.LastIndex(body, []byte("data: "))+len("data: "):]
	}
	var answer struct{ Result json.RawMessage }
	if err := json.Unmarshal(body, &answer); err != nil || answer.Result == nil {
		s.t.Fatalf("%s: %s (%v)", method, body, err)
	}
	return answer.Result
}

// call makes a task at a replica and returns its id.
func (s *session) call(g *gateway, args map[string]any) string {
	s.t.Helper()
	params, err := json.Marshal(map[string]any{"name": "research", "arguments": args, "task": map[string]any{}})
	if err != nil {
		s.t.Fatal(err)
	}
	var created struct{ Task struct{ TaskID string } }
	if err := json.Unmarshal(s.do(g, mcp.MethodToolsCall, string(params)), &created); err != nil || created.Task.TaskID == "" {
		s.t.Fatalf("no task was made: %v", err)
	}
	return created.Task.TaskID
}

// hear opens the session's stream at a replica. The function it returns tells what
// has been heard of tasks so far.
func (s *session) hear(g *gateway) func() []string {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	resp := s.request(ctx, g, http.MethodGet, "")
	var mu sync.Mutex
	var heard []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			var n struct {
				Method string
				Params struct{ TaskID, Status string }
			}
			if !ok || json.Unmarshal([]byte(data), &n) != nil || n.Method != mcp.NotifyTaskStatus {
				continue
			}
			mu.Lock()
			heard = append(heard, n.Params.TaskID+" "+n.Params.Status)
			mu.Unlock()
		}
	}()
	s.t.Cleanup(func() {
		leave()
		_ = resp.Body.Close()
		<-done
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(heard)
	}
}

// A legacy client's tasks are its session's, whichever replica it asks: the one
// that did not make them lists them, answers with their results, cancels them, and
// tells of them on the stream that it holds.
func TestLegacyTaskOnTheOtherReplica(t *testing.T) {
	t.Parallel()
	a, b := twoReplicas(t)
	s := begin(t, a)
	heard := s.hear(b)
	short, endless := s.call(a, research(1.5)), s.call(a, research(60))
	if err := wantReport(textOf(t, s.do(b, mcp.MethodTasksResult, `{"taskId":"`+short+`"}`))); err != nil {
		t.Error(err)
	}
	var cancelled struct{ Status string }
	if err := json.Unmarshal(s.do(b, mcp.MethodTasksCancel, `{"taskId":"`+endless+`"}`), &cancelled); err != nil || cancelled.Status != "cancelled" {
		t.Errorf("cancelled: %+v %v", cancelled, err)
	}
	var list struct {
		Tasks []struct{ TaskID, Status string }
	}
	if err := json.Unmarshal(s.do(b, mcp.MethodTasksList, `{}`), &list); err != nil || len(list.Tasks) != 2 {
		t.Errorf("listed: %+v %v", list, err)
	}
	eventually(t, "notifications on the other replica", func() error {
		now := heard()
		if !slices.Contains(now, short+" completed") || !slices.Contains(now, endless+" cancelled") {
			return fmt.Errorf("heard %q", now)
		}
		return nil
	})
}

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
	if err := a.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	within(t, a.Process, 30*time.Second)
	for _, id := range last {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", mcp.TypeSSE)
		r.Header.Set(mcp.HeaderSession, s.id)
		r.Header.Set(mcp.HeaderLastEventID, id)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(body), "the gateway was shut down while this call ran") {
			t.Errorf("%s, %v", body, err)
		}
	}
}

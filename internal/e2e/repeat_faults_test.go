package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest/fake"
)

// worthKeeping is a little more than a call must have run to be kept when its client gives up.
const worthKeeping = 20500 * time.Millisecond

const slowWork = `{"name":"work","arguments":{"key":"slow"}}`

// leaves calls a tool at a replica, gives up as SDKs do, and waits until the call is kept.
func (s *session) leaves(g *gateway, params string) {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	defer leave()
	id, kept := s.serial.Add(1), strings.Count(g.Output(), "the call is kept")
	resp := s.request(ctx, g, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, id, params))
	defer resp.Body.Close()
	<-time.After(worthKeeping)
	s.notify(g, id, "context deadline exceeded")
	until(s.t, "the call is kept", func() bool { return strings.Count(g.Output(), "the call is kept") > kept })
}

// notify cancels a request of the session for a reason.
func (s *session) notify(g *gateway, id int64, reason string) {
	s.t.Helper()
	resp := s.request(s.t.Context(), g, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d,"reason":%q}}`, id, reason))
	_ = resp.Body.Close()
}

// again calls a tool, and returns its answer once there is one.
func (s *session) again(g *gateway, params string) <-chan wireMessage {
	answers := make(chan wireMessage, 1)
	go func() {
		_, m := s.stay(g, g, "tools/call", params, "{}")
		answers <- m
	}()
	return answers
}

// wantPickedUp wants the answer of a call that was picked up.
func wantPickedUp(t *testing.T, m wireMessage, text string) {
	t.Helper()
	since, _ := jsonrpc.GetString(m.Result, "_meta", "dev.taskgate/picked-up")
	if since == "" || !strings.Contains(string(m.Result), text) {
		t.Errorf("picked up since %q: %s %+v", since, m.Result, m.Error)
	}
}

// A call that its client gave up outlives the replica that runs it, as a task does: it is resumed where the server can
// do that, run again under recover: retry, and is lost otherwise. Then the repeat hears so, and the call after it runs.
func TestRepeatOfAKilledReplica(t *testing.T) {
	t.Parallel()
	programtest.Long(t)
	for name, c := range map[string]struct {
		recover string
		events  mcp.EventStore
		lost    bool
		runs    int
	}{
		"resumable":      {"fail", mcp.NewMemoryEventStore(nil), false, 1},
		"recover: retry": {"retry", nil, false, 2},
		"recover: fail":  {"fail", nil, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startCounting(t, c.events)
			yaml := fmt.Sprintf("store: %s\nheartbeat: 1s\nupstreams: [{name: slow, path: /mcp, url: %q, defaults: {recover: %s}}]\n", redistest.Start(t).URL(), server.url, c.recover)
			a, b := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
			s := begin(t, a)
			s.leaves(a, slowWork)
			a.Kill()
			answer := s.again(b, slowWork)
			until(t, "another replica has the call", func() bool { return strings.Contains(b.Output(), "taskgate.task.adopted") })
			if c.runs > 1 {
				until(t, "it runs again", func() bool { n, _ := server.times("slow"); return n > 1 })
			}
			runs := c.runs
			if c.lost {
				if m := <-answer; m.Error == nil || !strings.Contains(m.Error.Message, "the upstream may have finished the work") {
					t.Errorf("the repeat of a lost call got %s %+v", m.Result, m.Error)
				}
				answer = s.again(b, slowWork)
				runs++
				until(t, "the next call runs", func() bool { n, _ := server.times("slow"); return n == runs })
			}
			close(server.finish)
			if m := <-answer; c.lost {
				if since, _ := jsonrpc.GetString(m.Result, "_meta", "dev.taskgate/picked-up"); since != "" || m.Error != nil {
					t.Errorf("the call after it got %s %+v", m.Result, m.Error)
				}
			} else {
				wantPickedUp(t, m, "did slow")
			}
			if n, cancelled := server.times("slow"); n != runs || cancelled != 0 {
				t.Errorf("%d runs, want %d; %d cancelled", n, runs, cancelled)
			}
		})
	}
}

// A client whose requests go to two replicas, and which gives up at each, gets the answer of its one call.
func TestRepeatAtReplicasInTurn(t *testing.T) {
	t.Parallel()
	programtest.Long(t)
	server := startCounting(t, nil)
	yaml := fmt.Sprintf("store: %s\nupstreams: [{name: slow, path: /mcp, url: %q}]\n", redistest.Start(t).URL(), server.url)
	a, b := startGateway(t, configured(t, yaml+"drain_delay: 0s\nadmin: "+freeAddr(t)+"\n")...), startGateway(t, configured(t, yaml)...)
	shows := func(text string, words ...string) (out string) {
		t.Helper()
		eventually(t, "operators see "+text, func() error {
			link := regexp.MustCompile(`http://[^"]*/console/#token=\w+`).FindString(a.Output())
			c := exec.Command(filepath.Join(bin, "taskgate"), append([]string{"tasks"}, words...)...)
			c.Env = append(os.Environ(), "TASKGATE_ADMIN="+link)
			all, err := c.CombinedOutput()
			if out = string(all); err == nil && !strings.Contains(out, text) {
				err = errors.New(out)
			}
			return err
		})
		return out
	}
	s := begin(t, a)
	s.leaves(a, slowWork)
	id := strings.Fields(strings.Split(shows("given up by its client; kept until", "list"), "\n")[1])[0]
	for range 2 {
		for g, other := range map[*gateway]*gateway{b: a, a: b} { // the word that it gives up may come to either
			ctx, leave := context.WithCancel(t.Context())
			number := s.serial.Add(1)
			resp := s.request(ctx, g, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, number, slowWork))
			s.notify(other, number, "context deadline exceeded")
			leave()
			_ = resp.Body.Close()
		}
	}
	answer := s.again(b, slowWork)
	shows("picked up by the same call made again, by e2e 1", "show", id)
	close(server.finish)
	wantPickedUp(t, <-answer, "did slow")
	if n, cancelled := server.times("slow"); n != 1 || cancelled != 0 {
		t.Errorf("%d runs, %d cancelled", n, cancelled)
	}
}

// A gateway that keeps its tasks in a folder is started again, after a stop or a kill: a call that its client gave up
// before goes on, and is picked up.
func TestRepeatThroughARestart(t *testing.T) {
	t.Parallel()
	programtest.Long(t)
	for name, end := range map[string]func(*gateway){
		"killed":  func(g *gateway) { g.Kill() },
		"stopped": func(g *gateway) { _ = g.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startCounting(t, mcp.NewMemoryEventStore(nil))
			g := serveAgain(t, configured(t, fmt.Sprintf("store: file:%s\nheartbeat: 1s\ndrain_timeout: 300ms\nupstreams: [{name: slow, path: /mcp, url: %q}]\n", filepath.Join(t.TempDir(), "store"), server.url))...)
			s := begin(t, g.gateway)
			s.leaves(g.gateway, slowWork)
			g.again(t, func() { end(g.gateway) })
			answer := s.again(g.gateway, slowWork)
			close(server.finish)
			wantPickedUp(t, <-answer, "did slow")
			if n, cancelled := server.times("slow"); n != 1 || cancelled != 0 {
				t.Errorf("%d runs, %d cancelled", n, cancelled)
			}
		})
	}
}

// While Redis is away, a call that may be a repeat waits for store_wait. Where that is too short, it gets an error and is
// not sent. Calls of other clients are served meanwhile. Once Redis is back the call is picked up, by the one that waits or
// by the next.
func TestRepeatThroughAnOutage(t *testing.T) {
	t.Parallel()
	programtest.Long(t)
	for name, wait := range map[string]string{"longer than store_wait": "2s", "within store_wait": "25s"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startCounting(t, nil)
			store := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			g := startGateway(t, configured(t, fmt.Sprintf("store: %s\nstore_wait: %s\nheartbeat: 1s\nupstreams: [{name: slow, path: /mcp, url: %q}]\n", store.URL(), wait, server.url))...)
			s, other := begin(t, g), g.client(false)
			s.leaves(g, slowWork)
			store.Stop()
			begun, answer := time.Now(), s.again(g, slowWork)
			var served atomic.Int64
			quick := func() {
				if got := callPlain(t, other, "quick", none); got == "quick" {
					served.Add(1)
				}
			}
			quick()
			if wait == "2s" {
				if m := <-answer; m.Error == nil || time.Since(begun) < 2*time.Second {
					t.Errorf("after %v without a store: %s", time.Since(begun), m.Result)
				}
			} else {
				<-time.After(20 * time.Second)
			}
			quick()
			if n, cancelled := server.times("slow"); n != 1 || cancelled != 0 || served.Load() != 2 {
				t.Errorf("%d runs, %d cancelled; %d calls of another client were served", n, cancelled, served.Load())
			}
			store.Restart()
			if wait == "2s" {
				until(t, "the store is back", func() bool { return strings.Contains(g.Output(), "the store takes heartbeats again") })
				answer = s.again(g, slowWork)
			}
			close(server.finish)
			wantPickedUp(t, <-answer, "did slow")
			if n, _ := server.times("slow"); n != 1 {
				t.Errorf("%d runs", n)
			}
		})
	}
}

// A client also gives up a call where it says nothing about it: its connection breaks, or its session ends. In its next
// session it is known by its owner and its name.
func TestRepeatWithoutAWord(t *testing.T) {
	t.Parallel()
	programtest.Long(t)
	for name, gives := range map[string]func(t *testing.T, g *gateway, url string) *goSession{
		"the connection breaks": func(t *testing.T, g *gateway, url string) *goSession {
			client := &http.Transport{}
			s := connectOver(t, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: client}}, "2025-11-25")
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			go legacyRequest(ctx, http.MethodPost, url, s.ID(), `{"jsonrpc":"2.0","id":"cut","method":"tools/call","params":`+slowWork+`}`) //nolint
			<-time.After(worthKeeping)
			return s
		},
		"the session ends": func(t *testing.T, g *gateway, url string) *goSession {
			open := func() *goSession {
				return connectOver(t, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: withKey("the-secret-of-alice")}}, "2025-11-25")
			}
			s := open()
			go func() { _, _ = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "work", Arguments: keyed("slow")}) }()
			<-time.After(worthKeeping)
			resp, err := legacyRequest(t.Context(), http.MethodDelete, url, s.ID(), "", "Authorization", "Bearer the-secret-of-alice")
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("the end of the session: %v, %v", resp, err)
			}
			return open()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startCounting(t, nil)
			g := startGateway(t, configured(t, fmt.Sprintf("upstreams:\n  - {name: slow, path: /mcp, url: %q}\n  - {name: owned, path: /owned, url: %[1]q, auth: {keys: [\"alice:%x\"]}}\n", server.url, sha256.Sum256([]byte("the-secret-of-alice"))))...)
			url := g.url
			if name == "the session ends" {
				url = "http://" + g.addr + "/owned"
			}
			s := gives(t, g, url)
			until(t, "the call is kept", func() bool { return strings.Contains(g.Output(), "the call is kept") })
			got := make(chan *mcp.CallToolResult, 1)
			go func() {
				result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "work", Arguments: keyed("slow")})
				if err != nil {
					t.Error(err)
				}
				got <- result
			}()
			until(t, "it is picked up", func() bool { return strings.Contains(g.Output(), "taskgate.task.picked_up") })
			close(server.finish)
			if r := <-got; r == nil || r.Meta["dev.taskgate/picked-up"] == nil {
				t.Errorf("the repeat got %+v", r)
			}
			if n, cancelled := server.times("slow"); n != 1 || cancelled != 0 {
				t.Errorf("%d runs, %d cancelled", n, cancelled)
			}
		})
	}
}

// The call of a job tool is kept as any other: the job goes on, and whoever calls again has its result.
func TestRepeatOfAJob(t *testing.T) {
	t.Parallel()
	programtest.Long(t)
	w := newJobsWorld(t, fake.Stateful)
	s := begin(t, w.a)
	const call = `{"name":"start_export","arguments":{"key":"given up"}}`
	s.leaves(w.a, call)
	answer := s.again(w.b, call)
	w.end("given up")
	wantPickedUp(t, <-answer, "export of given up")
	if n := w.cancelled("given up"); n != 0 {
		t.Errorf("the job was cancelled %d times", n)
	}
}

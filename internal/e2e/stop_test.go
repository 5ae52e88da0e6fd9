package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/jsonrpc"
	protocol "taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// countingServer is a server of the Go SDK, of the 2025 versions, whose tool work is
// done when the test says so. It counts how often a call began and was cancelled.
type countingServer struct {
	url string

	mu               sync.Mutex
	began, cancelled map[string]int // by key
	finish           chan struct{}
}

// startCounting serves until the test ends; only with an event store can the streams
// of its calls be resumed.
func startCounting(t *testing.T, events mcp.EventStore) *countingServer {
	s := &countingServer{began: map[string]int{}, cancelled: map[string]int{}, finish: make(chan struct{}, 10)}
	server := newPeer("counting")
	addWords(server, "work", s.work)
	s.url = serve(t, streamable(server, &mcp.StreamableHTTPOptions{EventStore: events}))
	return s
}

func (s *countingServer) work(ctx context.Context, r *mcp.CallToolRequest) string {
	key, _ := jsonrpc.GetString(r.Params.Arguments, "key")
	s.count(s.began, key)
	select {
	case <-s.finish:
	case <-ctx.Done():
		s.count(s.cancelled, key)
	}
	return "did " + key
}

func (s *countingServer) count(m map[string]int, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m[key]++
}

// times is how often a call began, and was cancelled.
func (s *countingServer) times(key string) (began, cancelled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began[key], s.cancelled[key]
}

const stopped = "the gateway was shut down while this call ran; the upstream may have finished the work"

// stopConfig is that of gateways that do not wait for long when they are stopped.
const stopConfig = `
store: %s
heartbeat: 3s
drain_timeout: 500ms
upstreams:
  - name: resumable
    path: /mcp
    url: %s
    defaults: {tasks: always, poll_interval: 50ms}
  - name: plain
    url: %s
    defaults: {tasks: always, poll_interval: 50ms}
`

// listenTo listens to a task until its end.
func listenTo(t *testing.T, g *gateway, id string) func() taskclient.Task {
	t.Helper()
	h, done := hear(g, false), make(chan struct{})
	go func() {
		defer close(done)
		h.listen(t, id)
	}()
	until(t, "the task is heard of", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.end.ID != ""
	})
	return func() taskclient.Task {
		<-done
		return h.end
	}
}

// takenOver waits until a gateway has taken over so many tasks.
func takenOver(t *testing.T, g *gateway, n int) {
	t.Helper()
	until(t, "taking over", func() bool { return strings.Count(g.Output(), "took over a task") >= n })
}

// A gateway is stopped while calls run. The task whose stream can be resumed goes on
// on the other replica, well before a heartbeat is missed and without a second
// execution; the other one fails before the process is gone, and says why. Whoever
// polls, listens or waits for them, on either replica, sees that.
func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	resumable, plain := startCounting(t, mcp.NewMemoryEventStore(nil)), startCounting(t, nil)
	yaml := fmt.Sprintf(stopConfig, store.URL(), resumable.url, plain.url)
	b, lost := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
	callTask(t, lost.client(true), "work", keyed("lost"))
	lost.Kill()
	takenOver(t, b, 1) // so it has beaten for long enough to adopt
	a := startGateway(t, configured(t, yaml)...)
	at := func(g *gateway, path string) *gateway {
		other := *g
		other.url = "http://" + g.addr + path
		return &other
	}
	const one, two = "/mcp", "/plain/mcp"
	goesOn := callTask(t, at(a, one).client(true), "work", keyed("goes on"))
	fails := callTask(t, at(a, two).client(true), "work", keyed("fails"))
	s := begin(t, at(a, two))
	legacy := s.task(at(a, two), "work", keyed("legacy"))
	eventually(t, "the calls run", func() error {
		x, _ := resumable.times("goes on")
		y, _ := plain.times("fails")
		z, _ := plain.times("legacy")
		if x+y+z < 3 {
			return errNotYet
		}
		return nil
	})
	ended := map[string]func() taskclient.Task{
		goesOn.ID: listenTo(t, at(b, one), goesOn.ID),
		fails.ID:  listenTo(t, at(b, two), fails.ID),
	}
	var waiting sync.WaitGroup
	answers := make([]wireMessage, 2) // of tasks/result, at either replica
	for i, g := range []*gateway{a, b} {
		waiting.Go(func() {
			_, answers[i] = s.stay(at(g, two), a, protocol.MethodTasksResult, `{"taskId":"`+legacy+`"}`, "{}")
		})
	}

	begun := time.Now()
	stops(t, a.Process, 15*time.Second)
	end := waitFor(t, at(b, two).client(true), fails.ID, "failed")
	if end.Error == nil || end.Error.Code != -32603 || end.Error.Message != stopped || end.StatusMessage != stopped {
		t.Errorf("the task that cannot go on ended as %+v", end)
	}
	takenOver(t, b, 2)
	t.Logf("stopped and taken over within %s of the signal", time.Since(begun).Round(time.Millisecond))
	close(resumable.finish)
	end = waitFor(t, at(b, one).client(true), goesOn.ID, "completed")
	if got := textOf(t, end.Result); got != "did goes on" {
		t.Errorf("the result is %q", got)
	}
	if last := ended[goesOn.ID](); last.Status != "completed" {
		t.Errorf("the listener heard %+v", last)
	}
	if last := ended[fails.ID](); last.Status != "failed" || last.StatusMessage != stopped {
		t.Errorf("the listener heard %+v", last)
	}
	waiting.Wait()
	for i, answer := range answers {
		if answer.Error == nil || answer.Error.Message != stopped {
			t.Errorf("who waited at replica %d got %+v", i, answer)
		}
	}
	if n, _ := resumable.times("goes on"); n != 1 {
		t.Errorf("executed %d times", n)
	}
	eventually(t, "the calls that nobody goes on with are cancelled", func() error {
		for _, key := range []string{"fails", "legacy"} {
			if n, cancelled := plain.times(key); n != 1 || cancelled != 1 {
				return fmt.Errorf("%s began %d times, was cancelled %d times", key, n, cancelled)
			}
		}
		return nil
	})
}

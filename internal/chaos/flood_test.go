package chaos

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/balancer"
	"taskgate/internal/mcp"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// floodToken is the key of the principal that floods.
const floodToken = "key-of-the-one-that-floods"

// floodConfig is what differs where one principal floods and gateways are restarted in
// turn: bounds that a short run reaches, the address of the probes, and time to leave.
var floodConfig = fmt.Sprintf("auth: {keys: [chaos:%x, flood:%x]}\n",
	sha256.Sum256([]byte(token)), sha256.Sum256([]byte(floodToken))) + `
admin: %s
drain_delay: 3s
max_sessions_per_owner: 50
max_calls_per_owner: 200
`

const (
	floodTasks    = 200 // max_tasks_per_owner
	floodDrain    = 25 * time.Second
	floodWorkers  = 3               // of each way
	floodPatience = 2 * time.Second // how long it waits for an answer
	floodKept     = 100             // connections that a worker keeps without a word
)

// floodEvery is the least time from one beginning of a worker to the next.
const floodEvery = 60 * time.Millisecond

// flood is the principal that uses too much.
type flood struct {
	addr      string // of the balancer
	transport *transport
	http      *http.Client
	done      *tally
}

func newFlood(addr string) *flood {
	t := newTransport()
	t.token = floodToken
	return &flood{addr: addr, transport: t, http: &http.Client{Transport: t}, done: newTally()}
}

// post sends a message of a legacy client, and returns the session that the answer names.
func (f *flood) post(ctx context.Context, session, message string) (string, error) {
	l := &legacy{transport: f.transport, path: pathChaos}
	resp, err := l.requestIn(ctx, session, http.MethodPost, f.addr, "", []byte(message))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		return "", &taskclient.Error{Status: resp.StatusCode}
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header.Get(mcp.HeaderSession), err
}

// initialize opens a session whose client has much to say of itself.
func (f *flood) initialize(ctx context.Context) (string, error) {
	return f.post(ctx, "", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":%q,"version":"1"}}}`, strings.Repeat("x", 4_000)))
}

// call makes a call that takes so many milliseconds.
func (f *flood) call(ctx context.Context, tool string, takes int, more string) error {
	c := &taskclient.Client{URL: "http://" + f.addr + pathChaos, HTTP: f.http, Tasks: true}
	_, _, err := c.CallTool(ctx, tool, map[string]any{"call": "flood", "takes": takes, "more": more})
	return err
}

// ways are all that it does. Each goes on until its context ends, or is over at once.
func (f *flood) ways() map[string]func(context.Context) error {
	megabyte := strings.Repeat("x", 1<<20)
	return map[string]func(context.Context) error{
		"sessions":    func(ctx context.Context) error { _, err := f.initialize(ctx); return err },
		"large calls": func(ctx context.Context) error { return f.call(ctx, "auto_json", 0, megabyte) },
		"tasks":       func(ctx context.Context) error { return f.call(ctx, "always_json", 3000, "") },
		"calls that are left": func(ctx context.Context) error {
			ctx, stop := context.WithTimeout(ctx, floodEvery)
			defer stop()
			return f.call(ctx, "auto_json", 1000, "")
		},
		"large cancellations": func(ctx context.Context) error {
			session, err := f.initialize(ctx)
			if err == nil {
				_, err = f.post(ctx, session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"`+megabyte+`"}}`)
			}
			return err
		},
		"streams": func(ctx context.Context) error {
			c := &taskclient.Client{URL: "http://" + f.addr + pathChaos, HTTP: f.http}
			_, err := c.Do(ctx, mcp.MethodListen, map[string]any{"notifications": map[string]any{"toolsListChanged": true}})
			return err
		},
	}
}

// run floods until ctx ends.
func (f *flood) run(ctx context.Context) {
	var all sync.WaitGroup
	for name, way := range f.ways() {
		for range floodWorkers {
			all.Go(func() {
				for wait(ctx, floodEvery) {
					f.once(ctx, name, way)
				}
			})
		}
	}
	all.Go(func() { f.connect(ctx) })
	all.Wait()
}

// once goes one way, and counts what came of it.
func (f *flood) once(ctx context.Context, name string, way func(context.Context) error) {
	ctx, stop := context.WithTimeout(ctx, floodPatience)
	defer stop()
	err := way(ctx)
	refused, isError := errors.AsType[*taskclient.Error](err)
	switch {
	case err == nil:
		f.done.add(name + ": answered")
	case isError && (refused.Status == http.StatusTooManyRequests || refused.Status == http.StatusServiceUnavailable):
		f.done.add(name + ": refused with 429 or 503")
	case isError:
		f.done.add(name + ": refused")
	default:
		f.done.add(name + ": no answer in time")
	}
}

// connect keeps connections on which nothing is said.
func (f *flood) connect(ctx context.Context) {
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close() // nothing was written
		}
	}()
	for len(open) < floodKept && wait(ctx, floodEvery) {
		if c, err := net.DialTimeout("tcp", f.addr, floodPatience); err == nil {
			open = append(open, c)
		}
	}
	<-ctx.Done()
}

// restartInTurn stops one gateway after the other as an operator does, and starts it anew.
func (f *fleet) restartInTurn(ctx context.Context, b *balancer.Balancer, injected *tally) {
	for i, n := range f.nodes {
		n.stop()
		if err := n.start(); err != nil {
			f.judge.blame("gateway %d does not start: %v", i, err)
			return
		}
		injected.add("gateway restarted")
		if !awaitReady(ctx, b, i) {
			f.judge.blame("gateway %d is not ready %s after its start", i, startTimeout)
			return
		}
	}
}

// awaitReady waits until the balancer knows that a gateway is ready.
func awaitReady(ctx context.Context, b *balancer.Balancer, i int) bool {
	ctx, stop := context.WithTimeout(ctx, startTimeout)
	defer stop()
	for !b.Ready(i) {
		if !wait(ctx, pollEvery/4) {
			return false
		}
	}
	return true
}

// One principal floods in every way there is, while the gateways are restarted in turn
// behind a balancer that asks for /readyz. Nobody else notices: no call of another principal
// is refused or left without an answer, and no task is lost, doubled or changed.
func TestFloodAndRestarts(t *testing.T) {
	programtest.Long(t)
	store, u, j := redistest.Start(t), startUpstream(t), newJudge()
	j.undisturbed = true
	f := newFleet(t, j, u.url, settings{heartbeat: time.Second, floods: true}, only(store), store.URL(), store.URL(), store.URL())
	b := balancer.New(f.replicas()...)
	front := serve(t, b)
	polling, stopPolling := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer stopPolling()
	all.Go(func() { b.Poll(polling) })
	for i := range f.nodes {
		if !awaitReady(t.Context(), b, i) {
			t.Fatal("a gateway is not ready")
		}
	}
	f.front = front
	c := newClients(t, f, j)

	hostile := newFlood(f.front)
	var over atomic.Bool
	c.live(t, u, runLimit, func(ctx context.Context, injected *tally) {
		flooding, stop := context.WithCancel(ctx)
		var hostility sync.WaitGroup
		hostility.Go(func() { hostile.run(flooding) })
		for range 1 + *calls/2000 {
			f.restartInTurn(ctx, b, injected)
		}
		stop()
		hostility.Wait()
		over.Store(true)
	}, c.until(&over))
	t.Logf("the flood:\n%s", hostile.done)
	if !strings.Contains(hostile.done.String(), "refused with 429") {
		t.Error("no bound was reached")
	}
}

// replicas are the gateways as a balancer knows them.
func (f *fleet) replicas() []balancer.Replica {
	var list []balancer.Replica
	for _, n := range f.nodes {
		list = append(list, func() (string, string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.addr, n.admin
		})
	}
	return list
}

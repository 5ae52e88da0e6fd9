package legacy_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/internal/wiretest"
	"taskgate/redisstore"
	"taskgate/shim"
)

// legacyReplicas are two gateways over one Redis, in front of one server.
type legacyReplicas struct {
	*legacyStack          // url is that of a balancer that asks one after the other
	at           []string // the endpoint of each
	gates        []*gateway.Gateway
	store        *redistest.Server
}

// newLegacyReplicas starts them. What the server sees is in legacyStack.
func newLegacyReplicas(t *testing.T, change func(*config.Config)) *legacyReplicas {
	t.Helper()
	redis := redistest.Start(t)
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	server, ev := newPeer()
	web := serveSDK(t, server, nil, nil)
	r := &legacyReplicas{legacyStack: &legacyStack{server: server, session: ev}, store: redis}
	handlers := make([]http.Handler, 2)
	for i, name := range []string{"a", "b"} {
		g := newReplica(t, redis.URL(), name, web, change)
		r.gates = append(r.gates, g)
		handlers[i] = g.Handler()
		front := httptest.NewServer(handlers[i])
		t.Cleanup(front.Close)
		r.at = append(r.at, front.URL+"/up/mcp")
	}
	var turn atomic.Int64
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		handlers[turn.Add(1)%2].ServeHTTP(w, q)
	}))
	t.Cleanup(balancer.Close)
	r.url = balancer.URL + "/up/mcp"
	return r
}

// newReplica makes one gateway with a store and an upstream client of its own.
func newReplica(t *testing.T, redis, name, server string, change func(*config.Config)) *gateway.Gateway {
	t.Helper()
	c := config.Default()
	c.Upstreams = []*config.Upstream{config.NewUpstream("up", "http://up.example/")}
	if change != nil {
		change(c)
	}
	quiet := slog.New(slog.DiscardHandler)
	store, err := redisstore.Open(t.Context(), redis, redisstore.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	up, err := upstream.New(upstream.Config{
		Name: "up", URL: server, Replica: name, Sessions: store.UpstreamSessions("up"),
	})
	if err != nil {
		t.Fatal(err)
	}
	sh, err := shim.New(shim.Options{
		Replica: shim.Replica(name), Store: store, Logger: quiet, CheckAnswer: upstream.CheckAnswer,
		Servers: map[string]shim.Server{"up": {
			Upstream: up,
			Policy: func(tool string) shim.Policy {
				p := c.Upstreams[0].Tool(tool)
				return shim.Policy{Tasks: shim.Mode(p.Tasks), Grace: p.Grace, TTL: p.TTL, PollInterval: p.PollInterval, InputTimeout: p.InputTimeout, Timeout: p.Timeout, Partials: shim.Partials{Content: p.Progress == config.ProgressContent}}
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{
		Config: c, Shim: sh, Upstreams: map[string]upstream.Client{"up": up}, Logger: quiet,
		Sessions: store.Sessions(c.MaxSessions, c.SessionIdle).PerOwner(c.MaxSessionsPerOwner).As(sh.Heart),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- g.Run(ctx) }()
	go func() { done <- sh.Run(ctx) }()
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), wiretest.Patience)
		defer cancel()
		err := errors.Join(g.Close(bounded), sh.Halt(bounded))
		stop()
		for range cap(done) {
			if e := <-done; !errors.Is(e, context.Canceled) {
				err = errors.Join(err, e)
			}
		}
		if err := errors.Join(err, sh.Close(bounded), up.Close(bounded), store.Close()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// on is a client of one replica, in the session of c.
func (r *legacyReplicas) on(t *testing.T, i int, c *rawClient) *rawClient {
	o := newRawClient(t, r.at[i])
	if c != nil {
		o.session = c.session
	}
	return o
}

// begin is a client of one replica in a session of its own, with these capabilities.
func (r *legacyReplicas) begin(t *testing.T, i int, capabilities string) *rawClient {
	t.Helper()
	return r.on(t, i, nil).initialize(capabilities)
}

// beginBoth is a client of both in one session, which has begun at the first.
func (r *legacyReplicas) beginBoth(t *testing.T, capabilities string) (a, b *rawClient) {
	t.Helper()
	a = r.begin(t, 0, capabilities)
	return a, r.on(t, 1, a)
}

// TestReplicasSDK has an ordinary client do what it can while each of its requests
// comes to another replica than the one before.
func TestReplicasSDK(t *testing.T) {
	for _, version := range []string{mcp.Version20251125, mcp.Version20250326} {
		t.Run(version, func(t *testing.T) {
			stack := newLegacyReplicas(t, nil)
			c := stack.connect(t, version)
			checkInitialized(t, c, version)
			for range 2 {
				checkLists(t, c)
				checkCalls(t, c, false)
			}
			checkSubscription(t, stack.legacyStack, c, false)
			checkListChanged(t, stack.legacyStack, c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReplicasSession: a session that began on one replica goes on at the other, and
// ends on both.
func TestReplicasSession(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	a, b := stack.beginBoth(t, "")
	if status, body := b.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); status != http.StatusOK || !strings.Contains(body, `"echo"`) {
		t.Errorf("list: %d %s", status, body)
	}
	if status, body := b.post(`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}`); status != http.StatusOK {
		t.Errorf("level: %d %s", status, body)
	}
	settled(t, "the level on the first replica", func() bool {
		st, err := tableOf(stack.gates[0]).Current(t.Context(), a.session, "up", shim.Principal{})
		if err != nil {
			t.Fatal(err)
		}
		return st.LogLevel == "error"
	})
	a.endSession()
	settled(t, "the end on the second replica", func() bool {
		status, _ := b.post(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
		return status == http.StatusNotFound
	})
}

// TestReplicasCancel: a cancellation reaches the call wherever it runs, and so does
// the end of the session.
func TestReplicasCancel(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	a, b := stack.beginBoth(t, "")
	answered := make(chan string, 1)
	call := func() {
		_, body := a.post(`{"jsonrpc":"2.0","id":"c1","method":"tools/call","params":{"name":"wait"}}`)
		answered <- body
	}
	go call()
	wiretest.Await(t, stack.session.started, "the tool")
	if status, _ := b.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c1"}}`); status != http.StatusAccepted {
		t.Errorf("cancelled: %d", status)
	}
	wiretest.Await(t, stack.session.cancelled, "the cancellation upstream")
	if body := wiretest.Await(t, answered, "the call's end"); strings.Contains(body, `"id":"c1"`) {
		t.Errorf("a cancelled call was answered: %s", body)
	}
	go call()
	wiretest.Await(t, stack.session.started, "the tool")
	b.endSession()
	wiretest.Await(t, stack.session.cancelled, "the cancellation upstream")
	wiretest.Await(t, answered, "the call's end")
}

// settled asks until the answer is yes.
func settled(t *testing.T, what string, yes func() bool) {
	t.Helper()
	give := time.After(wiretest.Patience)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !yes() {
		select {
		case <-again.C:
		case <-give:
			t.Fatalf("timed out: %s", what)
		}
	}
}

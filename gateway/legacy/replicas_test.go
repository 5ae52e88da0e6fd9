package legacy_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/internal/wiretest"
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
	server, ev := newPeer()
	web := serveSDK(t, server, nil, nil)
	r := &legacyReplicas{legacyStack: &legacyStack{server: server, session: ev}, store: redis}
	for _, name := range []string{"a", "b"} {
		c := newConfig(change)
		c.Store = redis.URL()
		one := startReplica(t, name, c, parts{server: upstream.Config{URL: web}})
		r.gates, r.at = append(r.gates, one.Gateway), append(r.at, one.url)
	}
	var turn atomic.Int64
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.gates[turn.Add(1)%2].Handler().ServeHTTP(w, q)
	}))
	t.Cleanup(balancer.Close)
	r.url = balancer.URL + "/up/mcp"
	return r
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

// newPair is two replicas, and a client of both in one session.
func newPair(t *testing.T, change func(*config.Config), capabilities string) (stack *legacyReplicas, a, b *rawClient) {
	t.Helper()
	stack = newLegacyReplicas(t, change)
	a, b = stack.beginBoth(t, capabilities)
	return stack, a, b
}

// TestReplicasSDK has an ordinary client do what it can while each of its requests
// comes to another replica than the one before.
func TestReplicasSDK(t *testing.T) {
	for _, version := range []string{mcp.Version20251125, mcp.Version20250326} {
		t.Run(version, func(t *testing.T) {
			stack := newLegacyReplicas(t, nil)
			c := stack.connectListener(t, version)
			checkLists(t, c)
			checkCalls(t, c)
			checkPeer(t, stack.legacyStack, c, version)
			wiretest.Check(t, c.Close())
		})
	}
}

// TestReplicasSession: a session that began on one replica goes on at the other, and
// ends on both, with its calls.
func TestReplicasSession(t *testing.T) {
	stack, a, b := newPair(t, nil, "")
	b.wantPost(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, http.StatusOK, `"echo"`)
	b.wantPost(`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}`, http.StatusOK)
	waitUntil(t, "the level on the first replica", func() bool {
		st := wiretest.Must(tableOf(stack.gates[0]).Current(t.Context(), a.session, "up", shim.Principal{}))(t)
		return st.LogLevel == "error"
	})
	defer b.beginPost(waitCall)()
	wiretest.Await(t, stack.session.started, "the tool")
	a.endSession()
	wiretest.Await(t, stack.session.cancelled, "the cancellation upstream")
	waitUntil(t, "the end on the second replica", func() bool {
		status, _ := b.post(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
		return status == http.StatusNotFound
	})
}

// waitUntil asks until the answer is yes.
func waitUntil(t *testing.T, what string, yes func() bool) {
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

// wantNext wants this to be the next thing that comes.
func wantNext[T comparable](t *testing.T, from <-chan T, what string, want T) {
	t.Helper()
	if got := wiretest.Await(t, from, what); got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestReplicasUpstream: both replicas use one session with the server. When the
// server has lost it, both go on in another one, with the client's log level. If each
// has opened one, a single one is left.
func TestReplicasUpstream(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	var mu sync.Mutex
	var saw []string
	stack.server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			mu.Lock()
			if method == "initialize" || method == "logging/setLevel" {
				saw = append(saw, method)
			}
			mu.Unlock()
			return next(ctx, method, r)
		}
	})
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		s := strings.Join(saw, " ")
		saw = nil
		return s
	}
	a, b := stack.beginBoth(t, "")
	b.wantPost(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}`, http.StatusOK, `"result"`)
	both := func() {
		t.Helper()
		var calls sync.WaitGroup
		for i, c := range []*rawClient{a, b, a, b} {
			calls.Go(func() {
				body := `{"jsonrpc":"2.0","id":` + string(rune('2'+i)) + `,"method":"tools/call","params":{"name":"echo"}}`
				c.wantPost(body, http.StatusOK, `echo `)
			})
		}
		calls.Wait()
		waitUntil(t, "one session with the server is left", func() bool { return stack.sessions() == 1 })
	}
	both()
	if got := seen(); got != "initialize logging/setLevel" {
		t.Errorf("the server saw %s", got)
	}
	for ss := range stack.server.Sessions() {
		wiretest.Check(t, ss.Close())
	}
	waitUntil(t, "the session is lost", func() bool { return stack.sessions() == 0 })
	both()
	if got := seen(); strings.Count(got, "setLevel") != 1 || strings.Count(got, "initialize") > 2 {
		t.Errorf("afterwards the server saw %s", got)
	}
}

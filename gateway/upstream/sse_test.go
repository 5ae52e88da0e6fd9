package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/upstream/forward"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/sdkpeer"
)

// sseWeb serves a server of the Go SDK over HTTP+SSE, and counts its requests.
type sseWeb struct {
	*httptest.Server
	srv *mcp.Server

	mu   sync.Mutex
	seen []string
}

func newSSEWeb(t *testing.T, srv *mcp.Server) *sseWeb {
	s := &sseWeb{srv: srv}
	handler := mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return srv }, nil)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Method+map[bool]string{true: " in a session"}[r.URL.RawQuery != ""])
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// open is how many connections there are.
func (s *sseWeb) open() int { return len(slices.Collect(s.srv.Sessions())) }

func (s *sseWeb) count(request string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.seen {
		if r == request {
			n++
		}
	}
	return n
}

// ssePeer dials such a server.
func ssePeer(config Config, adjust func(*shimtest.Peer)) shimtest.Dial {
	return func(t *testing.T) *shimtest.Peer {
		c := &counts{}
		stop := make(chan struct{})
		srv := sdkServer(c, false, stop)
		web := newSSEWeb(t, srv)
		t.Cleanup(func() { close(stop) })
		config.URL = web.URL + "/sse"
		p := &shimtest.Peer{Upstream: newTestClient(t, config), Runs: c.get(&c.ran), Cancelled: c.get(&c.gone)}
		p.Change = func() { sdkpeer.Change(srv) }
		adjust(p)
		return p
	}
}

// TestSuiteOverSSE: a server of the Go SDK over HTTP+SSE keeps the contract of the upstream
// client, whether that knows the transport or finds it out.
func TestSuiteOverSSE(t *testing.T) {
	asks := func(p *shimtest.Peer) { p.Asks, p.Detaches = true, true }
	aside := func(p *shimtest.Peer) { p.AsksAside, p.Detaches = true, true }
	for name, dial := range map[string]shimtest.Dial{
		"Auto": ssePeer(Config{}, asks),
		"SSE":  ssePeer(Config{Way: WaySSE, Era: EraLegacy, Shared: true}, aside),
	} {
		t.Run(name, func(t *testing.T) { shimtest.Upstream(t, dial) })
	}
}

// TestSSEIsFoundOnce: the transport is found out by the first call. Each session is a connection,
// which ends with it.
func TestSSEIsFoundOnce(t *testing.T) {
	web := newSSEWeb(t, sdkServer(&counts{}, false, nil))
	h := newTestClient(t, Config{URL: web.URL})
	for range 3 {
		r, err := h.Call(t.Context(), shimtest.Tool("echo", "k", "text", "hallo"), nil)
		if err != nil || shimtest.TextOf(t, r) != "hallo" {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	shimtest.Eventually(t, func() bool { return web.open() == 0 })
	// server/discover, and the first initialize.
	if posts, gets := web.count("POST"), web.count("GET"); posts != 2 || gets != 3 {
		t.Errorf("%d POST and %d GET requests outside of sessions, want 2 and 3", posts, gets)
	}
	s := shim.Session{Key: "a"}
	r := shimtest.Tool("echo", "k", "text", "hallo")
	r.Session = s
	for range 3 {
		must(t, errorOf(h.Call(t.Context(), r, nil)))
	}
	if n := web.open(); n != 1 {
		t.Errorf("%d connections in one session", n)
	}
	h.EndSession(t.Context(), "a")
	shimtest.Eventually(t, func() bool { return web.open() == 0 })
}

// TestSSESessionsOfReplicas: a connection is of no use to another replica. Each has its own, and
// nothing of it is in the store.
func TestSSESessionsOfReplicas(t *testing.T) {
	web := newSSEWeb(t, sdkServer(&counts{}, false, nil))
	r := shimtest.Tool("echo", "k", "text", "hallo")
	r.Session = shim.Session{Key: "client", Legacy: true, Shared: true}
	shared := newSharedMap()
	var all []*ServerClient
	for range 2 {
		h := newTestClient(t, Config{URL: web.URL, Sessions: shared})
		all = append(all, h)
		for range 2 {
			must(t, errorOf(h.Call(t.Context(), r, nil)))
		}
	}
	if n := web.open(); n != 2 {
		t.Errorf("%d connections of two replicas", n)
	}
	if shared.length() != 0 {
		t.Error("a session that no other replica can use is stored")
	}
	for i, h := range all {
		h.EndSession(t.Context(), "client")
		shimtest.Eventually(t, func() bool { return web.open() == 1-i })
	}
}

// TestSSEBecomesAnother: a server that is started again with another transport is found out.
func TestSSEBecomesAnother(t *testing.T) {
	srv := sdkServer(&counts{}, false, nil)
	ways := []http.Handler{
		mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return srv }, nil),
		mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, nil),
	}
	way := ways[0]
	var mu sync.Mutex
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h := way
		mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	h := newTestClient(t, Config{URL: web.URL, Shared: true})
	for i := range 6 {
		mu.Lock()
		way = ways[i%2]
		mu.Unlock()
		for ss := range srv.Sessions() {
			_ = ss.Close()
		}
		web.CloseClientConnections()
		shimtest.Eventually(t, func() bool { // calls that meet a connection or a session that is gone are not sent again
			r, err := h.Call(t.Context(), shimtest.Tool("echo", "k", "text", fmt.Sprint(i)), nil)
			return err == nil && r.Error == nil && shimtest.TextOf(t, r) == fmt.Sprint(i)
		})
	}
	for ss := range srv.Sessions() {
		_ = ss.Close()
	}
}

// TestWays: http looks for nothing else.
func TestWays(t *testing.T) {
	web := newSSEWeb(t, sdkServer(&counts{}, false, nil))
	_, err := newTestClient(t, Config{URL: web.URL, Way: WayHTTP}).Call(context.Background(), shimtest.Tool("echo", "k"), nil)
	if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != shim.KindProtocol || web.count("GET") != 0 {
		t.Errorf("%v after %d GET requests", err, web.count("GET"))
	}
}

// TestSSERefusesTheToken: a server that refuses the event stream refuses the client's token, and the client hears
// how it is to sign in.
func TestSSERefusesTheToken(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(web.Close)
	h := newTestClient(t, Config{URL: web.URL, Way: WaySSE})
	w := &wallet{own: "Bearer old"}
	r := shimtest.Tool("echo", "k")
	r.Session = shim.Session{Key: "client", Legacy: true, Principal: "alice"}
	_, err := h.Call(forward.With(t.Context(), &forward.Parts{Credential: w}), r, nil)
	var refusal *forward.ServerRefusal
	if !errors.As(err, &refusal) || !slices.Equal(refusal.Challenges, []string{"Bearer", "seen"}) || !slices.Contains(w.heard, "Bearer old 401") {
		t.Errorf("%v, heard %q", err, w.heard)
	}
}

// TestSSEForwardsTheHost: a server that is asked by the name that the client has used is so for all messages, and may
// name its endpoint by that.
func TestSSEForwardsTheHost(t *testing.T) {
	var mu sync.Mutex
	var hosts []string
	handler := mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return sdkServer(&counts{}, false, nil) }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		hosts = append(hosts, r.Method+" "+r.Host)
		mu.Unlock()
		w = absolute{w, "http://" + r.Host}
		r.Host = "localhost" // the SDK takes no other name here
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	h := newTestClient(t, Config{URL: web.URL + "/sse", Way: WaySSE})
	ctx := forward.With(t.Context(), &forward.Parts{Host: "mcp.example.com"})
	if r, err := h.Call(ctx, shimtest.Tool("echo", "k", "text", "hallo"), nil); err != nil || shimtest.TextOf(t, r) != "hallo" {
		t.Errorf("%+v, %v", r, err)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(hosts)
	if got := slices.Compact(hosts); !slices.Equal(got, []string{"GET mcp.example.com", "POST mcp.example.com"}) {
		t.Errorf("the server was asked by %q", got)
	}
}

// absolute names the endpoint of an event stream as a server does that knows its name by Host.
type absolute struct {
	http.ResponseWriter
	origin string
}

func (a absolute) Write(b []byte) (int, error) {
	const head = "event: endpoint\ndata: "
	if at, ok := strings.CutPrefix(string(b), head); ok {
		if _, err := a.ResponseWriter.Write([]byte(head + a.origin + at)); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return a.ResponseWriter.Write(b)
}

func (a absolute) Flush() { a.ResponseWriter.(http.Flusher).Flush() }

// TestSSECancelledBeforeItGoesOut: a call that is cancelled while there is no connection for it yet does not go out
// later, when nobody would cancel it any more.
func TestSSECancelledBeforeItGoesOut(t *testing.T) {
	c := &counts{}
	stop := make(chan struct{})
	defer close(stop)
	web := newSSEWeb(t, sdkServer(c, false, stop))
	h := newTestClient(t, Config{URL: web.URL, Way: WaySSE, Shared: true})
	baseOf(h).DisableKeepAlives = true
	must(t, errorOf(h.Call(t.Context(), shimtest.Tool("echo", "k", "text", "hallo"), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	late := make(chan struct{})
	dial := baseOf(h).DialContext
	baseOf(h).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		cancel()
		<-late
		return dial(context.WithoutCancel(ctx), network, address)
	}
	if _, err := h.Call(ctx, shimtest.Tool("wait", "w"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the call: %v", err)
	}
	posts := web.count("POST in a session")
	close(late)
	pauseFor(t, 200*time.Millisecond) // for what must not come
	if n := web.count("POST in a session"); n != posts {
		t.Errorf("%d messages went out after the end of the call, ran %d times, %d cancelled", n-posts, c.get(&c.ran)("w"), c.get(&c.gone)("w"))
	}
}

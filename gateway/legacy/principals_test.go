package legacy_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/forward"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/internal/wiretest"
	"taskgate/shim"
	"taskgate/shim/engine"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// upstreamKey is the gateway's own credential for the server.
const upstreamKey = "Bearer of-the-gateway"

// opLog counts what is done in the stores. What a name in it is about is left
// out: the names of a foreign and of an unknown thing differ.
type opLog struct {
	mu  sync.Mutex
	ops []string
}

func (l *opLog) note(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, fmt.Sprintf(format, a...))
}

// take returns what was noted since the last call.
func (l *opLog) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := strings.Join(l.ops, "; ")
	l.ops = nil
	return s
}

// countedStore notes every use of a store that a client's request may make.
type countedStore struct {
	shim.Store
	*opLog
}

func (s countedStore) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	s.note("get %v", part)
	return s.Store.Get(ctx, id, part)
}

func (s countedStore) List(ctx context.Context, key, cursor string, n int) ([]shim.Task, string, error) {
	s.note("list %d", n)
	return s.Store.List(ctx, key, cursor, n)
}

func (s countedStore) Apply(ctx context.Context, id shim.ID, l *shim.Lease, c shim.Change) (shim.Task, error) {
	s.note("apply %v", c.To)
	return s.Store.Apply(ctx, id, l, c)
}

func (s countedStore) Batches(ctx context.Context, id shim.ID, skip int64) ([]json.RawMessage, error) {
	s.note("batches")
	return s.Store.Batches(ctx, id, skip)
}

// countedSessions does the same for client sessions.
type countedSessions struct {
	legacy.Sessions
	*opLog
}

func (s countedSessions) Get(ctx context.Context, id string) ([]byte, int64, error) {
	s.note("session get")
	return s.Sessions.Get(ctx, id)
}

func (s countedSessions) Make(ctx context.Context, id, owner, address string, state []byte) (int64, error) {
	s.note("session make")
	return s.Sessions.Make(ctx, id, owner, address, state)
}

func (s countedSessions) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	s.note("session put")
	return s.Sessions.Put(ctx, id, rev, state)
}

func (s countedSessions) Delete(ctx context.Context, id string) error {
	s.note("session delete")
	return s.Sessions.Delete(ctx, id)
}

// house is the gateway with keys, on a socket, between clients that hold them and
// a real server that notes what it is sent. Its tool "wait" is always a task.
type house struct {
	t      *testing.T
	url    string
	other  string // of the second replica
	behind string // of the server
	ops    *opLog
	events *stackEvents
	peer   *sdk.Server
	shims  []*engine.Shim
	// refuses says which requests the server answers with 401, or with refusal; nil for none.
	refuses func(r *http.Request, body []byte) bool
	refusal int
	// stateless has the server know no sessions, and era is that in which it is spoken to.
	stateless bool
	era       upstream.EraChoice
	serial    int // of the last legacy request
	// sign makes a request one of whoever has the key.
	sign func(r *http.Request, key string)
	// secrets must not reach the server.
	secrets []string
	// issuer and server are those of passthrough.
	issuer  *wiretest.Issuer
	server  string
	log     bytes.Buffer // of the gateway; as records
	records bytes.Buffer // of the audit; to be read when the requests are over
	logger  *slog.Logger // writes the log
	audit   *slog.Logger // writes the records

	mu       sync.Mutex
	received []received
}

// received is a request as the server behind the gateway sees it.
type received struct {
	header http.Header
	url    string
	body   string
}

// eachHouse runs a test with each way to sign in: what is promised to a principal holds
// whatever it is known by.
func eachHouse(t *testing.T, run func(t *testing.T, h *house)) {
	for name, signIn := range map[string]func(*house, *config.Config){
		"keys": (*house).withKeys, "jwt": (*house).withTokens, "trusted header": (*house).withHeader,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, newHouseOf(t, signIn))
		})
	}
}

func (h *house) withKeys(c *config.Config) {
	wiretest.WithKeys(c)
	for _, key := range []string{wiretest.AliceKey, wiretest.AliceNext, wiretest.BobKey} {
		h.secrets = append(h.secrets, key, config.HashKey(key))
	}
	h.sign = func(r *http.Request, key string) { r.Header.Set("Authorization", "Bearer "+key) }
}

// subjects are the callers of the keys, as other ways to sign in know them.
var subjects = map[string]string{wiretest.AliceKey: "alice", wiretest.AliceNext: "alice", wiretest.BobKey: "bob"}

// withTokens gives each key a token of its own.
func (h *house) withTokens(c *config.Config) {
	issuer := wiretest.NewIssuer(h.t, "")
	wiretest.WithTokens(c, issuer)
	tokens := map[string]string{}
	for key, subject := range subjects {
		tokens[key] = issuer.Token(subject, map[string]any{"jti": key})
		h.secrets = append(h.secrets, tokens[key], tokens[key][strings.LastIndex(tokens[key], ".")+1:])
	}
	h.sign = func(r *http.Request, key string) { r.Header.Set("Authorization", "Bearer "+tokens[key]) }
}

// withHeader has a proxy in front say who calls.
func (h *house) withHeader(c *config.Config) {
	c.Auth.TrustedHeader = &config.TrustedHeader{Name: "X-User", From: []string{"127.0.0.1"}}
	h.secrets = []string{"X-User", "alice", "bob"}
	h.sign = func(r *http.Request, key string) { r.Header.Set("X-User", subjects[key]) }
}

func newHouseOf(t *testing.T, signIn func(*house, *config.Config)) *house {
	t.Helper()
	h, c := newHouse(t, signIn)
	h.url = h.serveFront("embedded", "r", c)
	return h
}

// newHouses has two replicas, h.url and h.other, with one Redis.
func newHouses(t *testing.T, signIn func(*house, *config.Config)) *house {
	t.Helper()
	redis := redistest.Start(t)
	h, c := newHouse(t, signIn)
	h.url, h.other = h.serveFront(redis.URL(), "r", c), h.serveFront(redis.URL(), "s", c)
	return h
}

// newHouse has the server, and the configuration of the gateways in front of it.
func newHouse(t *testing.T, signIn func(*house, *config.Config)) (*house, *config.Config) {
	t.Helper()
	h := &house{t: t, ops: &opLog{}}
	h.peer, h.events = newPeer()
	h.logger, h.audit = slog.New(slog.NewTextHandler(&h.log, nil)), slog.New(slog.NewTextHandler(&h.records, nil))
	c := newConfig(nil)
	signIn(h, c)
	h.behind = serveSDK(t, h.peer, &sdk.StreamableHTTPOptions{Stateless: h.stateless}, func(handler http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			h.mu.Lock()
			h.received = append(h.received, received{r.Header.Clone(), r.URL.String(), string(body)})
			h.mu.Unlock()
			if h.refuses != nil && h.refuses(r, body) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				w.WriteHeader(cmp.Or(h.refusal, http.StatusUnauthorized))
				return
			}
			handler.ServeHTTP(w, r)
		})
	})
	return h, c
}

// serveFront starts a replica.
func (h *house) serveFront(at, name string, of *config.Config) string {
	h.t.Helper()
	c := *of
	c.Store = at
	r := startReplica(h.t, name, &c, parts{
		server: upstream.Config{URL: h.behind, Era: h.era, Headers: http.Header{"Authorization": {upstreamKey}}},
		idle:   true,
		shim: func(o *engine.Options) {
			o.Store, o.Logger = countedStore{o.Store, h.ops}, h.logger
			o.Servers["up"] = shim.Server{Upstream: o.Servers["up"].Upstream, SealToken: forward.SealToken, BringToken: forward.BringToken, MaxTasks: 10, MaxTasksPerOwner: 10, Policy: func(tool string, _ shim.Hints) shim.Policy {
				p := shim.Policy{Tasks: shim.Never, TTL: time.Hour, PollInterval: time.Second, Timeout: time.Hour}
				if tool == "wait" || tool == "colour" {
					p.Tasks = shim.Always
				}
				return p
			}}
		},
		gateway: func(o *gateway.Options) {
			o.Logger, o.Audit, o.Sessions = h.logger, h.audit, countedSessions{o.Sessions, h.ops}
		},
	})
	h.shims = append(h.shims, r.shim)
	return r.url
}

// listen has answers wake whoever waits for them, at every replica.
func (h *house) listen() {
	running, stop := context.WithCancel(h.t.Context())
	var loops sync.WaitGroup
	for _, sh := range h.shims {
		loops.Go(func() { _ = sh.Run(running) })
	}
	h.t.Cleanup(func() {
		stop()
		loops.Wait()
	})
}

// sent returns what the server has received since the last call.
func (h *house) sent() []received {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.received
	h.received = nil
	return out
}

// caller is a client with a key.
type caller struct {
	h       *house
	key     string
	session string // legacy
	asks    bool   // it says that it can be asked
	there   bool   // it goes to the second replica
}

func (h *house) caller(key string) *caller { return &caller{h: h, key: key} }

// reply is all of a response that could tell something.
type reply struct {
	status int
	header http.Header
	body   string
	ops    string // what was done in the stores for it
}

func (r reply) String() string {
	return fmt.Sprintf("%d %v [%s]\n%s", r.status, r.header, r.ops, r.body)
}

// want wants this status, and these texts.
func (r reply) want(t *testing.T, status int, texts ...string) {
	t.Helper()
	wantAnswer(t, r.status, r.body, status, texts...)
}

// do sends a request and reads the response to its end.
func (c *caller) do(method, body string, header http.Header) reply {
	c.h.t.Helper()
	ctx, cancel := context.WithTimeout(c.h.t.Context(), wiretest.Patience) // a stream that opens is none that ends
	defer cancel()
	url := c.h.url
	if c.there {
		url = c.h.other
	}
	r := wiretest.Must(http.NewRequestWithContext(ctx, method, url, strings.NewReader(body)))(c.h.t)
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	maps.Copy(r.Header, header)
	c.h.sign(r, c.key)
	if c.session != "" {
		r.Header.Set(mcp.HeaderSession, c.session)
	}
	c.h.ops.take()
	resp := wiretest.Must(http.DefaultClient.Do(r))(c.h.t)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.h.t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	resp.Header.Del("Date")
	return reply{resp.StatusCode, resp.Header, string(b), c.h.ops.take()}
}

// modern sends a request of 2026-07-28 with the tasks extension.
func (c *caller) modern(method, params string) reply {
	c.h.t.Helper()
	meta := wiretest.Macros.Replace("$TASKS")
	if c.asks {
		meta = strings.Replace(meta, `"extensions":`, `"elicitation":{},"extensions":`, 1)
	}
	return c.send(method, params, meta)
}

// send sends a request of 2026-07-28 with this _meta.
func (c *caller) send(method, params, meta string) reply {
	c.h.t.Helper()
	body := `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `"_meta":{` + meta + `}}}`
	msg := wiretest.Must(jsonrpc.Parse([]byte(body)))(c.h.t)
	header := http.Header{}
	wiretest.CorrectHeaders(header, msg)
	return c.do("POST", body, header)
}

// legacy sends a request in the caller's session.
func (c *caller) legacy(method, params string) reply {
	c.h.t.Helper()
	c.h.serial++ // an id is used once in a session
	id := fmt.Sprintf(`"id":%d,`, c.h.serial)
	r := c.do("POST", `{"jsonrpc":"2.0",`+id+`"method":"`+method+`","params":{`+params+`}}`, nil)
	r.header.Del("Content-Length")
	r.body = strings.Replace(r.body, id, "", 1)
	return r
}

// initialize opens a legacy session.
func (c *caller) initialize() *caller {
	c.h.t.Helper()
	r := c.do("POST", wiretest.InitializeBody, nil)
	if c.session = r.header.Get(mcp.HeaderSession); c.session == "" {
		c.h.t.Fatalf("no session: %v", r)
	}
	return c
}

// task calls the tool that is always a task, and returns its id once it runs.
func (c *caller) task() string {
	c.h.t.Helper()
	r := c.modern("tools/call", `"name":"wait",`)
	id, ok := jsonrpc.GetString([]byte(r.body), "result", "taskId")
	if !ok {
		c.h.t.Fatalf("no task: %v", r)
	}
	wiretest.Await(c.h.t, c.h.events.started, "the tool")
	return id
}

// awaitStatus asks for a task until it has this status.
func (c *caller) awaitStatus(id, want string) {
	c.h.t.Helper()
	waitUntil(c.h.t, "the task is "+want, func() bool {
		return field(c.modern("tasks/get", `"taskId":"`+id+`",`), "status") == want
	})
}

// field is a text in the result of a reply.
func field(r reply, name string) string {
	text, _ := jsonrpc.GetString([]byte(r.body), "result", name)
	return text
}

const strange = "5b0d3d2e-8a37-4b1e-9a57-0d9a3a1c9f00" // the id of nothing

// wantAlike fails unless a foreign thing was answered as one that does not exist, and
// cost as much.
func wantAlike(t *testing.T, what string, foreign, unknown reply) {
	t.Helper()
	if foreign.String() != unknown.String() {
		t.Errorf("%s\nforeign %v\nunknown %v", what, foreign, unknown)
	}
}

// TestForeignTasks: to everyone but its owner a task does not exist, neither in
// what is said nor in what is done (Z6, T47, L37).
func TestForeignTasks(t *testing.T) {
	eachOwner(t, func(t *testing.T, h *house) {
		alice, next, bob := h.caller(wiretest.AliceKey), h.caller(wiretest.AliceNext), h.caller(wiretest.BobKey)
		done := alice.task()
		h.events.proceed <- struct{}{}
		alice.awaitStatus(done, "completed")

		running, his := alice.task(), bob.task()
		cursor := alice.cursors(done)
		guest := bob.initialize()
		for _, try := range taskTries("q", cursor) {
			ask := func(id string) reply { return try.do(h.inSession(wiretest.BobKey, guest.session), id) }
			foreign := ask(done)
			wantAlike(t, try.name, foreign, ask(strange))
			switch try.name {
			case mcp.MethodListen:
			case "cursor":
				if !strings.Contains(foreign.body, his) || strings.Contains(foreign.body, running) {
					t.Errorf("after her cursor: %v", foreign)
				}
			default:
				if !strings.Contains(foreign.ops, "get") || !strings.Contains(foreign.body, "unknown task") {
					t.Errorf("%s: %v", try.name, foreign)
				}
				if r := ask(running); !strings.Contains(r.body, "unknown task") {
					t.Errorf("%s of a running task: %v", try.name, r)
				}
			}
		}
		if r := guest.legacy("tasks/list", ""); r.status != http.StatusOK || strings.Contains(r.body, done) || strings.Contains(r.body, running) {
			t.Errorf("listed to another: %v", r)
		}

		home := h.caller(wiretest.AliceNext).initialize() // the tasks of the principal, whatever session made them
		if r := home.legacy("tasks/list", ""); !strings.Contains(r.body, done) || !strings.Contains(r.body, running) {
			t.Errorf("not listed to its owner: %v", r)
		}
		home.legacy("tasks/result", `"taskId":"`+done+`"`).want(t, http.StatusOK, `"result":`)

		next.awaitStatus(running, "working") // a new key is the same principal
		if r := next.modern("tasks/cancel", `"taskId":"`+running+`",`); r.status != http.StatusOK || strings.Contains(r.body, `"error"`) {
			t.Errorf("her own task: %v", r)
		}
		wiretest.Await(t, h.events.cancelled, "the cancellation upstream")
	})
}

// TestForeignSessions: a session id of somebody else is an unknown one (Z7), and
// the session goes on.
func TestForeignSessions(t *testing.T) {
	eachOwner(t, func(t *testing.T, h *house) {
		alice := h.caller(wiretest.AliceKey).initialize()
		for _, try := range sessionTries("1", strange+"/q") {
			r := try.do(h.caller(wiretest.BobKey), alice.session)
			wantAlike(t, try.name, r, try.do(h.caller(wiretest.BobKey), strange))
			if r.status != http.StatusNotFound || r.ops != "session get" {
				t.Errorf("%s: %v", try.name, r)
			}
		}
		alice.legacy("tools/call", `"name":"echo"`).want(t, http.StatusOK, "echo")
		rotated := &caller{h: h, key: wiretest.AliceNext, session: alice.session}
		rotated.do("DELETE", "", nil).want(t, http.StatusOK)
	})
}

// TestKeysStayHere: no key of a client reaches the server, in any form; what does
// is the gateway's own credential (Z1). Each principal has one upstream session,
// whichever of its keys it uses (design.md 0.16).
func TestKeysStayHere(t *testing.T) {
	eachHouse(t, func(t *testing.T, h *house) {
		sessions := map[string][]string{}
		for _, key := range []string{wiretest.AliceKey, wiretest.BobKey, wiretest.AliceNext} {
			h.sent()
			for range 2 {
				h.caller(key).modern("tools/call", `"name":"echo","arguments":{},`).want(t, http.StatusOK, "echo")
			}
			for _, r := range h.sent() {
				h.wantClean(r)
				if strings.Contains(r.body, "tools/call") {
					sessions[key] = append(sessions[key], r.header.Get(mcp.HeaderSession))
				}
			}
		}
		alice := append(sessions[wiretest.AliceKey], sessions[wiretest.AliceNext]...)
		if one := slices.Compact(slices.Clone(alice)); len(alice) != 4 || len(one) != 1 || one[0] == "" {
			t.Errorf("alice's calls were made in %q", alice)
		}
		if bob := sessions[wiretest.BobKey]; len(bob) != 2 || bob[0] != bob[1] || bob[0] == alice[0] {
			t.Errorf("bob's calls were made in %q, alice's in %q", bob, alice)
		}

		legacy := h.caller(wiretest.AliceKey).initialize()
		legacy.legacy("tools/call", `"name":"echo"`)
		legacy.legacy("tools/list", "")
		legacy.do("DELETE", "", nil)
		seen := h.sent()
		for _, r := range seen {
			h.wantClean(r)
		}
		if len(seen) < 3 {
			t.Errorf("the server has seen %d requests", len(seen))
		}
	})
}

// wantClean checks that nothing of a request comes from a client's key.
func (h *house) wantClean(r received) {
	h.t.Helper()
	if got := r.header.Values("Authorization"); len(got) != 1 || got[0] != upstreamKey {
		h.t.Errorf("the server was sent %q", got)
	}
	all := fmt.Sprint(r.header, r.url, r.body)
	for _, secret := range h.secrets {
		if strings.Contains(all, secret) {
			h.t.Errorf("the server was sent what its client signs in by: %s", all)
		}
	}
}

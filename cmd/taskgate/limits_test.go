package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// limit is a key of the configuration that bounds something, and how it is reached. A new key
// needs an entry in limits, and a row in docs/operations.md.
type limit struct {
	// set makes the limit small: there is room for one.
	set func(c *config.Config, u *config.Upstream)
	// first is a request that takes the room, and goes on; second is one too many. "hang" is
	// a tool that does not end.
	first, second string
	// status is that of the answer to the second one; 0: the connection is closed.
	status int
	// owner says that the limit is of each principal: another one finds room.
	owner bool
	// always says that the second request is too large at any time, also without the first one.
	always bool
}

const (
	hangs      = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang","arguments":{"key":"hang"},"_meta":{$META}}}`
	hangsTask  = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang","arguments":{"key":"hang"},"_meta":{$TASKS}}}`
	listens    = `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{$META}}}`
	discovers  = `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{$META}}}`
	statusBusy = http.StatusOK // of an answer to a call that was taken, and is refused for its tool or server
)

// listensTo subscribes to resources.
func listensTo(uris ...string) string {
	list, _ := json.Marshal(uris)
	return `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":` + string(list) + `},"_meta":{$META}}}`
}

// limits are all limits that refuse a client, by their key.
var limits = map[string]limit{
	"max_connections": {set: func(c *config.Config, _ *config.Upstream) { c.Limits.MaxConnections = 1 }, first: hangs, second: discovers},

	"max_calls":           {set: func(c *config.Config, _ *config.Upstream) { c.Limits.MaxCalls = 1 }, first: hangs, second: discovers, status: 503},
	"max_calls_per_owner": {set: func(c *config.Config, _ *config.Upstream) { c.MaxCallsPerOwner = 1 }, first: hangs, second: discovers, status: 429, owner: true},

	"max_streams":           {set: func(c *config.Config, _ *config.Upstream) { c.Limits.MaxStreams = 1 }, first: listens, second: listens, status: 503},
	"max_streams_per_owner": {set: func(c *config.Config, _ *config.Upstream) { c.Limits.MaxStreamsPerOwner = 1 }, first: listens, second: listens, status: 429, owner: true},

	"rate": {set: func(c *config.Config, _ *config.Upstream) { c.Rate = 1 }, first: hangs, second: discovers, status: 429, owner: true},

	"max_sessions": {set: func(c *config.Config, _ *config.Upstream) { c.Limits.MaxSessions = 1 },
		first: wiretest.InitializeBody, second: wiretest.InitializeBody, status: 503},

	"max_sessions_per_owner": {set: func(c *config.Config, _ *config.Upstream) { c.MaxSessionsPerOwner = 1 },
		first: wiretest.InitializeBody, second: wiretest.InitializeBody, status: 429, owner: true},
	"max_subscriptions": {first: listensTo("test://a"), second: listensTo(slices.Repeat([]string{"test://a"}, endpoint.MaxSubscriptions+1)...), status: statusBusy, always: true},
	"max_uri":           {first: listensTo("test://a"), second: listensTo("test://" + strings.Repeat("a", endpoint.MaxURI)), status: statusBusy, always: true},

	"max_tasks": {set: func(c *config.Config, u *config.Upstream) {
		c.Limits.MaxTasks, u.Defaults.Tasks = 1, config.TasksRequired
	}, first: hangsTask, second: hangsTask, status: statusBusy},
	"max_tasks_per_owner": {set: func(_ *config.Config, u *config.Upstream) {
		u.MaxTasksPerOwner, u.Defaults.Tasks = 1, config.TasksRequired
	}, first: hangsTask, second: hangsTask, status: statusBusy, owner: true},

	// A task that runs has 16 KiB set aside.
	"max_kept_bytes": {set: func(c *config.Config, u *config.Upstream) {
		c.Limits.MaxKeptBytes, u.Defaults.Tasks = 20*config.KiB, config.TasksRequired
	}, first: hangsTask, second: hangsTask, status: statusBusy},
	"max_kept_bytes_per_owner": {set: func(c *config.Config, u *config.Upstream) {
		c.Limits.MaxKeptBytesPerOwner, u.Defaults.Tasks = 20*config.KiB, config.TasksRequired
	}, first: hangsTask, second: hangsTask, status: statusBusy, owner: true},

	"concurrency": {set: func(_ *config.Config, u *config.Upstream) { u.Concurrency = 1 }, first: hangs, second: hangs, status: statusBusy},
	// A client that declares something else has a session with the server of its own.
	"max_processes": {set: func(_ *config.Config, u *config.Upstream) {
		u.Command, u.Env, u.URL, u.MaxProcesses = self(), map[string]string{hangingVar: u.URL}, "", 1
		u.Era = config.EraLegacy
	}, first: hangs, second: hangsElsewhere, status: statusBusy},
}

// hangsElsewhere is hangs by a client that declares something else.
var hangsElsewhere = strings.Replace(wiretest.Macros.Replace(hangs), `Capabilities":{}`, `Capabilities":{"elicitation":{}}`, 1)

// hangingVar makes this program a server over stdio (hanging). It is the URL of the server of the
// test.
const hangingVar = "TASKGATE_TEST_HANGING"

// self is this program.
func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// hanging is a server of 2025-11-25 over stdio with a tool that does not end, and tells the server
// of the test that it has begun.
func hanging(server string) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		id, _ := jsonrpc.Get(lines.Bytes(), "id")
		method, _ := jsonrpc.GetString(lines.Bytes(), "method")
		switch method {
		case mcp.MethodInitialize:
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"hanging","version":"1"}}}`+"\n", id)
		case mcp.MethodToolsList:
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"hang","inputSchema":{"type":"object"}}]}}`+"\n", id)
		case mcp.MethodToolsCall:
			tellBegun(server)
		}
	}
}

// tellBegun tells the server of the test that the tool has begun.
func tellBegun(server string) {
	resp, err := http.Post(server, mcp.TypeJSON, strings.NewReader(`{"jsonrpc":"2.0","method":"`+began+`","params":{"arguments":{"key":"hang"}}}`))
	if err != nil {
		panic(err)
	}
	resp.Body.Close()
}

// began is what hanging tells the server of the test.
const began = "test/began"

// TestLimits drives each limit over its bound: the client gets an error that says so and when to
// come again, and the refusal is counted once, under the key of the limit.
func TestLimits(t *testing.T) {
	t.Parallel() // one call waits for its turn, and none of the tests for it
	for key, l := range limits {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			w := newLimitWorld(t, l)
			w.begin(l.first)
			if l.first == wiretest.InitializeBody {
				w.listen()
			}
			if l.status == 0 {
				w.wantClosed(l.second)
			} else {
				w.wantRefused(key, l)
			}
			if got := w.refusals(); got[key] != 1 || len(got) != 1 {
				t.Errorf("counted: %v", got)
			}
			if l.owner {
				w.key = wiretest.BobKey
				w.begin(l.first)
			}
		})
	}
}

// TestLargeMessageIsCounted: so is a message that is larger than max_body.
func TestLargeMessageIsCounted(t *testing.T) {
	w := newLimitWorld(t, limit{set: func(c *config.Config, _ *config.Upstream) { c.MaxBody = config.KiB }})
	if resp, body := w.post(t.Context(), strings.Repeat(" ", 1<<10)+discovers); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%s: %s", resp.Status, body)
	}
	if got := w.refusals(); got["max_body"] != 1 || len(got) != 1 {
		t.Errorf("counted: %v", got)
	}
}

// wantRefused wants the second request to be refused.
func (w *limitWorld) wantRefused(key string, l limit) {
	w.t.Helper()
	resp, body := w.post(w.t.Context(), l.second)
	for key == wire.KeyRate && resp.StatusCode == http.StatusOK { // there was a pause before it
		resp, body = w.post(w.t.Context(), l.second)
	}
	code, _ := jsonrpc.Get(body, "error", "code")
	message, _ := jsonrpc.GetString(body, "error", "message")
	after, _ := jsonrpc.Get(body, "error", "data", "retryAfterMs")
	ms, err := strconv.Atoi(string(after))
	if resp.StatusCode != l.status || string(code) != "-32603" || !strings.HasPrefix(message, "too many ") || (err != nil || ms <= 0) != l.always {
		w.t.Fatalf("%s: %s, %s", key, resp.Status, body)
	}
	want := ""
	if l.status != statusBusy {
		want = strconv.Itoa((ms + 999) / 1000)
	}
	if got := resp.Header.Get("Retry-After"); got != want {
		w.t.Errorf("%s: Retry-After is %q, want %q, for %d ms", key, got, want, ms)
	}
}

// wantClosed wants a connection that is one too many to be closed before it is answered.
func (w *limitWorld) wantClosed(body string) {
	w.t.Helper()
	resp, err := w.do(w.t.Context(), &http.Transport{DisableKeepAlives: true}, body)
	if err == nil {
		resp.Body.Close()
		w.t.Errorf("answered: %s", resp.Status)
	}
}

// limitWorld is a gateway with one small limit, and a server with a tool that does not end.
type limitWorld struct {
	t       *testing.T
	server  *fake.Server
	gateway *running
	key     string // of the caller; "" is anonymous
	session string // that was made last
	runs    int
}

func newLimitWorld(t *testing.T, l limit) *limitWorld {
	w := &limitWorld{t: t, server: fake.New(t, fake.Modern)}
	w.server.Capabilities(`{"tools":{"listChanged":true},"resources":{"subscribe":true}}`)
	w.server.Tool("hang", fake.Hanging(nil))
	w.server.On(began, func(x *fake.Exchange) { x.Run() })
	w.gateway = runServer(t, w.server.URL, func(c *config.Config) {
		c.DrainTimeout = 0
		if l.set != nil {
			l.set(c, c.Upstreams[0])
		}
		if l.owner {
			wiretest.WithKeys(c)
		}
	})
	if l.owner {
		w.key = wiretest.AliceKey
	}
	return w
}

// do sends a request on a connection of a transport.
func (w *limitWorld) do(ctx context.Context, by http.RoundTripper, body string) (*http.Response, error) {
	body = wiretest.Macros.Replace(body)
	msg, err := jsonrpc.Parse([]byte(body))
	must(w.t, err)
	h := http.Header{"Content-Type": {mcp.TypeJSON}, "Accept": {mcp.TypeAccept}}
	if msg.Method != mcp.MethodInitialize {
		wiretest.CorrectHeaders(h, msg)
	}
	if w.key != "" {
		h.Set("Authorization", "Bearer "+w.key)
	}
	return by.RoundTrip(wiretest.ClientRequest(ctx, "http://"+w.gateway.s.listener.Addr().String()+"/mcp", h, []byte(body)))
}

// post sends a request and reads the answer.
func (w *limitWorld) post(ctx context.Context, body string) (*http.Response, []byte) {
	w.t.Helper()
	resp, err := w.do(ctx, http.DefaultTransport, body)
	must(w.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(w.t, err)
	return resp, text
}

// begin sends a request that is not refused, and returns when it has taken its room, which it
// keeps until the test ends.
func (w *limitWorld) begin(body string) {
	w.t.Helper()
	if body != hangs { // it has its room once it is answered, or its stream has begun
		resp, err := w.do(w.t.Context(), http.DefaultTransport, body)
		must(w.t, err)
		w.t.Cleanup(func() { resp.Body.Close() })
		first, err := bufio.NewReader(resp.Body).ReadString('}')
		if err != nil || resp.StatusCode != http.StatusOK || strings.Contains(first, "error") {
			w.t.Fatalf("%s %s: %s, %v", body, first, resp.Status, err)
		}
		w.session = resp.Header.Get(mcp.HeaderSession)
		return
	}
	ctx, leave := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := w.do(ctx, http.DefaultTransport, body); err == nil {
			resp.Body.Close()
		}
	}()
	w.t.Cleanup(func() { leave(); <-done })
	w.runs++
	w.gateway.until("the call reaches the server", func() bool { return w.server.Runs("hang") >= w.runs })
}

// listen opens the stream of the session, so that it makes no room for another one.
func (w *limitWorld) listen() {
	w.t.Helper()
	h := http.Header{"Accept": {mcp.TypeSSE}, mcp.HeaderSession: {w.session}}
	if w.key != "" {
		h.Set("Authorization", "Bearer "+w.key)
	}
	r := wiretest.ClientRequest(w.t.Context(), "http://"+w.gateway.s.listener.Addr().String()+"/mcp", h, nil)
	r.Method = http.MethodGet
	resp, err := http.DefaultTransport.RoundTrip(r)
	must(w.t, err)
	w.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		w.t.Fatal("the stream of the session:", resp.Status)
	}
}

var refusalLine = regexp.MustCompile(`(?m)^taskgate_limit_refusals_total\{.*taskgate_limit="(\w+)".*\} (\d+)$`)

// refusals are what was counted, by key.
func (w *limitWorld) refusals() map[string]int {
	w.t.Helper()
	return refusalsIn([]byte(w.gateway.scrape("text/plain")))
}

// refusalsIn are those of a page of metrics.
func refusalsIn(page []byte) map[string]int {
	counted := map[string]int{}
	for _, m := range refusalLine.FindAllSubmatch(page, -1) {
		counted[string(m[1])], _ = strconv.Atoi(string(m[2]))
	}
	return counted
}

// TestLimitsAreDocumented: docs/operations.md says of each limit here what a client gets, and of
// no other that it refuses a client so.
func TestLimitsAreDocumented(t *testing.T) {
	says := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\| (closed|429|503|busy)\\b.* \\|$").FindAllStringSubmatch(operations(t, "Limits"), -1) {
		says[m[1]] = m[2]
	}
	for key, l := range limits {
		want := map[int]string{0: "closed", statusBusy: "busy"}[l.status]
		if want == "" {
			want = fmt.Sprint(l.status)
		}
		if says[key] != want {
			t.Errorf("%s: documented as %q, want %q", key, says[key], want)
		}
		delete(says, key)
	}
	if len(says) > 0 {
		t.Error(errors.New("no test drives these over their limit"), says)
	}
}

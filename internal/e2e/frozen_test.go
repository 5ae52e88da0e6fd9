package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

// frozenTimeout is how long a request waits for the store. One that waits for the store twice
// takes longer than frozenMost, and one that does not wait takes less than the half of it, by
// seconds in either case: this machine may be busy.
const (
	frozenTimeout = 3 * time.Second
	frozenMost    = 2*frozenTimeout - frozenTimeout/4
)

// frozenReplica is the configuration of a gateway whose Redis freezes. Without the timeout
// nothing else would end a wait in time.
const frozenReplica = `
store: %s?read_timeout=60s
store_wait: 0s
admin: %s
drain_timeout: 2s
drain_delay: 0s
resume_after: 50ms
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams:
  - {name: peer, path: /mcp, url: %s, defaults: {tasks: auto, grace: 300ms}}
`

// startPeer serves a legacy server with subscriptions, logging and a resource.
func startPeer(t *testing.T) (url string) {
	t.Helper()
	server := everyday(t.TempDir(), false, &sdk.ServerOptions{
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
		Capabilities:       &sdk.ServerCapabilities{Logging: &sdk.LoggingCapabilities{}},
	})
	server.AddResource(&sdk.Resource{URI: "test://a", Name: "a"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://a", Text: "body"}}}, nil
	})
	return serve(t, streamable(server, nil))
}

// frozenWorld is a gateway over a Redis that can be frozen.
type frozenWorld struct {
	t     *testing.T
	redis *redistest.Server
	admin string
	*gateway
}

func newFrozenWorld(t *testing.T) *frozenWorld {
	t.Helper()
	w := &frozenWorld{t: t, redis: redistest.Start(t), admin: freeAddr(t)}
	t.Cleanup(w.redis.Thaw)
	w.gateway = startGateway(t, configured(t, fmt.Sprintf(frozenReplica, w.redis.URL(), w.admin, startPeer(t)))...)
	return w
}

// frozenRequest is a request of a client, and how its answer is told.
type frozenRequest struct {
	name    string
	method  string // of HTTP
	session string
	more    []string // headers
	body    string
	status  int    // 0: any
	want    string // is in the answer
	head    bool   // the head is the answer: a stream follows
	asks    bool   // it is a call that asks, which waits for the store two times as long
}

// session begins a session that has been in use.
func (w *frozenWorld) session() *session {
	w.t.Helper()
	s := begin(w.t, w.gateway)
	s.do(w.gateway, mcp.MethodToolsCall, `{"name":"echo","arguments":{}}`)
	return s
}

// legacy are requests of sessions. Each has a session of its own.
func (w *frozenWorld) legacy() []frozenRequest {
	with := func(q frozenRequest) frozenRequest {
		s := w.session()
		if strings.Contains(q.body, "TASK") {
			q.body = strings.ReplaceAll(q.body, "TASK", s.task(w.gateway, "hang", none))
		}
		q.name = "legacy " + q.name
		if q.method == "" {
			q.method = http.MethodPost
		}
		q.session = s.id
		return q
	}
	request := func(name, method, params, want string) frozenRequest {
		return with(frozenRequest{name: name, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":%q,"params":%s}`, method, params), want: want})
	}
	notification := func(method, params string) frozenRequest {
		return with(frozenRequest{name: method, body: fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params), status: 202})
	}
	const away = "-32603"
	asks := request("call that asks", "tools/call", `{"name":"ask","arguments":{}}`, `"id":9`)
	asks.asks = true
	all := []frozenRequest{
		{name: "legacy initialize", method: http.MethodPost, status: 503,
			body: `{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`},
		{name: "legacy session of nobody", method: http.MethodPost, status: 503, session: "11111111-2222-4333-8444-555555555555",
			body: `{"jsonrpc":"2.0","id":9,"method":"ping"}`},
		request("ping", "ping", `{}`, `"result"`),
		request("tools/list", "tools/list", `{}`, `"echo"`),
		request("plain call", "tools/call", `{"name":"echo","arguments":{"text":"done"}}`, `"done"`),
		request("call as a task", "tools/call", `{"name":"echo","arguments":{"text":"done"},"task":{}}`, away),
		asks,
		request("tasks/get", "tasks/get", `{"taskId":"TASK"}`, away),
		request("tasks/result", "tasks/result", `{"taskId":"TASK"}`, away),
		request("tasks/list", "tasks/list", `{}`, away),
		request("tasks/cancel", "tasks/cancel", `{"taskId":"TASK"}`, away),
		request("logging/setLevel", "logging/setLevel", `{"level":"error"}`, away),
		request("resources/read", "resources/read", `{"uri":"test://a"}`, `"body"`),
		request("resources/subscribe", "resources/subscribe", `{"uri":"test://a"}`, away),
		request("resources/unsubscribe", "resources/unsubscribe", `{"uri":"test://a"}`, away),
		notification("notifications/initialized", `{}`),
		notification("notifications/cancelled", `{"requestId":77}`),
		notification("notifications/roots/list_changed", `{}`),
		with(frozenRequest{name: "answer", status: 503, body: `{"jsonrpc":"2.0","id":"TASK/q1","result":{}}`}),
		with(frozenRequest{name: "GET", method: http.MethodGet, status: 200, head: true}),
		with(frozenRequest{name: "DELETE", method: http.MethodDelete, status: 503}),
	}
	resumes := []string{mcp.HeaderLastEventID, "abc.1"}
	return append(all, with(frozenRequest{name: "GET that resumes", method: http.MethodGet, head: true, more: resumes}))
}

// modern are requests without sessions.
func (w *frozenWorld) modern() []frozenRequest {
	w.t.Helper()
	client := w.client(true)
	task := callTask(w.t, client, "hang", map[string]any{}).ID
	request := func(method, name, params, capabilities, want string) frozenRequest {
		q := frozenRequest{name: "modern " + method + " " + name, method: http.MethodPost, want: want, body: fmt.Sprintf(
			`{"jsonrpc":"2.0","id":9,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
				`"io.modelcontextprotocol/clientInfo":{"name":"e2e","version":"1"},"io.modelcontextprotocol/clientCapabilities":%s}}}`,
			method, params, capabilities)}
		q.more = []string{mcp.HeaderProtocolVersion, mcp.Version20260728, mcp.HeaderMethod, method}
		if name != "" {
			q.more = append(q.more, mcp.HeaderName, name)
		}
		return q
	}
	const away, tasks, asked = "-32603", `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, `{"elicitation":{}}`
	id := fmt.Sprintf(`"taskId":%q,`, task)
	listen := request("subscriptions/listen", "", fmt.Sprintf(`"notifications":{"taskIds":[%q]},`, task), tasks, "")
	listen.head = true
	asks := request("tools/call", "ask", `"name":"ask","arguments":{},`, asked, `"id":9`)
	asks.asks = true
	return []frozenRequest{
		request("server/discover", "", "", `{}`, `"result"`),
		request("tools/list", "", "", `{}`, `"echo"`),
		request("tools/call", "echo", `"name":"echo","arguments":{"text":"done"},`, tasks, `"done"`),
		asks,
		request("tasks/get", task, id, tasks, away),
		request("tasks/cancel", task, id, tasks, away),
		request("tasks/update", task, id+`"inputResponses":{},`, tasks, ""),
		listen,
	}
}

// ask sends one request, and returns how long its answer took. There has to be one after three
// times the timeout, and after once more of a call that asks: it may wait for the store like any
// request, and then two times for its question.
func (w *frozenWorld) ask(q frozenRequest) time.Duration {
	w.t.Helper()
	most := 3 * frozenTimeout
	if q.asks {
		most += frozenTimeout
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), most)
	defer cancel()
	begin := time.Now()
	resp, err := legacyRequest(ctx, q.method, w.url, q.session, q.body, q.more...)
	if err != nil {
		w.t.Errorf("%s: %v", q.name, err)
		return time.Since(begin)
	}
	defer resp.Body.Close()
	var body []byte
	if q.head {
		_, err = bufio.NewReader(resp.Body).ReadByte()
	} else {
		body, err = io.ReadAll(resp.Body)
	}
	took := time.Since(begin)
	if err != nil || q.status != 0 && resp.StatusCode != q.status || !strings.Contains(string(body), q.want) {
		w.t.Errorf("%s: HTTP %d %.300s (%v), want %d %s", q.name, resp.StatusCode, body, err, q.status, q.want)
	}
	return took
}

// TestFrozenRedis: whatever a client asks while Redis does not say a word is answered within
// frozenTimeout, all its uses of the store together; and at once, when it is known that Redis
// is away. After that everything is as before.
func TestFrozenRedis(t *testing.T) {
	t.Parallel()
	w := newFrozenWorld(t)
	first := append(w.legacy(), w.modern()...)
	second := append(w.legacy(), w.modern()...)
	w.redis.Freeze()
	var all sync.WaitGroup
	for _, q := range first {
		all.Go(func() {
			if took := w.ask(q); took > frozenMost && !q.asks {
				t.Errorf("%s was answered after %v", q.name, took)
			}
		})
	}
	all.Wait()
	for _, q := range second {
		if q.asks {
			continue
		}
		if took := w.ask(q); took > frozenTimeout/2 {
			t.Errorf("%s was answered after %v, though Redis was known to be away", q.name, took)
		}
	}
	if r, err := readyz(w.admin); r.status != 503 || r.Store.Reachable {
		t.Errorf("readyz: %+v, %v", r, err)
	}
	client := w.client(true)
	var refused *taskclient.Error
	w.redis.Thaw()
	eventually(t, "tasks again", func() error {
		_, task, err := client.CallTool(t.Context(), "hang", map[string]any{})
		if err == nil && task == nil {
			return errNotYet
		}
		return err
	})
	if _, err := client.Get(t.Context(), "01234567890123456789012345678901"); !errors.As(err, &refused) || refused.Code != -32602 {
		t.Errorf("an unknown task: %v", err)
	}
	begin(t, w.gateway)
}

// TestStopWithFrozenRedis: a gateway ends in its time although Redis does not say a word.
func TestStopWithFrozenRedis(t *testing.T) {
	t.Parallel()
	w := newFrozenWorld(t)
	s := w.session()
	s.task(w.gateway, "hang", none)
	stream := s.request(t.Context(), w.gateway, http.MethodGet, "")
	defer stream.Body.Close()
	w.redis.Freeze()
	terminate(t, w.Process)
	within(t, w.Process, 30*time.Second) // far below the read timeout
}

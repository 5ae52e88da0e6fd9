package legacy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// What a server does wrong with a result, clients get from a task as they do plainly (TestBrokenServersWire).
func TestBrokenServers(t *testing.T) {
	s := fake.New(t, fake.Stateful)
	cases := map[string]struct{ result, want, lacks string }{ // result is what comes after the content
		"stray_type":    {`,"resultType":"task"`, `"text":"ok"`, `"task"`},
		"harmless_type": {`,"resultType":"complete"`, `"text":"ok"`, `no text`},
		"stray_task":    {`,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"a":1.0}`, `"a":1.0`, "theirs"},
		"no_utf8":       {",\"x\":\"\xff\"", "\"x\":\"\uFFFD\"", `no text`},
	}
	for name, c := range cases {
		s.Tool(name, fake.Stream(`{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"text","text":"ok"}]`+c.result+`}}`))
	}
	client := newRawClient(t, newBefore(t, s, nil)).initialize("")
	for name, c := range cases {
		_, result := client.post(fmt.Sprintf(resultBody, client.task(name)))
		wantTexts(t, []byte(result), c.want)
		wantNoTexts(t, []byte(result), c.lacks)
	}
}

// What the gateway does not know goes through between clients and servers of both eras: a
// client's request, and a server's notification on the stream of a call and outside of any.
func TestForeignMethods(t *testing.T) {
	const said = `{"jsonrpc":"2.0","method":"notifications/acme/said","params":{"x":1.0}}`
	for name, mode := range map[string]fake.Mode{"modern": fake.Modern, "legacy": fake.Stateful} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, mode)
			s.Tool("t", fake.Stream(said, `{"jsonrpc":"2.0","id":{id},"result":{"resultType":"complete","content":[]}}`))
			s.On("acme/do", fake.Result(`{"resultType":"complete","did":1.0}`))
			listening := make(chan struct{}, 1)
			s.On("subscriptions/listen", func(x *fake.Exchange) {
				x.Event(x.Fill(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":{id}},"notifications":{"toolsListChanged":true}}}`))
				x.Event(said)
				listening <- struct{}{}
				<-x.R.Context().Done()
			})
			url := newBefore(t, s, nil)
			c := newRawClient(t, url).initialize("")
			c.wantPost(`{"jsonrpc":"2.0","id":1,"method":"acme/do","params":{"y":2.0}}`, http.StatusOK, `"did":1.0`)
			c.wantPost(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}`, http.StatusOK, said)
			status, body := exchange(t, asked{caps: `{}`, method: "acme/do", params: `{"y":2.0}`}, url)
			wantAnswer(t, status, body, http.StatusOK, `"did":1.0`)
			if seen := s.Seen("acme/do"); len(seen) != 2 || !strings.Contains(string(seen[1].Params), `"y":2.0`) {
				t.Errorf("the server got %d", len(seen))
			}
			status, body = exchange(t, asked{caps: `{}`, method: mcp.MethodToolsCall, params: `{"name":"t"}`}, url)
			wantAnswer(t, status, body, http.StatusOK, said)
			status, body = exchange(t, asked{caps: `{}`, method: "acme/else", params: `{"y":2.0}`}, url)
			wantAnswer(t, status, body, http.StatusNotFound, `"code":-32601`)
			if mode == fake.Stateful { // as servers of the Go SDK refuse it
				s.On("acme/else", fake.Status(http.StatusBadRequest, "text/plain", "unsupported"))
				status, body = exchange(t, asked{caps: `{}`, method: "acme/else", params: `{"y":2.0}`}, url)
				wantAnswer(t, status, body, http.StatusNotFound, `"code":-32601`)
			}

			get := c.takeStream()
			if mode == fake.Modern {
				wiretest.Await(t, listening, "the listen stream")
			} else {
				waitUntil(t, "the server is listened to", func() bool {
					s.Notify("notifications/nobody", `{}`) // the head of the GET stream comes when it is open
					return s.Listeners() > 0
				})
				s.Notify("notifications/acme/said", `{"x":1.0}`)
			}
			get.awaitText(`"notifications/acme/said"`)
		})
	}
}

// exchange makes a request of a modern client, and returns the whole answer.
func exchange(t *testing.T, a asked, url string) (int, string) {
	t.Helper()
	resp := wiretest.Must(http.DefaultClient.Do(a.request(t.Context(), url, "")))(t)
	defer resp.Body.Close()
	var b strings.Builder
	wiretest.Check(t, resp.Write(&b))
	return resp.StatusCode, b.String()
}

// A tool of a modern server that HTTP clients must drop is hidden from legacy clients too,
// and not called (protocol.md 2.4). A call of a tool that the server does not list makes no
// task, for clients of either era.
func TestToolsThatAreNotThere(t *testing.T) {
	for name, mode := range map[string]fake.Mode{"modern": fake.Modern, "legacy with tasks": fake.Stateful} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, mode)
			s.Capabilities(`{"tools":{},"tasks":{"requests":{"tools":{"call":{}}}}}`)
			s.Tool("t", fake.Text("ok"))
			s.Tool("bad", fake.Text("ok"))
			s.Schema("bad", `{"type":"object","properties":{"n":{"type":"number","x-mcp-header":"N"}}}`)
			url := newBefore(t, s, func(c *config.Config) { c.Upstreams[0].Defaults.Tasks = config.TasksAlways })
			c := newRawClient(t, url).initialize("")
			call := func(params string) string {
				t.Helper()
				_, got := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`)
				return got
			}
			unknown := `"code":-32602,"message":"unknown tool`
			if mode == fake.Modern {
				if _, got := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); strings.Contains(got, "bad") || !strings.Contains(got, `"t"`) {
					t.Errorf("listed %s", got)
				}
				for _, params := range []string{`{"name":"bad","arguments":{"key":"bad"}}`, `{"name":"bad","task":{}}`} {
					wantTexts(t, []byte(call(params)), unknown)
				}
			}
			wantTexts(t, []byte(call(`{"name":"nope","task":{}}`)), unknown)
			wantTexts(t, []byte(call(`{"name":"t","task":{}}`)), `"taskId"`)
			if _, got := c.post(`{"jsonrpc":"2.0","id":2,"method":"tasks/list","params":{"cursor":null}}`); strings.Count(got, `"taskId"`) != 1 {
				t.Errorf("tasks: %s", got)
			}
			a := asked{caps: canTasks, method: mcp.MethodToolsCall, params: `{"name":"nope"}`}
			wantRefusal(t, a.send(t, url, ""), mcp.CodeInvalidParams, "unknown tool")
			if n := s.Runs("bad"); n != 0 {
				t.Errorf("the hidden tool ran %d times", n)
			}
		})
	}
}

// newBefore starts a gateway with a store in front of a server that does what it is told.
func newBefore(t *testing.T, s *fake.Server, change func(*config.Config)) (url string) {
	t.Helper()
	c := newConfig(change)
	c.Store, c.StateKeys = redistest.Start(t).URL(), []config.StateKey{parkKey}
	p := &parking{log: &safeBuffer{}, spans: tracetest.NewInMemoryExporter()}
	p.start(t, "a", s.URL, c)
	return p.at[0]
}

// A modern server that wants nothing but to be called again with its state is, for a
// client that declares nothing (protocol.md 2.7).
func TestStateWithoutQuestions(t *testing.T) {
	s := fake.New(t, fake.Modern)
	again := func(done string) fake.Behaviour {
		return func(x *fake.Exchange) {
			if state, _ := jsonrpc.GetString(x.Params, "requestState"); state == "later" {
				fake.Result(done)(x)
				return
			}
			fake.Result(`{"resultType":"input_required","requestState":"later"}`)(x)
		}
	}
	s.Capabilities(`{"tools":{},"prompts":{},"resources":{}}`)
	s.Tool("t", again(`{"resultType":"complete","content":[{"type":"text","text":"done"}]}`))
	s.On("prompts/get", again(`{"resultType":"complete","messages":[{"role":"user","content":{"type":"text","text":"done"}}]}`))
	s.On("resources/read", again(`{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[{"uri":"a:b","text":"done"}]}`))
	url := newBefore(t, s, nil)
	for name, body := range map[string]string{
		"tool":     `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`,
		"prompt":   `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p"}}`,
		"resource": `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a:b"}}`,
		"task":     "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newRawClient(t, url).initialize("")
			if name == "task" {
				body = fmt.Sprintf(resultBody, c.task("t"))
			}
			_, got := c.post(body)
			wantTexts(t, []byte(got), `"done"`)
		})
	}
}

// TestSubscribedWhileAway: that a server cannot be listened to at the moment does not say that it never reports updates of
// a resource.
func TestSubscribedWhileAway(t *testing.T) {
	server := fake.New(t, fake.Modern)
	server.Capabilities(`{"resources":{"subscribe":true}}`)
	server.On(mcp.MethodListen, fake.Status(http.StatusServiceUnavailable, "text/plain", "away"))
	c := newRawClient(t, newBefore(t, server, nil)).initialize("")
	status, body := c.post(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a"}}`)
	wantAnswer(t, status, body, http.StatusOK, `-32603`)
}

// TestReplicasStayInTheirEra: a session goes on in the era in which its server was spoken to
// when it began, on replicas as well that meet the server when it has learned another one.
// Sessions that begin then are in the era of their client.
func TestReplicasStayInTheirEra(t *testing.T) {
	redis := redistest.Start(t)
	server := fake.New(t, fake.Modern)
	server.Tool("t", fake.Text("ok"))
	on := func(name, session string) *rawClient {
		store := func(c *config.Config) { c.Store = redis.URL() }
		c := newRawClient(t, startReplica(t, name, newConfig(store), parts{server: upstream.Config{URL: server.URL}}).url)
		c.session = session
		return c
	}
	calls := func(c *rawClient, want mcp.Era) {
		t.Helper()
		status, body := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`)
		wantAnswer(t, status, body, http.StatusOK, `"ok"`)
		sent := server.Seen(mcp.MethodToolsCall)
		if got := mcp.EraOf(sent[len(sent)-1].Header.Get(mcp.HeaderProtocolVersion)); got != want {
			t.Errorf("the server was called in %v, want %v", got, want)
		}
	}
	a := on("a", "")
	a.initialize("")
	calls(a, mcp.Modern)

	server.Become(fake.Both)
	calls(on("b", a.session), mcp.Modern)
	c := on("c", "")
	c.initialize("")
	calls(c, mcp.Legacy)
	calls(on("d", c.session), mcp.Legacy)
	calls(on("e", a.session), mcp.Modern)
	if n := len(server.Seen(mcp.MethodInitialize)); n != 2 {
		t.Errorf("%d handshakes, want one that is refused and one that is not", n)
	}
}

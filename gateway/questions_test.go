package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"taskgate/gateway/config"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/schematest"
	"taskgate/internal/wiretest"
	"taskgate/redisstore"
	"taskgate/shim"
)

// inquirer is a legacy server with tools that ask.
func inquirer(t *testing.T) string {
	t.Helper()
	s := sdk.NewServer(&sdk.Implementation{Name: "inquirer", Version: "1"}, nil)
	tool := func(name string, run func(context.Context, *sdk.ServerSession) string) {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: run(ctx, r.Session)}}}, nil
			})
	}
	elicit := func(ctx context.Context, ss *sdk.ServerSession, message string) string {
		res, err := ss.Elicit(ctx, &sdk.ElicitParams{Message: message, RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}})
		if err != nil {
			return "error: " + err.Error()
		}
		text, _ := json.Marshal(res.Content)
		return res.Action + " " + string(text)
	}
	tool("ask", func(ctx context.Context, ss *sdk.ServerSession) string { return elicit(ctx, ss, "who?") })
	tool("ask_both", func(ctx context.Context, ss *sdk.ServerSession) string {
		first := make(chan string, 1)
		go func() { first <- elicit(ctx, ss, "first?") }()
		second := elicit(ctx, ss, "second?")
		return <-first + ", " + second
	})
	tool("sample", func(ctx context.Context, ss *sdk.ServerSession) string {
		_, err := ss.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 1, Messages: []*sdk.SamplingMessage{}})
		if err == nil {
			return "sampled"
		}
		return "error: " + err.Error()
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(func() {
		for ss := range s.Sessions() {
			_ = ss.Close() // some have been ended by then
		}
		web.Close()
	})
	return web.URL
}

// askingGateway is one replica over a store, in front of a server.
func askingGateway(t *testing.T, name, server string, store *redisstore.Store, change func(*config.Upstream)) http.Handler {
	t.Helper()
	c := config.Default()
	u := config.NewUpstream("up", "http://up.example/")
	u.Path = "/mcp"
	if change != nil {
		change(u)
	}
	c.Upstreams = []*config.Upstream{u}
	quiet := slog.New(slog.DiscardHandler)
	up, err := upstream.New(upstream.Config{Name: "up", URL: server, Replica: name})
	if err != nil {
		t.Fatal(err)
	}
	sh, err := shim.New(shim.Options{
		Replica: shim.Replica(name), Store: store, Logger: quiet, CheckAnswer: upstream.CheckAnswer,
		Servers: map[string]shim.Server{"up": {Upstream: up, Policy: func(tool string) shim.Policy {
			p := u.Tool(tool)
			return shim.Policy{Tasks: shim.Mode(p.Tasks), Grace: p.Grace, TTL: p.TTL, PollInterval: p.PollInterval, Timeout: p.Timeout,
				EarlyInput: shim.Early(p.EarlyInput), InputTimeout: p.InputTimeout}
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Options{Config: c, Shim: sh, Upstreams: map[string]upstream.Client{"up": up}, Logger: quiet,
		Sessions: store.Sessions(c.MaxSessions, c.SessionIdle)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- g.Run(ctx) }()
	go func() { done <- sh.Run(ctx); done <- nil }()
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), wiretest.Patience)
		defer cancel()
		stop()
		err := errors.Join(<-done, <-done, <-done, g.Close(bounded), sh.Close(bounded), up.Close(bounded))
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return g.Handler()
}

// asksTasks is a client's envelope that declares tasks and these abilities.
func asksTasks(abilities string) string {
	if abilities != "" {
		abilities += ","
	}
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{` + abilities +
		`"extensions":{"io.modelcontextprotocol/tasks":{}}}}`
}

// send makes a request and returns its result; a message that does not fit the
// schema of its method fails the test.
func send(t *testing.T, h http.Handler, method, params, abilities string) json.RawMessage {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, wiretest.ModernPost(method, `{`+params+`,`+asksTasks(abilities)+`}`))
	messages := wiretest.MessagesOf(rec.Header().Get("Content-Type"), rec.Body.Bytes())
	result, ok := jsonrpc.Get(messages[len(messages)-1], "result")
	if !ok {
		t.Fatalf("%s: %s", method, rec.Body)
	}
	if definition, ok := wiretest.TaskDefinitions[method]; ok {
		schematest.Validate(t, schematest.TasksExtension, definition, result)
	}
	return result
}

// until reads a task until it is in this status.
func until(t *testing.T, h http.Handler, id, status string) json.RawMessage {
	t.Helper()
	for range int(wiretest.Patience / (20 * time.Millisecond)) {
		got := send(t, h, "tasks/get", `"taskId":"`+id+`"`, "")
		if s, _ := jsonrpc.GetString(got, "status"); s == status {
			return got
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Fatalf("the task does not become %s", status)
	return nil
}

func requestsOf(task json.RawMessage) (keys []string) {
	requests, _ := jsonrpc.Get(task, "inputRequests")
	for key := range jsonrpc.Members(requests) {
		keys = append(keys, key)
	}
	return keys
}

// askedBoth begins a task that asks two questions at once. The upstream client gathers what comes
// within 50 ms; on a machine that is too busy for that the second question comes
// alone, and it is begun anew.
func askedBoth(t *testing.T, one, two http.Handler, form string) (string, json.RawMessage) {
	t.Helper()
	for range 20 {
		made := send(t, one, "tools/call", `"name":"ask_both","arguments":{}`, form)
		id, _ := jsonrpc.GetString(made, "taskId")
		task := until(t, two, id, "input_required")
		if len(requestsOf(task)) == 2 {
			return id, task
		}
		send(t, one, "tasks/cancel", `"taskId":"`+id+`"`, form)
	}
	t.Fatal("two questions never came together")
	return "", nil
}

// TestQuestionsInATask asks a client of the extension what a legacy server wants to
// know: the call becomes a task at once (H16), on one replica, and is answered on the
// other (T24, T34–T39).
func TestQuestionsInATask(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	store, err := redisstore.Open(t.Context(), "embedded", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	server := inquirer(t)
	one, two := askingGateway(t, "one", server, store, nil), askingGateway(t, "two", server, store, nil)
	const form = `"elicitation":{}`

	t.Run("one by one, in any order, twice", func(t *testing.T) {
		id, task := askedBoth(t, one, two, form)
		answered := map[string]string{}
		for _, key := range requestsOf(task) {
			message, _ := jsonrpc.GetString(task, "inputRequests", key, "params", "message")
			answered[message] = key
		}
		update := func(h http.Handler, key, name string) {
			t.Helper()
			ack := send(t, h, "tasks/update", `"taskId":"`+id+`","inputResponses":{"unknown":{},"`+key+
				`":{"action":"accept","content":{"name":"`+name+`"}}}`, form)
			for _, member := range []string{"taskId", "status", "inputRequests"} { // T34
				if _, ok := jsonrpc.Get(ack, member); ok {
					t.Errorf("the acknowledgement has %s: %s", member, ack)
				}
			}
		}
		update(two, answered["second?"], "B")
		task = send(t, one, "tasks/get", `"taskId":"`+id+`"`, form)
		if keys := requestsOf(task); len(keys) != 1 || keys[0] != answered["first?"] { // T37, T24
			t.Errorf("open after the first answer: %s", task)
		}
		update(one, answered["second?"], "C")
		update(two, answered["first?"], "A")
		done := until(t, one, id, "completed")
		if !strings.Contains(string(done), `accept {\"name\":\"A\"}, accept {\"name\":\"B\"}`) {
			t.Errorf("%s", done)
		}
		update(one, answered["first?"], "late")
	})
	t.Run("cancelled", func(t *testing.T) {
		made := send(t, one, "tools/call", `"name":"ask","arguments":{}`, form)
		id, _ := jsonrpc.GetString(made, "taskId")
		until(t, two, id, "input_required")
		send(t, two, "tasks/cancel", `"taskId":"`+id+`"`, form)
		until(t, one, id, "cancelled")
	})
	t.Run("only what was declared", func(t *testing.T) {
		for _, c := range [][2]string{{"sample", form}, {"ask", `"sampling":{}`}, {"ask", ""}} {
			got := send(t, one, "tools/call", `"name":"`+c[0]+`","arguments":{}`, c[1])
			if !strings.Contains(string(got), "error: ") {
				t.Errorf("%s with %s: %s", c[0], c[1], got)
			}
		}
	})
	t.Run("a client's errors are the extension's", func(t *testing.T) {
		for name, c := range map[string]string{
			"unknown task":   `"taskId":"00000000-0000-4000-8000-000000000000","inputResponses":{}`,
			"no responses":   `"taskId":"00000000-0000-4000-8000-000000000000"`,
			"not an object":  `"taskId":"00000000-0000-4000-8000-000000000000","inputResponses":[]`,
			"not of objects": `"taskId":"00000000-0000-4000-8000-000000000000","inputResponses":{"a":1}`,
		} {
			rec := httptest.NewRecorder()
			one.ServeHTTP(rec, wiretest.ModernPost("tasks/update", `{`+c+`,`+asksTasks(form)+`}`))
			if code, _ := jsonrpc.Get(rec.Body.Bytes(), "error", "code"); string(code) != "-32602" || rec.Code != http.StatusOK {
				t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
			}
		}
	})
}

func TestAnswerable(t *testing.T) {
	for in, want := range map[string]string{
		`{}`: "", `{"tasks":{},"extensions":{"x":{}},"experimental":{}}`: "",
		`{"elicitation":{"url":{}},"x":1,"roots":{}}`: `{"elicitation":{"url":{}},"roots":{}}`,
		`{"sampling":true,"elicitation":null}`:        "",
	} {
		if got := string(translate.Answerable(json.RawMessage(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

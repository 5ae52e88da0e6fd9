package legacy_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics/metricstest"
	"taskgate/internal/redistest"
	"taskgate/internal/wiretest"
	"taskgate/shim"
	"taskgate/shim/engine"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// askingServer is a legacy server that stops to ask.
type askingServer struct {
	server *sdk.Server
	runs   atomic.Int32  // how many calls have begun
	ended  chan string   // how each has ended
	hold   chan struct{} // what the tool "slow" waits for, once it has its answer
	// answered is told when "slow" has it.
	answered chan struct{}
}

func newAskingServer(t *testing.T) (*askingServer, string) {
	t.Helper()
	a := &askingServer{ended: make(chan string, 16), hold: make(chan struct{}), answered: make(chan struct{}, 1)}
	server := sdk.NewServer(&sdk.Implementation{Name: "asker", Version: "1"}, nil)
	a.server = server
	tool := func(name string, ask func(context.Context, *sdk.ServerSession) (string, error)) {
		addTool(server, name, func(ctx context.Context, r *sdk.CallToolRequest) (string, error) { return a.run(ctx, r.Session, ask) })
	}
	tool("plain", func(context.Context, *sdk.ServerSession) (string, error) { return "plain", nil })
	tool("ask", askName)
	tool("url", func(ctx context.Context, ss *sdk.ServerSession) (string, error) {
		r, err := ss.Elicit(ctx, &sdk.ElicitParams{Mode: "url", Message: "open", URL: "https://example.com/x", ElicitationID: "el-1"})
		if err != nil {
			return "", err
		}
		return r.Action, nil
	})
	tool("all", askAll)
	tool("twice", func(ctx context.Context, ss *sdk.ServerSession) (string, error) {
		first, err := askName(ctx, ss)
		if err != nil {
			return "", err
		}
		second, err := askName(ctx, ss)
		return first + ", " + second, err
	})
	tool("slow", func(ctx context.Context, ss *sdk.ServerSession) (string, error) {
		text, err := askName(ctx, ss)
		a.answered <- struct{}{}
		select {
		case <-a.hold:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		return text, err
	})
	tool("late", func(ctx context.Context, ss *sdk.ServerSession) (string, error) {
		select {
		case <-a.hold:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		return askName(ctx, ss)
	})
	server.AddPrompt(&sdk.Prompt{Name: "ask"}, func(ctx context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		text, err := a.run(ctx, r.Session, askName)
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: text}}}}, err
	})
	server.AddResource(&sdk.Resource{URI: "test://ask", Name: "ask"}, func(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		text, err := a.run(ctx, r.Session, askName)
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: "test://ask", Text: text}}}, err
	})
	return a, serveSDK(t, server, nil, nil)
}

// run counts a call, and tells how it ended.
func (a *askingServer) run(ctx context.Context, ss *sdk.ServerSession, ask func(context.Context, *sdk.ServerSession) (string, error)) (string, error) {
	a.runs.Add(1)
	text, err := ask(ctx, ss)
	switch {
	case err != nil && ctx.Err() != nil:
		a.ended <- "cancelled"
	case err != nil:
		a.ended <- "error: " + err.Error()
	default:
		a.ended <- text
	}
	return text, err
}

// wantRuns wants the server to have begun so many calls.
func (a *askingServer) wantRuns(t *testing.T, want int32) {
	t.Helper()
	if n := a.runs.Load(); n != want {
		t.Errorf("the server ran %d calls, want %d", n, want)
	}
}

var nameSchema = json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)

func askName(ctx context.Context, ss *sdk.ServerSession) (string, error) {
	r, err := ss.Elicit(ctx, &sdk.ElicitParams{Mode: "form", Message: "question of secret-7411", RequestedSchema: nameSchema})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %v", r.Action, r.Content["name"]), nil
}

// askAll asks three things at once.
func askAll(ctx context.Context, ss *sdk.ServerSession) (string, error) {
	var wg sync.WaitGroup
	var name, model, root string
	errs := make([]error, 3)
	wg.Go(func() { name, errs[0] = askName(ctx, ss) })
	wg.Go(func() {
		r, err := ss.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 10, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "?"}}}})
		if errs[1] = err; err == nil {
			model = r.Model
		}
	})
	wg.Go(func() {
		r, err := ss.ListRoots(ctx, nil)
		if errs[2] = err; err == nil && len(r.Roots) > 0 {
			root = r.Roots[0].URI
		}
	})
	wg.Wait()
	return strings.Join([]string{name, model, root}, ", "), errors.Join(errs...)
}

// parking are two gateways over one Redis in front of an askingServer.
type parking struct {
	limits shim.QuestionLimits // of each call
	*askingServer
	at    []string
	log   *safeBuffer
	spans *tracetest.InMemoryExporter
	// measured are the metrics of each gateway.
	measured []*metricstest.Reader
}

// safeBuffer is a log that several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// parkKey is the key of the tests.
var parkKey = config.StateKey(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)))

// newParking starts them.
func newParking(t *testing.T, change func(*config.Config), limits ...shim.QuestionLimits) *parking {
	t.Helper()
	redis := redistest.Start(t)
	a, server := newAskingServer(t)
	p := &parking{askingServer: a, limits: append(limits, shim.QuestionLimits{})[0], log: &safeBuffer{}, spans: tracetest.NewInMemoryExporter()}
	for _, name := range []string{"a", "b"} {
		c := newConfig(func(c *config.Config) {
			if c.Store, c.StateKeys = redis.URL(), []config.StateKey{parkKey}; change != nil {
				change(c)
			}
		})
		p.start(t, name, server, c)
	}
	return p
}

// start starts one gateway. All that it tells is kept.
func (p *parking) start(t *testing.T, name, server string, c *config.Config) {
	t.Helper()
	measured, reader := metricstest.New(t)
	r := startReplica(t, name, c, parts{server: upstream.Config{
		URL: server, Tasks: upstream.TaskUse(c.Upstreams[0].UpstreamTasks), Metrics: measured,
		Logger:         slog.New(slog.NewJSONHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(p.spans)),
	}, shim: func(o *engine.Options) {
		s := o.Servers["up"]
		policy := s.Policy
		s.Other.Questions = p.limits
		s.Policy = func(tool string, says shim.Hints) shim.Policy {
			of := policy(tool, says)
			of.Questions = p.limits
			return of
		}
		o.Servers["up"] = s
	}})
	p.at, p.measured = append(p.at, r.url), append(p.measured, reader)
}

// Abilities of clients.
const (
	canForm  = `{"elicitation":{}}`
	canAll   = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`
	canTasks = `{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
)

// asked is a modern client's request, and what it takes to make it again.
type asked struct {
	caps, method, params string // params without _meta and what a retry adds
	key                  string // of the client, "" for none
}

// request is the request for one replica, with the members of a retry.
func (a asked) request(ctx context.Context, url, retry string) *http.Request {
	params := fmt.Sprintf(`%s%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}}`,
		strings.TrimSuffix(a.params, "}"), retry, a.caps)
	r := wiretest.ModernPost(a.method, params)
	body, _ := io.ReadAll(r.Body)
	if a.key != "" {
		r.Header.Set("Authorization", "Bearer "+a.key)
	}
	return wiretest.ClientRequest(ctx, url, r.Header, body)
}

// send makes the request and returns the result or the error. Each message is held
// against the official schemas.
func (a asked) send(t *testing.T, url, retry string) jsonrpc.Message {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), wiretest.Patience)
	defer stop()
	resp := wiretest.Must(http.DefaultClient.Do(a.request(ctx, url, retry)))(t)
	defer resp.Body.Close()
	text := wiretest.Must(io.ReadAll(resp.Body))(t)
	http.DefaultClient.CloseIdleConnections()
	messages := wiretest.MessagesOf(resp.Header.Get("Content-Type"), text)
	if len(messages) == 0 {
		t.Fatalf("%s: no message: %s %s", a.method, resp.Status, text)
	}
	var last jsonrpc.Message
	for _, m := range messages {
		last = wiretest.Must(jsonrpc.ParseLenient(m))(t)
		wiretest.CheckMessage(t, jsonrpc.Message{Method: a.method, Params: json.RawMessage(a.params)}, last)
	}
	return last
}

// question is what an InputRequiredResult asks.
type question struct {
	key, method string
	params      json.RawMessage
}

// awaitQuestion reads a task until it asks, and returns what, and the key of the one question.
func (a asked) awaitQuestion(t *testing.T, url string) (key string, requests json.RawMessage) {
	t.Helper()
	requests, _ = jsonrpc.Get(a.awaitStatus(t, url, "input_required"), "inputRequests")
	for key = range jsonrpc.Members(requests) {
		continue
	}
	return key, requests
}

// park makes the request and expects to be asked.
func (a asked) park(t *testing.T, url, retry string) (state string, questions []question) {
	t.Helper()
	m := a.send(t, url, retry)
	state, ok := jsonrpc.GetString(m.Result, "requestState")
	requests, _ := jsonrpc.Get(m.Result, "inputRequests")
	for key, r := range jsonrpc.Members(requests) {
		method, _ := jsonrpc.GetString(r, "method")
		params, _ := jsonrpc.Get(r, "params")
		questions = append(questions, question{key, method, params})
	}
	if typ, _ := jsonrpc.GetString(m.Result, "resultType"); typ != mcp.ResultInputRequired || !ok || len(questions) == 0 {
		t.Fatalf("was not asked: %s", m.Raw)
	}
	return state, questions
}

// answering are the members of a retry, with name as the answer to each elicitation.
func answering(state, name string, questions ...question) string {
	b := json.RawMessage(`{}`)
	for _, q := range questions {
		answer := `{"action":"accept","content":{"name":"` + name + `"}}`
		if mode, _ := jsonrpc.GetString(q.params, "mode"); mode == "url" {
			answer = `{"action":"accept"}`
		}
		switch q.method {
		case mcp.MethodCreateMessage:
			answer = `{"role":"assistant","content":{"type":"text","text":"!"},"model":"m1"}`
		case mcp.MethodRootsList:
			answer = `{"roots":[{"uri":"file:///r"}]}`
		}
		b = jsonrpc.With(b, []byte(answer), q.key)
	}
	return `,"inputResponses":` + string(b) + `,"requestState":` + string(jsonrpc.AppendString(nil, state))
}

// wantText expects an ordinary result with this text in it.
func wantText(t *testing.T, m jsonrpc.Message, text string) {
	t.Helper()
	typ, _ := jsonrpc.GetString(m.Result, "resultType")
	if m.Error != nil || typ != mcp.ResultComplete || !strings.Contains(string(m.Result), text) {
		t.Errorf("got %s, want a result with %q", m.Raw, text)
	}
}

// wantRefusal expects an error with this code and text.
func wantRefusal(t *testing.T, m jsonrpc.Message, code int64, text string) {
	t.Helper()
	if m.Error == nil || m.Error.Code != code || !strings.Contains(m.Error.Message, text) {
		t.Errorf("got %s, want error %d with %q", m.Raw, code, text)
	}
}

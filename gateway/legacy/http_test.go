package legacy_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics/metricstest"
	"taskgate/internal/semconv"
	"taskgate/internal/wiretest"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// rawClient posts what it is told to, and keeps its session.
type rawClient struct {
	t       *testing.T
	http    *http.Client
	url     string
	session string
	key     string // with which it signs in
}

func newRawClient(t *testing.T, url string) *rawClient {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &rawClient{t: t, http: &http.Client{Transport: transport}, url: url}
}

// as has a client show a key.
func (c *rawClient) as(key string) *rawClient {
	c.key = key
	return c
}

// do sends a request, with more headers, and returns the response, whose body the caller closes.
func (c *rawClient) do(ctx context.Context, method, body string, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	if c.session != "" {
		r.Header.Set(mcp.HeaderSession, c.session)
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return c.http.Do(r)
}

// post sends a message and returns status and body.
func (c *rawClient) post(body string) (int, string) {
	c.t.Helper()
	resp, err := c.do(c.t.Context(), http.MethodPost, body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Error(err)
	}
	if id := resp.Header.Get(mcp.HeaderSession); id != "" {
		c.session = id
	}
	return resp.StatusCode, string(b)
}

// canBeAsked is what a client declares that answers forms.
const canBeAsked = `"elicitation":{}`

// initialize begins a session whose client declares these capabilities.
func (c *rawClient) initialize(capabilities string) *rawClient {
	c.t.Helper()
	body := strings.Replace(wiretest.InitializeBody, `"capabilities":{`, `"capabilities":{`+capabilities, 1)
	if status, body := c.post(body); status != http.StatusOK || c.session == "" {
		c.t.Fatalf("initialize: %d %s", status, body)
	}
	return c
}

// endSession has the client end its session.
func (c *rawClient) endSession() {
	c.t.Helper()
	resp, err := c.do(c.t.Context(), http.MethodDelete, "")
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusOK {
		c.t.Fatalf("DELETE: %s", resp.Status)
	}
}

// answer gives an answer to a question.
func (c *rawClient) answer(id, colour string) {
	c.t.Helper()
	if status, body := c.post(answerBody(id, colour)); status != http.StatusAccepted {
		c.t.Fatalf("answer: %d %s", status, body)
	}
}

// task makes a task of a tool, and returns its id.
func (c *rawClient) task(tool string) string {
	c.t.Helper()
	_, body := c.post(`{"jsonrpc":"2.0","id":"t","method":"tools/call","params":{"name":"` + tool + `","task":{}}}`)
	return idOfTask(c.t, body)
}

// idOfTask is the id of a task that was made: the answer is JSON, or an event where that took longer than resumeSoon.
func idOfTask(t *testing.T, answer string) string {
	t.Helper()
	id := regexp.MustCompile(`"taskId":"([^"]+)"`).FindStringSubmatch(answer)
	if id == nil {
		t.Fatalf("no task: %s", answer)
	}
	return id[1]
}

// The reason that a client gives for a cancellation reaches its server.
func TestCancelledForAReason(t *testing.T) {
	s := fake.New(t, fake.Stateful)
	begun, told := make(chan struct{}), make(chan string, 1)
	s.Tool("t", func(x *fake.Exchange) {
		close(begun)
		<-x.R.Context().Done()
	})
	s.On(mcp.NotifyCancelled, func(x *fake.Exchange) {
		reason, _ := jsonrpc.GetString(x.Params, "reason")
		told <- reason
		x.W.WriteHeader(http.StatusAccepted)
	})
	c := newRawClient(t, newBefore(t, s, nil))
	c.initialize("")
	leave := c.beginPost(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`)
	defer leave()
	wiretest.Await(t, begun, "the tool")
	c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"no \"more\""}}`)
	if got := wiretest.Await(t, told, "the cancellation upstream"); got != `no "more"` {
		t.Errorf("the server was told %q", got)
	}
}

// TestLegacyFull: beyond the bound a session is refused, until one has been idle for long. Its
// client is told to initialize again.
func TestLegacyFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`)}, func(c *config.Config) { c.MaxSessions = 1 })
		h := s.Handler()
		first := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody)
		id := first.Header().Get(mcp.HeaderSession)
		ctx, leave := context.WithCancel(t.Context())
		streamed := make(chan *httptest.ResponseRecorder, 1)
		go func() { streamed <- serve(t, h, ctx, "GET", id, "") }()
		synctest.Wait()
		if full := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody); full.Code != http.StatusServiceUnavailable ||
			!strings.Contains(full.Body.String(), `"message":"too many sessions"`) {
			t.Errorf("full: %d %s", full.Code, full.Body)
		}
		leave()
		<-streamed
		wiretest.Wait(2 * time.Hour)
		if second := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody); second.Code != http.StatusOK {
			t.Errorf("second: %d %s", second.Code, second.Body)
		}
		if gone := serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); gone.Code != http.StatusNotFound {
			t.Errorf("first: %d %s", gone.Code, gone.Body)
		}
		synctest.Wait()
		if ended := s.up.endedSessions(); len(ended) != 1 || ended[0] != id {
			t.Errorf("ended %v", ended)
		}
	})
}

// TestLegacyClose: a gateway that closes ends its streams and takes no new ones,
// but the sessions, and calls in them, go on.
func TestLegacyClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`),
			Replies: map[string]scriptReply{"tools/call": {After: "1m", Result: []byte(`{"content":[]}`)}}}, nil)
		h := s.Handler()
		id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		streamed, called := make(chan *httptest.ResponseRecorder, 1), make(chan *httptest.ResponseRecorder, 1)
		go func() { streamed <- serve(t, h, t.Context(), "GET", id, "") }()
		go func() {
			called <- serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`)
		}()
		synctest.Wait()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if w := <-streamed; w.Code != http.StatusOK {
			t.Errorf("stream: %d", w.Code)
		}
		if w := serve(t, h, t.Context(), "GET", id, ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("a new stream: %d %s", w.Code, w.Body)
		}
		if w := <-called; !strings.Contains(w.Body.String(), `"result":{"content":[]}`) {
			t.Errorf("call: %s", w.Body)
		}
		if ended := s.up.endedSessions(); len(ended) != 0 {
			t.Errorf("ended %v", ended)
		}
	})
}

// TestLegacyStoreDown: nobody is told that a session is gone because it cannot be
// looked up.
func TestLegacyStoreDown(t *testing.T) {
	store := legacy.NewBrokenSessions(t, false)
	s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{}`)}, nil, func(o *gateway.Options) { o.Sessions = store })
	h := s.Handler()
	id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
	store.Down.Store(true)
	for method, body := range map[string]string{"POST": `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "GET": "", "DELETE": ""} {
		if w := serve(t, h, t.Context(), method, id, body); w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "10.0") {
			t.Errorf("%s: %d %s", method, w.Code, w.Body)
		}
	}
	if w := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody); w.Code != http.StatusServiceUnavailable {
		t.Errorf("initialize: %d %s", w.Code, w.Body)
	}
	if tableOf(s.Gateway).Busy(id) {
		t.Error("something of the session is left")
	}
}

// TestSessionOutlastsAnOutage: a client whose session this replica has not seen waits for the
// store, as it would for its task: some take one error for the end of their task.
func TestSessionOutlastsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := legacy.NewBrokenSessions(t, false)
		wait := func(c *config.Config) { c.StoreWait = time.Minute }
		h := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{}`)}, wait, func(o *gateway.Options) { o.Sessions = store }).Handler()
		id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		store.Down.Store(true)
		time.AfterFunc(30*time.Second, func() { store.Down.Store(false) })
		if w := serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestLegacyDraining: a replica that shuts down takes no new calls, and says when
// to try again.
func TestLegacyDraining(t *testing.T) {
	s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{}`)}, nil)
	h := s.Handler()
	id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
	if err := s.shim.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`)
	if want := shim.ErrDraining.Error(); !strings.Contains(w.Body.String(), want) || w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// serve has a handler answer one request of a legacy client.
func serve(t *testing.T, h http.Handler, ctx context.Context, method, session, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, (&taskClient{t: t, session: session}).request(ctx, method, body))
	return w
}

// TestLegacyStreamBreaks: what could not be sent on a stream goes out on the next
// one, and a stream that cannot be written is given up.
func TestLegacyStreamBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`)}, nil)
		h := s.Handler()
		id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		get := func() *http.Request {
			return (&taskClient{t: t, session: id}).request(t.Context(), http.MethodGet, "")
		}
		w, gone := &tape{header: http.Header{}}, make(chan struct{})
		go func() {
			defer close(gone)
			h.ServeHTTP(w, get())
		}()
		synctest.Wait()
		w.fail()
		s.up.say(shim.Notification{Method: mcp.NotifyToolsListChanged})
		<-gone

		headless := &tape{header: http.Header{}}
		headless.fail()
		h.ServeHTTP(headless, get()) // not even the head

		ctx, leave := context.WithCancel(t.Context())
		streamed := make(chan *httptest.ResponseRecorder, 1)
		go func() { streamed <- serve(t, h, ctx, "GET", id, "") }()
		synctest.Wait()
		leave()
		if body := (<-streamed).Body.String(); !strings.Contains(body, mcp.NotifyToolsListChanged) {
			t.Errorf("the message is lost: %q", body)
		}
	})
}

// TestLegacySpanCancelled: a cancelled call has a span that says so.
func TestLegacySpanCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewInMemoryExporter()
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{}`), Replies: map[string]scriptReply{"prompts/get": {Blocks: true}}},
			nil, func(o *gateway.Options) { o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)) })
		h := s.Handler()
		id := serve(t, h, t.Context(), "POST", "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		done := make(chan struct{})
		go func() {
			defer close(done)
			serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p"}}`)
		}()
		synctest.Wait()
		spans.Reset()
		serve(t, h, t.Context(), "POST", id, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		<-done
		got := spans.GetSpans()
		if len(got) != 1 {
			t.Fatalf("%d spans", len(got))
		}
		for _, kv := range got[0].Attributes {
			if kv.Key == semconv.ErrorType && kv.Value.AsString() != "" {
				return
			}
		}
		t.Errorf("%v", got[0].Attributes)
	})
}

// TestLegacyMetrics: each request in a session has a span, and is measured as it ended, and the session is when its
// client ends it. Notifications have neither.
func TestLegacyMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			of   = "mcp.server.operation.duration "
			over = " mcp.protocol.version=2025-11-25 network.protocol.name=http network.transport=tcp "
			up   = "taskgate.upstream=up"
		)
		m, r := metricstest.New(t)
		spans := tracetest.NewInMemoryExporter()
		m.Names.Learn("up", mcp.MethodToolsCall, "greet")
		s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{"capabilities":{}}`), Replies: map[string]scriptReply{
			"tools/call":     {IsError: true, Result: []byte(`{"content":[],"isError":true}`)},
			"resources/read": {Error: &shim.RPCError{Code: mcp.CodeResourceNotFound, Message: "none"}},
		}}, nil, func(o *gateway.Options) {
			o.Metrics, o.TracerProvider = m, sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		})
		h := s.Handler()
		id := serve(t, h, t.Context(), http.MethodPost, "", wiretest.InitializeBody).Header().Get(mcp.HeaderSession)
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"greet"}}`,
			`{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"made up"}}`,
			`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"a:b"}}`,
		} {
			if w := serve(t, h, t.Context(), http.MethodPost, id, body); w.Code >= http.StatusBadRequest {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		var got [][5]string
		for _, span := range spans.GetSpans() {
			attrs := make(map[string]string)
			for _, kv := range span.Attributes {
				attrs[string(kv.Key)] = kv.Value.Emit()
			}
			if attrs[string(semconv.MCPSessionID)] != id || attrs[string(semconv.MCPProtocolVersion)] != "2025-11-25" || span.SpanKind != semconv.KindClient {
				t.Errorf("%s: %v", span.Name, attrs)
			}
			failed := ""
			if span.Status.Code == codes.Error {
				failed = "failed"
			}
			got = append(got, [5]string{span.Name, attrs[string(semconv.RequestID)], attrs[string(semconv.ErrorType)], attrs[string(semconv.RPCStatusCode)], failed})
		}
		want := [][5]string{
			{"initialize", "0", "", "", ""},
			{"tools/call greet", "a", "tool_error", "", "failed"},
			{"tools/call made up", "b", "tool_error", "", "failed"},
			{"resources/read", "2", "-32002", "-32002", "failed"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		<-time.After(90 * time.Second)
		if w := serve(t, h, t.Context(), http.MethodDelete, id, ""); w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := serve(t, h, t.Context(), http.MethodDelete, id, ""); w.Code != http.StatusNotFound {
			t.Errorf("a second time: %d %s", w.Code, w.Body)
		}
		r.Want(map[string]float64{
			of + "mcp.method.name=initialize" + over + up: 1,
			of + "error.type=tool_error gen_ai.operation.name=execute_tool gen_ai.tool.name=greet mcp.method.name=tools/call" + over + up:  1,
			of + "error.type=tool_error gen_ai.operation.name=execute_tool gen_ai.tool.name=_other mcp.method.name=tools/call" + over + up: 1,
			of + "error.type=-32002 mcp.method.name=resources/read" + over + "rpc.response.status_code=-32002 " + up:                       1,
			"mcp.server.session.duration" + over + up:          1,
			"mcp.server.session.duration" + over + up + " sum": 90,
			"taskgate.sessions.active":                         0,
		})
	})
}

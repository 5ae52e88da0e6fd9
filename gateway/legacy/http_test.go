package legacy_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
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
	r := wiretest.Must(http.NewRequestWithContext(ctx, method, c.url, strings.NewReader(body)))(c.t)
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
	resp := wiretest.Must(c.do(c.t.Context(), http.MethodPost, body))(c.t)
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

// wantPost posts a message, and wants an answer with this status that has these texts.
func (c *rawClient) wantPost(body string, status int, texts ...string) {
	c.t.Helper()
	got, text := c.post(body)
	wantAnswer(c.t, got, text, status, texts...)
}

// wantAnswer wants an answer to have this status, and these texts.
func wantAnswer(t *testing.T, got int, body string, status int, texts ...string) {
	t.Helper()
	if wantTexts(t, []byte(body), texts...); got != status {
		t.Errorf("status %d, want %d: %.500s", got, status, body)
	}
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
	resp := wiretest.Must(c.do(c.t.Context(), http.MethodDelete, ""))(c.t)
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
// In the text of a handle, quotes are escaped.
func idOfTask(t *testing.T, answer string) string {
	t.Helper()
	id := regexp.MustCompile(`\\?"taskId\\?":\\?"([^"\\]+)`).FindStringSubmatch(answer)
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
	wantNext(t, told, "the cancellation upstream", `no "more"`)
}

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// newLegacySession is a server with these replies that makes no tasks, and a client with a session.
func newLegacySession(t *testing.T, replies map[string]scriptReply, change func(*config.Config), options ...func(*gateway.Options)) (*legacyServer, *taskClient) {
	t.Helper()
	s := newLegacyServer(t, upstreamScript{Era: "legacy", Raw: []byte(`{}`), Replies: replies}, change, options...)
	return s, newClient(t, s, "")
}

// TestLegacyFull: beyond the bound a session is refused, until one has been idle for long. Its
// client is told to initialize again.
func TestLegacyFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newLegacySession(t, nil, func(c *config.Config) { c.Limits.MaxSessions = 1 })
		stream := c.begin(s, "")
		nobody := &taskClient{t: t}
		nobody.wantPost(s, wiretest.InitializeBody, http.StatusServiceUnavailable, `"message":"too many sessions"`)
		stream.quit()
		wiretest.Wait(15 * time.Minute)
		nobody.wantPost(s, wiretest.InitializeBody, http.StatusOK)
		c.wantPost(s, ping, http.StatusNotFound)
		if ended := s.up.endedSessions(); !slices.Equal(ended, []string{c.session}) {
			t.Errorf("ended %v", ended)
		}
	})
}

// TestLegacyClose: a gateway that closes ends its streams and takes no new ones,
// but the sessions, and calls in them, go on.
func TestLegacyClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newLegacySession(t, map[string]scriptReply{"tools/call": {After: "1m", Result: []byte(`{"content":[]}`)}}, nil)
		stream, call := c.begin(s, ""), c.begin(s, plainCall)
		wiretest.Check(t, s.Close(t.Context()))
		if synctest.Wait(); !stream.ended() || stream.w.status > http.StatusOK {
			t.Errorf("stream: %d, ended %t", stream.w.status, stream.ended())
		}
		c.wantPost(s, "", http.StatusServiceUnavailable)
		<-call.done
		call.wantOnly(`"result":{"content":[]}`)
		if ended := s.up.endedSessions(); len(ended) != 0 {
			t.Errorf("ended %v", ended)
		}
	})
}

// TestLegacyStoreDown: nobody is told that a session is gone because it cannot be
// looked up.
func TestLegacyStoreDown(t *testing.T) {
	store := legacy.NewBrokenSessions(t, false)
	s, c := newLegacySession(t, nil, nil, func(o *gateway.Options) { o.Sessions = store })
	store.Down.Store(true)
	for method, body := range map[string]string{"POST": ping, "GET": "", "DELETE": ""} {
		w := serve(t, s.Handler(), t.Context(), method, c.session, body)
		wantServed(t, w, http.StatusServiceUnavailable)
		wantNoTexts(t, w.Body.Bytes(), "10.0")
	}
	(&taskClient{t: t}).wantPost(s, wiretest.InitializeBody, http.StatusServiceUnavailable)
	if tableOf(s.Gateway).Busy(c.session) {
		t.Error("something of the session is left")
	}
}

// TestSessionOutlastsAnOutage: a client whose session this replica has not seen waits for the
// store, as it would for its task: some take one error for the end of their task.
func TestSessionOutlastsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := legacy.NewBrokenSessions(t, false)
		s, c := newLegacySession(t, nil, func(c *config.Config) { c.StoreWait = time.Minute }, func(o *gateway.Options) { o.Sessions = store })
		store.Down.Store(true)
		time.AfterFunc(30*time.Second, func() { store.Down.Store(false) })
		c.wantPost(s, ping, http.StatusOK)
	})
}

// TestLegacyDraining: a replica that shuts down takes no new calls, and says when
// to try again.
func TestLegacyDraining(t *testing.T) {
	s, c := newLegacySession(t, nil, nil)
	wiretest.Check(t, s.shim.Drain(t.Context()))
	w := c.wantPost(s, plainCall, http.StatusServiceUnavailable, shim.ErrDraining.Error())
	if after := w.Header().Get("Retry-After"); after != "1" {
		t.Errorf("again after %q", after)
	}
}

// serve has a handler answer one request of a legacy client.
func serve(t *testing.T, h http.Handler, ctx context.Context, method, session, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, (&taskClient{t: t, session: session}).request(ctx, method, body))
	return w
}

func wantServed(t *testing.T, got *httptest.ResponseRecorder, status int, texts ...string) {
	t.Helper()
	wantAnswer(t, got.Code, got.Body.String(), status, texts...)
}

// wantPost posts a message, or opens the GET stream without one, and wants an answer with this status and these texts.
func (c *taskClient) wantPost(g *legacyServer, body string, status int, texts ...string) *httptest.ResponseRecorder {
	c.t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	w := serve(c.t, g.Handler(), c.t.Context(), method, c.session, body)
	wantServed(c.t, w, status, texts...)
	return w
}

// TestLegacyStreamBreaks: what could not be sent on a stream goes out on the next
// one, and a stream that cannot be written is given up.
func TestLegacyStreamBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newLegacySession(t, nil, nil)
		stream := c.begin(s, "")
		stream.w.fail()
		s.up.say(shim.Notification{Method: mcp.NotifyToolsListChanged})
		<-stream.done

		headless := &tape{header: http.Header{}}
		headless.fail()
		s.Handler().ServeHTTP(headless, c.request(t.Context(), http.MethodGet, "")) // not even the head

		next := c.begin(s, "")
		wantTexts(t, bytes.Join(next.quit(), nil), mcp.NotifyToolsListChanged)
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
		s, c := newLegacySession(t, map[string]scriptReply{
			"tools/call":     {IsError: true, Result: []byte(`{"content":[],"isError":true}`)},
			"resources/read": {Error: &shim.RPCError{Code: mcp.CodeResourceNotFound, Message: "none"}},
			"prompts/get":    {Blocks: true},
		}, nil, func(o *gateway.Options) {
			o.Metrics, o.TracerProvider = m, sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		})
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"greet"}}`,
			`{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"made up"}}`,
			`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"a:b"}}`,
		} {
			if w := serve(t, s.Handler(), t.Context(), http.MethodPost, c.session, body); w.Code >= http.StatusBadRequest {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		call := c.begin(s, `{"jsonrpc":"2.0","id":3,"method":"prompts/get","params":{"name":"p"}}`)
		c.wantPost(s, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`, http.StatusAccepted)
		<-call.done
		var got [][5]string
		for _, span := range spans.GetSpans() {
			attrs := make(map[string]string)
			for _, kv := range span.Attributes {
				attrs[string(kv.Key)] = kv.Value.Emit()
			}
			if attrs[string(semconv.MCPSessionID)] != c.session || attrs[string(semconv.MCPProtocolVersion)] != "2025-11-25" || span.SpanKind != semconv.KindClient {
				t.Errorf("%s: %v", span.Name, attrs)
			}
			failed := ""
			if span.Status.Code == codes.Error {
				failed = "failed"
			}
			got = append(got, [5]string{span.Name, attrs[string(semconv.RequestID)], attrs[string(semconv.ErrorType)], attrs[string(semconv.RPCStatusCode)], failed})
		}
		want := [][5]string{
			{"initialize", "1", "", "", ""},
			{"tools/call greet", "a", "tool_error", "", "failed"},
			{"tools/call made up", "b", "tool_error", "", "failed"},
			{"resources/read", "2", "-32002", "-32002", "failed"},
			{"prompts/get p", "3", "cancelled", "", "failed"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		<-time.After(90 * time.Second)
		for _, status := range []int{http.StatusOK, http.StatusNotFound} {
			wantServed(t, serve(t, s.Handler(), t.Context(), http.MethodDelete, c.session, ""), status)
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

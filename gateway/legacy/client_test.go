package legacy_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// What clients of the drafts declare.
const (
	allModes    = `"tasks":{"responses":{"modes":["task","immediate","streaming"]}}`
	someModes   = `"tasks":{"responses":{"modes":["task","immediate"]}}`
	takePartial = `"tasks":{"streaming":{"partial":{}}}`
	takeAll     = `"tasks":{"streaming":{"partial":{}},"responses":{"modes":["task","immediate","streaming"]}}`
)

// newClient is a client of 2025-11-25, or another version, that declares these capabilities.
func newClient(t *testing.T, g *legacyServer, capabilities string, version ...string) *taskClient {
	t.Helper()
	c := &taskClient{t: t}
	c.do(g, mcp.MethodInitialize, `{"protocolVersion":"`+cmp.Or(append(version, mcp.Version20251125)...)+`","capabilities":{`+capabilities+`},"clientInfo":{"name":"c","version":"1"}}`)
	return c
}

// tape is a response that can be read while it is written.
type tape struct {
	mu     sync.Mutex
	header http.Header
	status int
	body   bytes.Buffer
	full   chan struct{} // while it is open, writing blocks; nil: it never does
	err    error         // what writing comes to from now on
}

// hold has writing block, until it is let go of.
func (w *tape) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = make(chan struct{})
}

func (w *tape) letGo() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.full)
}

// fail has all that is written from now on be lost.
func (w *tape) fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.New("broken pipe")
}

func (w *tape) Header() http.Header { return w.header }
func (w *tape) Flush()              {}

func (w *tape) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = status
}

func (w *tape) Write(b []byte) (int, error) {
	w.mu.Lock()
	full := w.full
	w.mu.Unlock()
	if full != nil {
		<-full
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	return w.body.Write(b)
}

// hearing is a request that is not waited for.
type hearing struct {
	t     *testing.T
	w     *tape
	leave context.CancelFunc
	done  chan struct{}
}

// begin sends something to a replica. An empty body is a GET. It ends with the replica.
func (c *taskClient) begin(g *legacyServer, body string, header ...string) *hearing {
	c.t.Helper()
	ctx, leave := context.WithCancel(c.t.Context())
	a := &hearing{t: c.t, w: &tape{header: http.Header{}}, leave: leave, done: make(chan struct{})}
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r := c.request(ctx, method, body)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	g.requests.Go(func() {
		defer close(a.done)
		g.Handler().ServeHTTP(a.w, r)
	})
	synctest.Wait()
	return a
}

// ask begins a request with an id of its own.
func (c *taskClient) ask(g *legacyServer, method, params string, header ...string) *hearing {
	c.t.Helper()
	c.serial++
	return c.begin(g, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.serial, method, params), header...)
}

// said is what has come so far.
func (a *hearing) said() [][]byte {
	a.t.Helper()
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return wiretest.MessagesOf(a.w.header.Get("Content-Type"), bytes.Clone(a.w.body.Bytes()))
}

// loggedIn is the data of log messages.
func loggedIn(messages [][]byte) (data []string) {
	for _, m := range messages {
		text, _ := jsonrpc.GetString(m, "params", "data")
		data = append(data, text)
	}
	return data
}

// wantOnly wants one message, which says this, on a stream that has ended.
func (a *hearing) wantOnly(text string) {
	a.t.Helper()
	if said := a.said(); len(said) != 1 || !strings.Contains(string(said[0]), text) || !a.ended() {
		a.t.Errorf("it has heard %s, and ended: %t; want %s", said, a.ended(), text)
	}
}

// wantLast wants what has come last to say this.
func (a *hearing) wantLast(text string) {
	a.t.Helper()
	said := a.said()
	wantTexts(a.t, said[len(said)-1], text)
}

// ended reports whether the answer is complete.
func (a *hearing) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// quit has the client go.
func (a *hearing) quit() [][]byte {
	a.leave()
	<-a.done
	return a.said()
}

// lastID is the id of the last event; "" if none has one.
func (a *hearing) lastID() string {
	ids := append([]string{""}, a.ids()...)
	return ids[len(ids)-1]
}

func (a *hearing) ids() (ids []string) {
	for _, event := range a.events() {
		if event.id != "" {
			ids = append(ids, event.id)
		}
	}
	return ids
}

// segments is a client of SEP-1905 that trusts nobody: it wants the blocks in order,
// each once, by whatever way they come, and nothing after the end. With anyOrder it does what the SEP wants of a
// client (A11): it takes blocks from any response, in any order, notes those that come again, sees where some are
// missing, and puts them in order.
type segments struct {
	t        *testing.T
	anyOrder bool
	task     shim.ID
	last     int64            // the highest number
	blocks   map[int64]string // by number
	repeats  []int64
	over     bool
	failed   bool
	reason   string // of a failure without any block
}

// take reads the answers to one request.
func (s *segments) take(msgs ...[]byte) {
	s.t.Helper()
	for _, text := range msgs {
		m, err := jsonrpc.Parse(text)
		if err != nil || m.Kind != jsonrpc.Result {
			if s.anyOrder {
				s.t.Fatalf("no result: %s", text)
			}
			continue
		}
		if id, ok := jsonrpc.GetString(m.Result, "task", "taskId"); ok {
			schematest.Validate(s.t, mcp.Version20251125, "CreateTaskResult", m.Result)
			s.task = shim.ID(id)
		}
		if _, ok := jsonrpc.Get(m.Result, "isComplete"); ok {
			s.segment(m.Result)
		}
	}
}

func (s *segments) segment(result json.RawMessage) {
	s.t.Helper()
	if s.over && !s.anyOrder {
		s.t.Errorf("after the end: %s", result)
	}
	related, _ := jsonrpc.GetString(result, "_meta", mcp.MetaRelatedTask, "taskId")
	if _, first := jsonrpc.Get(result, "task"); !first {
		if s.task = cmp.Or(s.task, shim.ID(related)); related != string(s.task) {
			s.t.Errorf("related to %q, want %q: %s", related, s.task, result)
		}
	}
	list, pieces := jsonrpc.Get(result, "partial-content")
	if !pieces { // what failed before it said anything (A14)
		content, _ := jsonrpc.Get(result, "content")
		for b := range jsonrpc.Elements(content) {
			schematest.Validate(s.t, mcp.Version20251125, "ContentBlock", b)
			s.reason, _ = jsonrpc.GetString(b, "text")
		}
	}
	for b := range jsonrpc.Elements(list) {
		s.block(b)
	}
	complete, _ := jsonrpc.Get(result, "isComplete")
	failed, _ := jsonrpc.Get(result, "isError")
	s.over, s.failed = s.over || string(complete) == "true", string(failed) == "true"
}

// block reads one block.
func (s *segments) block(b json.RawMessage) {
	s.t.Helper()
	raw, _ := jsonrpc.Get(b, "seqNr")
	no, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || no < 1 || !s.anyOrder && no != s.last+1 {
		s.t.Fatalf("seqNr %s, after %d: %s", raw, s.last, b)
	}
	plain := jsonrpc.Without(b, "seqNr")
	schematest.Validate(s.t, mcp.Version20251125, "ContentBlock", plain)
	if was, known := s.blocks[no]; known {
		if s.repeats = append(s.repeats, no); was != string(plain) {
			s.t.Errorf("%d is %s, and was %s", no, plain, was)
		}
	}
	if s.blocks == nil {
		s.blocks = make(map[int64]string)
	}
	s.blocks[no], s.last = string(plain), max(s.last, no)
}

// numbers are those of the blocks that it has.
func (s *segments) numbers() []int64 { return slices.Sorted(maps.Keys(s.blocks)) }

// gap is the number after which the first block is missing.
func (s *segments) gap() (after int64, missing bool) {
	for s.blocks[after+1] != "" {
		after++
	}
	return after, after < int64(len(s.blocks))
}

// wantMerged wants all that came, in order, to be the content of the task's result (A12).
func (s *segments) wantMerged(c *taskClient, g *legacyServer) {
	s.t.Helper()
	result := c.do(g, mcp.MethodTasksResult, `{"taskId":"`+string(s.task)+`"}`)
	schematest.Validate(s.t, mcp.Version20251125, "CallToolResult", result)
	content, _ := jsonrpc.Get(result, "content")
	var list []string
	for _, no := range s.numbers() {
		list = append(list, s.blocks[no])
	}
	if got := "[" + strings.Join(list, ",") + "]"; !s.over || got != string(content) {
		s.t.Errorf("complete: %t; all segments %s are not the content %s", s.over, got, content)
	}
}

// partialReader is a client of SEP-2679 that trusts nobody either.
type partialReader struct {
	t    *testing.T
	next map[shim.ID]int64
	text map[shim.ID]string
	over map[shim.ID]bool
}

func newPartialReader(t *testing.T) *partialReader {
	return &partialReader{t: t, next: map[shim.ID]int64{}, text: map[shim.ID]string{}, over: map[shim.ID]bool{}}
}

// take reads what one stream said.
func (r *partialReader) take(msgs [][]byte) {
	r.t.Helper()
	for _, text := range msgs {
		method, _ := jsonrpc.GetString(text, "method")
		task, _ := jsonrpc.GetString(text, "params", "taskId")
		id := shim.ID(task)
		switch method {
		case mcp.NotifyTaskStatus:
			schematest.Validate(r.t, mcp.Version20251125, "TaskStatusNotification", text)
			status, _ := jsonrpc.GetString(text, "params", "status")
			r.over[id] = shim.Status(status).Final()
		case mcp.NotifyTaskPartial:
			if r.over[id] {
				r.t.Errorf("after the end: %s", text)
			}
			if _, seq, _ := legacy.PartialOf(text); seq != r.next[id] {
				r.t.Fatalf("seq %d, want %d: %s", seq, r.next[id], text)
			}
			r.next[id]++
			if related, _ := jsonrpc.GetString(text, "params", "_meta", mcp.MetaRelatedTask, "taskId"); related != task {
				r.t.Errorf("related to %q (P14): %s", related, text)
			}
			content, _ := jsonrpc.Get(text, "params", "content")
			n := 0
			for b := range jsonrpc.Elements(content) {
				schematest.Validate(r.t, mcp.Version20251125, "ContentBlock", b)
				piece, _ := jsonrpc.GetString(b, "text")
				r.text[id] += piece
				n++
			}
			if n == 0 {
				r.t.Errorf("no content (P1): %s", text)
			}
		}
	}
}

// wantAll wants a task to have said this, and to have ended.
func (r *partialReader) wantAll(id shim.ID, text string) {
	r.t.Helper()
	if !r.over[id] || r.text[id] != text {
		r.t.Errorf("%q, over %t", r.text[id], r.over[id])
	}
}

// The tool "some" says somePieces, each second one of them; "many" says allPieces: more than is kept for a client that
// does not read.
var somePieces, allPieces = strings.Repeat("x", 40), strings.Repeat("x", 80)

// draftScript is a server whose tools say something on the way.
func draftScript() upstreamScript {
	progress := func(texts ...string) (list []json.RawMessage) {
		for i, text := range texts {
			list = append(list, fmt.Appendf(nil, `{"progressToken":"x","progress":%d,"message":%q}`, i+1, text))
		}
		return list
	}
	return upstreamScript{Era: "legacy", Raw: json.RawMessage(`{"capabilities":{"tools":{}}}`), Replies: map[string]scriptReply{
		"tools/call quick": {After: "1s", Result: json.RawMessage(`{"content":[{"type":"text","text":"quick"}],"x":1.0}`)},
		"tools/call plain": {After: "60s", Result: json.RawMessage(`{"content":[{"type":"text","text":"one"},{"type":"image","data":"","mimeType":"image/png"}]}`)},
		"tools/call tokens": {Every: "10s", Progress: progress("Once ", "upon ", "a "), After: "5s",
			Result: json.RawMessage(`{"content":[{"type":"text","text":"Once upon a \u003ctime"},{"type":"text","text":"end"}],"structuredContent":{"n":1.0}}`)},
		"tools/call breaks": {Every: "10s", Progress: progress("so ", "far "), After: "5s", Error: &shim.RPCError{Code: -32603, Message: "out of ink"}},
		"tools/call fails":  {Every: "10s", Progress: progress("so ", "far "), After: "5s", IsError: true, Result: json.RawMessage(`{"content":[{"type":"text","text":"out of ink"}],"isError":true}`)},
		"tools/call broken": {After: "5s", Error: &shim.RPCError{Code: -32603, Message: "no ink"}},
		"tools/call prompt": {After: "20ms", Result: json.RawMessage(`{"content":[{"type":"text","text":"at "},{"type":"text","text":"once"}]}`)},
		"tools/call letters": {Every: "2s", Progress: progress("a", "b", "c", "d", "e"), After: "1s",
			Result: json.RawMessage(`{"content":[{"type":"text","text":"abcde"}]}`)},
		"tools/call forever": {Every: "10s", Progress: progress("a", "b"), Blocks: true},
		"tools/call some": {Every: "1s", Progress: progress(strings.Split(somePieces, "")...), After: "1s",
			Result: json.RawMessage(`{"content":[{"type":"text","text":"done"}]}`)},
		"tools/call many": {Every: "1s", Progress: progress(strings.Split(allPieces, "")...), After: "1s",
			Result: json.RawMessage(`{"content":[]}`)},
		"tools/list":       {Result: json.RawMessage(`{"tools":[{"name":"plain","inputSchema":{"type":"object"}},{"name":"never","inputSchema":{"type":"object"}}]}`)},
		"logging/setLevel": {Result: json.RawMessage(`{}`)},
	}}
}

// draftConfig vouches for the progress of all tools but plain, some and many.
func draftConfig(t *testing.T) *config.Config {
	t.Helper()
	return parseConfig(t, `
upstreams:
  - name: up
    url: http://up.example/
    response_modes: on
    defaults: {grace: 5s, progress: content}
    tools:
      - {match: plain, progress: status}
      - {match: some, progress: status}
      - {match: many, progress: status}
      - {match: never, tasks: never}
      - {match: always, tasks: always}
`)
}

// parseConfig reads a configuration, without an environment.
func parseConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	return wiretest.Must(config.Parse("config.yaml", []byte(text), func(string) (string, bool) { return "", false }))(t)
}

// taskClient is a client of 2025-11-25 with a session, that may go to any replica.
type taskClient struct {
	t       *testing.T
	session string
	serial  int
}

// do sends a request to a replica and returns its result.
func (c *taskClient) do(g *legacyServer, method, params string) json.RawMessage {
	c.t.Helper()
	c.serial++
	rec := httptest.NewRecorder()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.serial, method, params)
	g.Handler().ServeHTTP(rec, c.request(c.t.Context(), http.MethodPost, body))
	if id := rec.Header().Get(mcp.HeaderSession); id != "" {
		c.session = id
	}
	result, ok := jsonrpc.Get(rec.Body.Bytes(), "result")
	if !ok {
		c.t.Fatalf("%s: %d %s", method, rec.Code, rec.Body)
	}
	return result
}

func (c *taskClient) request(ctx context.Context, method, body string) *http.Request {
	r := httptest.NewRequest(method, "/up/mcp", strings.NewReader(body)).WithContext(ctx)
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	if c.session != "" {
		r.Header.Set(mcp.HeaderSession, c.session)
	}
	return r
}

// call makes a task of a call and returns its id.
func (c *taskClient) call(g *legacyServer, tool string) shim.ID {
	c.t.Helper()
	result := c.do(g, mcp.MethodToolsCall, `{"name":"`+tool+`","task":{}}`)
	id, ok := jsonrpc.GetString(result, "task", "taskId")
	if !ok {
		c.t.Fatalf("no task: %s", result)
	}
	return shim.ID(id)
}

// statuses has the client go, and tells what came on its stream: of each notification the task and its state.
func (a *hearing) statuses() (out []string) {
	a.t.Helper()
	for _, text := range a.quit() {
		schematest.Validate(a.t, mcp.Version20251125, "TaskStatusNotification", text)
		id, _ := jsonrpc.GetString(text, "params", "taskId")
		status, _ := jsonrpc.GetString(text, "params", "status")
		message, _ := jsonrpc.GetString(text, "params", "statusMessage")
		out = append(out, strings.TrimSpace(id+" "+status+" "+message))
	}
	return out
}

// result begins to wait for the result of a task.
func (w *world) result(g *legacyServer, id shim.ID) *hearing {
	w.t.Helper()
	return w.c.ask(g, mcp.MethodTasksResult, `{"taskId":"`+string(id)+`"}`)
}

// resume goes on with a stream after the last event of it that has come.
func (w *world) resume(g *legacyServer, of *hearing) *hearing {
	w.t.Helper()
	return w.c.begin(g, "", mcp.HeaderLastEventID, of.lastID())
}

// answer answers a question.
func (w *world) answer(g *legacyServer, question string) {
	w.t.Helper()
	body := answerBody(question, "red")
	if a := w.c.begin(g, body); a.w.status != http.StatusAccepted {
		w.t.Errorf("an answer: %d", a.w.status)
	}
}

// asked are the ids of the questions that have come, and of those that were taken back,
// each with a minus.
func (a *hearing) asked() (ids []string) {
	a.t.Helper()
	for _, text := range a.said() {
		if _, _, over, ok := legacy.ReadQuestion(text); over {
			id, _ := jsonrpc.GetString(text, "params", "requestId")
			ids = append(ids, "-"+id)
		} else if ok {
			id, _ := jsonrpc.GetString(text, "id")
			ids = append(ids, id)
		}
	}
	return ids
}

// wantAsked wants these questions to have come, and no others.
func (a *hearing) wantAsked(what string, ids ...string) {
	a.t.Helper()
	if got := a.asked(); !slices.Equal(got, ids) {
		a.t.Fatalf("%s: asked %v, want %v, in %s", what, got, ids, bytes.Join(a.said(), []byte("\n")))
	}
}

// nameQuestion names a question that a task of the script asks.
func nameQuestion(id shim.ID, no int) string { return legacy.QuestionName(id, fmt.Sprint("q", no)) }

// closeAll closes what is open, so that the replicas can end.
func (w *world) closeAll(open ...*hearing) {
	for _, a := range open {
		a.leave()
		<-a.done
	}
	wiretest.Wait(time.Second)
}

// A client may leave before its request has a log.
func TestClientThatLeavesAtOnce(t *testing.T) {
	inAskWorld(t, nil, func(t *testing.T, w *world) {
		gone, leave := context.WithCancel(t.Context())
		leave()
		for id := range 100 {
			r := w.c.request(gone, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"slow"}}`, 100+id))
			w.a.Handler().ServeHTTP(httptest.NewRecorder(), r)
		}
		w.c.do(w.a, mcp.MethodPing, `{}`)
	})
}

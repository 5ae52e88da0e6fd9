package legacy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/internal/wiretest"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// TestLegacyWire replays the transcripts of testdata/legacy and compares what the
// gateway writes with them, byte for byte; -update rewrites them. Their sections
// are steps:
//
//	config        the configuration of a gateway that makes tasks, with a store
//	upstream      the script of the upstream (upstreamScript)
//	request       a request; the next response section is its response
//	modern        likewise, by a modern client (see sendModern)
//	open NAME     a request that is not waited for
//	close NAME    its client goes; then what it had been sent
//	leave NAME    its client goes, and nothing else
//	finished NAME what it was sent, after it ended by itself
//	says          notifications of the upstream, one per line
//	fails         from now on the upstream cannot be reached; empty: it can again
//	wait          time that passes
//	saw           what the upstream was asked since the last such section; "saw all"
//	              is sorted, where several things happen at once
//
// Sessions are written as ${s1}, ${s2} in the order of their making, and so are
// tasks as ${t1}, ${t2}, cursors as ${c1}, ${c2} and logs of streams as ${l1}, ${l2}. Every message
// is held against the official schema of the version that the session has.
func TestLegacyWire(t *testing.T) {
	replayTranscripts(t, "legacy", func(t *testing.T, archive *txtar.Archive) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { playLegacy(t, archive) })
	})
}

// replayTranscripts has each transcript of a folder written anew, and compares what comes of it with what is there.
func replayTranscripts(t *testing.T, folder string, play func(*testing.T, *txtar.Archive)) {
	files, err := filepath.Glob("testdata/" + folder + "/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive := wiretest.Must(txtar.ParseFile(file))(t)
			want := txtar.Format(archive)
			play(t, archive)
			if got := txtar.Format(archive); *wiretest.Update {
				wiretest.Check(t, os.WriteFile(file, got, 0o644))
			} else if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// legacyPlay is a transcript under way.
type legacyPlay struct {
	t       *testing.T
	config  *config.Config // nil: no tasks
	server  *legacyServer
	handler http.Handler
	secrets []secret
	version string
	methods map[string]string // of the requests sent, by id
	last    string
	open    map[string]*openRequest
}

type openRequest struct {
	cancel context.CancelFunc
	done   chan string
}

func playLegacy(t *testing.T, archive *txtar.Archive) {
	p := &legacyPlay{t: t, version: mcp.Version20251125, methods: make(map[string]string), open: make(map[string]*openRequest)}
	for i := range archive.Files {
		f := &archive.Files[i]
		word, name, _ := strings.Cut(f.Name, " ")
		switch text := strings.TrimSpace(string(f.Data)); word {
		case "upstream":
			var script upstreamScript
			if err := json.Unmarshal(f.Data, &script); err != nil {
				t.Fatalf("upstream: %v", err)
			}
			p.serve(script)
		case "config":
			c := parseConfig(t, string(f.Data))
			p.config = c
		case "request":
			p.last = p.send(context.Background(), f.Data)
		case "modern":
			p.last = p.sendModern(text)
		case "response":
			f.Data = []byte(p.last)
		case "open":
			p.start(name, f.Data)
		case "close":
			p.open[name].cancel()
			f.Data = []byte(<-p.open[name].done)
		case "leave":
			p.open[name].cancel()
		case "finished":
			f.Data = []byte(<-p.open[name].done)
		case "says":
			p.says(text)
		case "fails":
			p.fails(text)
		case "wait":
			d := wiretest.Must(time.ParseDuration(text))(t)
			<-time.After(d)
			synctest.Wait() // for what else happens at that time
		case "saw":
			synctest.Wait()
			saw := p.server.up.seen()
			if name == "all" {
				slices.Sort(saw)
			}
			f.Data = []byte(strings.Join(append(saw, ""), "\n"))
		default:
			t.Fatalf("section %q", f.Name)
		}
		synctest.Wait()
	}
}

func (p *legacyPlay) start(name string, data []byte) {
	ctx, cancel := context.WithCancel(context.Background())
	o := &openRequest{cancel: cancel, done: make(chan string, 1)}
	p.open[name] = o
	go func() {
		defer cancel()
		o.done <- p.send(ctx, data)
	}()
}

func (p *legacyPlay) says(text string) {
	for line := range strings.Lines(text) {
		method, params, _ := strings.Cut(strings.TrimSpace(line), " ")
		n := shim.Notification{Method: method}
		if params != "" {
			n.Params = json.RawMessage(params)
		}
		p.server.up.say(n)
	}
}

func (p *legacyPlay) fails(text string) {
	var err error
	if text != "" {
		err = &shim.UpstreamError{Kind: "unreachable", Message: text, Err: errors.New("dial tcp 10.0.0.1:80")}
	}
	p.server.up.mu.Lock()
	defer p.server.up.mu.Unlock()
	p.server.up.fail = err
}

// send serves one request and writes down the response.
func (p *legacyPlay) send(ctx context.Context, data []byte) string {
	data = []byte(p.revealed(string(data)))
	r := readRequest(p.t, data).WithContext(ctx)
	_, body, _ := bytes.Cut(data, []byte("\n\n"))
	if m, err := jsonrpc.Parse(bytes.TrimSpace(body)); err == nil && m.Kind == jsonrpc.Request {
		p.methods[m.ID.Key()] = m.Method // so that the result can be checked
	}
	w := httptest.NewRecorder()
	p.handler.ServeHTTP(w, r)
	return p.dump(w)
}

// readRequest reads a method, header lines, and after a blank line a body. What
// every client sends need not be written.
func readRequest(t *testing.T, data []byte) *http.Request {
	head, body, _ := bytes.Cut(data, []byte("\n\n"))
	lines := bufio.NewScanner(bytes.NewReader(head))
	lines.Scan()
	r := httptest.NewRequest(lines.Text(), "/up/mcp", bytes.NewReader(bytes.TrimSpace(body)))
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			t.Fatalf("header %q", lines.Text())
		}
		if value = strings.TrimSpace(value); value == "" {
			r.Header.Del(name)
			continue
		}
		r.Header.Set(name, value)
	}
	return r
}

func (p *legacyPlay) dump(w *httptest.ResponseRecorder) string {
	resp := w.Result()
	body, _ := io.ReadAll(resp.Body) // a recorder's body
	if id := resp.Header.Get(mcp.HeaderSession); id != "" {
		p.keep("s", id)
		if v, ok := jsonrpc.GetString(body, "result", "protocolVersion"); ok {
			p.version = v
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	if id := resp.Header.Get(mcp.HeaderSession); id != "" {
		fmt.Fprintf(&out, "\n%s: %s", mcp.HeaderSession, id)
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") { // else it is answered by the mux
		for _, msg := range wiretest.MessagesOf(resp.Header.Get("Content-Type"), body) {
			p.check(msg)
		}
	}
	if len(body) > 0 {
		fmt.Fprintf(&out, "\n\n%s", strings.TrimRight(string(body), "\n"))
	}
	return p.hidden(strings.TrimRight(out.String(), " ") + "\n")
}

// legacyResultDefinitions are the names of results in the schemas.
var legacyResultDefinitions = map[string]string{
	mcp.MethodInitialize: "InitializeResult", mcp.MethodPing: "EmptyResult", mcp.MethodSetLevel: "EmptyResult",
	mcp.MethodToolsList: "ListToolsResult", mcp.MethodToolsCall: "CallToolResult",
	mcp.MethodPromptsList: "ListPromptsResult", mcp.MethodPromptsGet: "GetPromptResult",
	mcp.MethodResourcesList: "ListResourcesResult", mcp.MethodResourcesRead: "ReadResourceResult",
	mcp.MethodResourceTemplatesList: "ListResourceTemplatesResult", mcp.MethodComplete: "CompleteResult",
	mcp.MethodResourcesSubscribe: "EmptyResult", mcp.MethodResourcesUnsubscribe: "EmptyResult",
	mcp.MethodTasksGet: "GetTaskResult", mcp.MethodTasksList: "ListTasksResult", mcp.MethodTasksCancel: "CancelTaskResult",
	mcp.MethodTasksResult: "CallToolResult",
}

// check holds a message that the gateway sent against the schema of the version.
func (p *legacyPlay) check(text []byte) {
	p.t.Helper()
	m, err := jsonrpc.Parse(text)
	if err != nil {
		p.t.Errorf("%v\n%s", err, text)
		return
	}
	switch m.Kind {
	case jsonrpc.Result:
		schematest.Validate(p.t, p.version, p.definition("JSONRPCResultResponse", "JSONRPCResponse"), text)
		if _, ok := jsonrpc.Get(m.Result, "partial-content"); ok {
			return // no schema has it
		}
		if _, ok := jsonrpc.Get(m.Result, "task"); ok && p.methods[m.ID.Key()] == mcp.MethodToolsCall {
			schematest.Validate(p.t, p.version, "CreateTaskResult", m.Result)
		} else if def, ok := legacyResultDefinitions[p.methods[m.ID.Key()]]; ok {
			schematest.Validate(p.t, p.version, def, m.Result)
		}
	case jsonrpc.ErrorResponse:
		def := p.definition("JSONRPCErrorResponse", "JSONRPCError")
		if def == "JSONRPCErrorResponse" || !m.ID.IsZero() { // older schemas have no place for an error without id
			schematest.Validate(p.t, p.version, def, text)
		}
	case jsonrpc.Notification:
		if m.Method == mcp.NotifyTaskPartial {
			return // likewise
		}
		schematest.Validate(p.t, p.version, "ServerNotification", text)
	default:
		p.t.Errorf("a %v to the client: %s", m.Kind, text)
	}
}

func (p *legacyPlay) definition(names ...string) string {
	for _, n := range names {
		if schematest.Has(p.version, n) {
			return n
		}
	}
	return names[0]
}

// serve starts the gateway that a transcript is about.
func (p *legacyPlay) serve(script upstreamScript) {
	if p.config == nil {
		p.server = newLegacyServer(p.t, script, nil)
	} else {
		p.server = newWorld(p.t).gateway("r", script, p.config)
	}
	p.handler = p.server.Handler()
}

// sendModern serves a request of a modern client: perhaps headers and a blank
// line, then the body.
func (p *legacyPlay) sendModern(text string) string {
	head, body, ok := strings.Cut(text, "\n\n")
	if !ok {
		head, body = "", text
	}
	r, _, msg := wiretest.ParseRequest(p.t, strings.TrimSpace("POST /up/mcp\n"+head)+"\n\n"+p.revealed(body)+"\n")
	rec := httptest.NewRecorder()
	p.handler.ServeHTTP(rec, r)
	wiretest.CheckSchemas(p.t, msg, "", rec)
	return p.hidden(wiretest.ResponseText(rec))
}

// secret is something random in a transcript, and what stands for it.
type secret struct{ text, name string }

// secrets are the patterns of what is random.
var secretPatterns = []struct {
	letter  string
	pattern *regexp.Regexp
}{
	{"t", regexp.MustCompile(`"taskId\\?":\\?"([0-9a-f-]+)`)}, // also inside a text
	{"l", regexp.MustCompile(`(?m)^id: ([A-Z2-7]{16})\.`)},
	{"c", regexp.MustCompile(`"nextCursor":"([^"]+)"`)},
}

// hidden replaces what is random by names. Without tasks only sessions are.
func (p *legacyPlay) hidden(text string) string {
	for _, s := range secretPatterns {
		for _, m := range s.pattern.FindAllStringSubmatch(text, -1) {
			if p.config != nil {
				p.keep(s.letter, m[1])
			}
		}
	}
	for _, s := range p.secrets {
		text = strings.ReplaceAll(text, s.text, s.name)
	}
	return text
}

// keep gives a random text the next name of its kind, unless it has one.
func (p *legacyPlay) keep(letter, text string) {
	n := 1
	for _, s := range p.secrets {
		if s.text == text {
			return
		}
		if strings.HasPrefix(s.name, "${"+letter) {
			n++
		}
	}
	p.secrets = append(p.secrets, secret{text, fmt.Sprintf("${%s%d}", letter, n)})
}

// revealed puts what is random back.
func (p *legacyPlay) revealed(text string) string {
	for _, s := range p.secrets {
		text = strings.ReplaceAll(text, s.name, s.text)
	}
	return text
}

// TestBrokenServersWire replays the transcripts of testdata/broken, each a mistake of servers,
// and compares what clients of both eras get with them, byte for byte; -update rewrites them.
// Their sections are steps:
//
//	server ERA  a server of this era, legacy or modern, behind a new gateway
//	sends       the body with which it answers tools/call, as JSON or, if it begins with
//	            "data:", as events. {id} and {token} are those of the request, <CR> is a
//	            carriage return that ends a line, and <FF> a byte that is no UTF-8
//	legacy      what a client of 2025-11-25 gets for a call with a progress token
//	modern      what one of 2026-07-28 gets
func TestBrokenServersWire(t *testing.T) {
	replayTranscripts(t, "broken", func(t *testing.T, archive *txtar.Archive) {
		var server *fake.Server
		var handler http.Handler
		for i := range archive.Files {
			f := &archive.Files[i]
			switch word, name, _ := strings.Cut(f.Name, " "); word {
			case "server":
				mode := fake.Stateful
				if name == "modern" {
					mode = fake.Modern
				}
				server = fake.New(t, mode)
				handler = startAlone(t, upstream.Config{URL: server.URL}, nil).Handler()
			case "sends":
				server.Tool("t", answerWith(string(f.Data)))
			case "legacy":
				made := askBroken(t, handler, "POST /up/mcp\n\n"+wiretest.InitializeBody)
				session := mcp.HeaderSession + ": " + made.Header().Get(mcp.HeaderSession)
				f.Data = []byte(responseText(askBroken(t, handler, "POST /up/mcp\n"+session+"\n\n"+brokenCall)))
			case "modern":
				f.Data = []byte(responseText(askBroken(t, handler, "POST /up/mcp\n\n"+brokenModern)))
			default:
				t.Fatalf("unknown section %q", f.Name)
			}
		}
	})
}

// Clients ask for this.
const (
	brokenCall   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":"p"}}}`
	brokenModern = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{$META,"progressToken":"p"}}}`
)

// answerWith is a tool that answers as a section says.
func answerWith(body string) fake.Behaviour {
	body = strings.NewReplacer("<CR>\n", "\r", "<FF>", "\xff").Replace(body)
	return func(x *fake.Exchange) {
		x.Run()
		x.W.Header().Set("Content-Type", mcp.TypeJSON)
		if strings.HasPrefix(body, "data:") {
			x.W.Header().Set("Content-Type", mcp.TypeSSE)
		}
		_, _ = io.WriteString(x.W, x.Fill(body)) // a client that has gone hears nothing
	}
}

// askBroken plays a request, and holds the response against the official schema of its version.
func askBroken(t *testing.T, handler http.Handler, request string) *httptest.ResponseRecorder {
	t.Helper()
	r, word, msg := wiretest.ParseRequest(t, request)
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, r)
	if strings.Contains(request, "$META") {
		wiretest.CheckSchemas(t, msg, word, rec)
		return rec
	}
	for _, text := range wiretest.MessagesOf(rec.Header().Get("Content-Type"), rec.Body.Bytes()) {
		if result, ok := jsonrpc.Get(text, "result"); ok && msg.Method == mcp.MethodToolsCall {
			schematest.Validate(t, mcp.Version20251125, "CallToolResult", result)
		}
	}
	return rec
}

// eventID is the id of an event of a legacy stream, which has a random name in it.
var eventID = regexp.MustCompile(`(?m)^id: .*$`)

func responseText(rec *httptest.ResponseRecorder) string {
	return eventID.ReplaceAllString(wiretest.ResponseText(rec), "id: (its id)")
}

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	protocol "taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// startPieces is a server whose tool says what it is given, piece by piece, and at the
// end all of it. The streams of its calls can be resumed.
func startPieces(t *testing.T) (url string, say chan<- string) {
	pieces := make(chan string)
	server := mcp.NewServer(&mcp.Implementation{Name: "pieces", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "pieces", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var all strings.Builder
		for no := 1.0; ; no++ {
			select {
			case piece := <-pieces:
				if piece == "" {
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: all.String()}}}, nil
				}
				all.WriteString(piece)
				p := &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: no, Message: piece}
				_ = r.Session.NotifyProgress(ctx, p) // kept for whoever resumes the stream
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}))
	t.Cleanup(func() {
		for session := range server.Sessions() {
			_ = session.Close()
		}
		web.CloseClientConnections()
		web.Close()
	})
	return web.URL, pieces
}

// blockReader is a client of SEP-1905 that trusts nobody: it wants every block once, in
// order, whichever replica its stream is at.
type blockReader struct {
	*session
	body *bufio.Scanner
	quit func()

	task string
	text string
	last int64  // seqNr
	lost string // the error that says how to get the rest
	over bool
}

// open sends a request to a replica, whose answer may be a stream.
func (r *blockReader) open(g *gateway, body string) {
	r.t.Helper()
	ctx, quit := context.WithCancel(r.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Accept", protocol.TypeAccept)
	req.Header.Set("Content-Type", protocol.TypeJSON)
	req.Header.Set(protocol.HeaderSession, r.session.id)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		r.t.Fatal(resp.Status)
	}
	r.body = bufio.NewScanner(resp.Body)
	r.quit = func() {
		quit()
		_ = resp.Body.Close()
	}
	r.t.Cleanup(r.quit)
}

// next reads a line, and reports false at the end of the stream.
func (r *blockReader) next() bool {
	r.t.Helper()
	watchdog := time.AfterFunc(time.Minute, r.quit) // a stream that says nothing fails the test
	defer watchdog.Stop()
	if !r.body.Scan() {
		return false
	}
	data, ok := strings.CutPrefix(r.body.Text(), "data: ")
	if !ok {
		data, ok = r.body.Text(), strings.HasPrefix(r.body.Text(), "{") // in JSON
	}
	var m struct {
		Error  json.RawMessage
		Result struct {
			Task           struct{ TaskID string }
			PartialContent []struct {
				SeqNr int64
				Text  string
			} `json:"partial-content"`
			IsComplete bool
		}
	}
	if !ok || json.Unmarshal([]byte(data), &m) != nil {
		return true
	}
	if m.Error != nil && strings.Contains(string(m.Error), "lastSeqNr") && r.lost == "" {
		r.lost = string(m.Error)
		return true
	}
	if m.Error != nil || r.over || r.lost != "" {
		r.t.Fatalf("%s (over: %t, lost: %s)", data, r.over, r.lost)
	}
	if id := m.Result.Task.TaskID; id != "" {
		r.task = id
	}
	for _, b := range m.Result.PartialContent {
		if r.last++; b.SeqNr != r.last {
			r.t.Fatalf("block %d, want %d: %s", b.SeqNr, r.last, data)
		}
		r.text += b.Text
	}
	r.over = m.Result.IsComplete
	return true
}

// upTo reads until there are so many blocks, or the end.
func (r *blockReader) upTo(n int64) {
	r.t.Helper()
	for r.last < n && !r.over {
		if !r.next() {
			r.t.Fatalf("the stream ended after %d blocks", r.last)
		}
	}
}

// fetch gets the rest by number, up to so many blocks or the end.
func (r *blockReader) fetch(g *gateway, n int64) {
	r.t.Helper()
	for r.last < n && !r.over {
		r.open(g, fmt.Sprintf(`{"jsonrpc":"2.0","id":"f","method":"tasks/result","params":{"taskId":%q,"lastSeqNr":%d}}`, r.task, r.last))
		for r.next() {
			continue
		}
	}
}

// streamConfig is that of gateways which notice soon that another one is gone.
const streamConfig = `
store: %s
heartbeat: 1s
resume_after: 100ms
drain_timeout: 500ms
upstreams:
  - name: pieces
    path: /mcp
    url: %s
    response_modes: on
    defaults: {progress: content}
`

// A client whose result is streamed loses the replica that sends it. It fetches the rest by
// number at any other one, and gets it without gap or repeat.
func TestStreamOfALostReplica(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*gateway){
		"killed":  func(g *gateway) { g.Kill() },
		"stopped": func(g *gateway) { _ = g.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := redistest.Start(t)
			server, say := startPieces(t)
			yaml := fmt.Sprintf(streamConfig, store.URL(), server)
			a, b := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
			r := &blockReader{session: &session{t: t}}
			r.do(a, protocol.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"responses":{"modes":["task","streaming"]}}},"clientInfo":{"name":"e2e","version":"1"}}`)
			r.open(a, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"pieces","task":{"responseModes":["streaming"]}}}`)
			for i, piece := range []string{"a", "b", "c"} {
				say <- piece
				r.upTo(int64(i + 1))
			}
			lose(a)
			for r.next() {
				continue // what was on its way
			}
			r.lost = ""
			for i, piece := range []string{"d", "e"} {
				say <- piece
				r.fetch(b, int64(i+4))
			}
			c := startGateway(t, configured(t, yaml)...) // which does not run the task
			say <- "f"
			r.fetch(c, 6)
			lose(c)
			say <- "g"
			r.fetch(b, 7)
			say <- ""
			r.fetch(b, 99)
			if r.text != "abcdefg" {
				t.Errorf("read %q", r.text)
			}
			if got := textOf(t, r.do(b, protocol.MethodTasksResult, `{"taskId":"`+r.task+`"}`)); got != "a" {
				t.Errorf("the result begins with %q, want the first block", got)
			}
		})
	}
}

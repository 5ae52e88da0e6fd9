package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
)

// withRoots adds a tool that asks for the roots when it is told to go on, and says what it
// heard. 2025-03-26, the version with batches, knows no elicitation.
func withRoots(stack *legacyReplicas) (heard chan string) {
	heard = make(chan string, 4)
	stack.server.AddTool(&sdk.Tool{Name: "roots", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			stack.session.started <- "roots"
			<-stack.session.proceed
			text := ""
			got, err := r.Session.ListRoots(ctx, nil)
			if err != nil {
				text = err.Error()
			} else {
				text = got.Roots[0].URI
			}
			heard <- text
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil
		})
	return heard
}

const (
	batchClient = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"2"}}}`
	batchOfTwo  = `[{"jsonrpc":"2.0","id":"one","method":"tools/call","params":{"name":"roots"}},{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"roots"}},{"jsonrpc":"2.0","id":"p","method":"ping"}]`
)

// speaking has the stream of a batch begin before there is anything to say on it.
func speaking(c *config.Config) { c.KeepAlive = 20 * time.Millisecond }

// initializeBatches begins a session of 2025-03-26 whose client has roots.
func (c *rawClient) initializeBatches() {
	c.t.Helper()
	if status, body := c.post(batchClient); status != http.StatusOK || c.session == "" {
		c.t.Fatalf("initialize: %d %s", status, body)
	}
}

// asked reads a stream until n questions are there, and returns their ids and the id of
// the last event; what is answered meanwhile it keeps in ended.
func (s *sseClient) asked(n int, ended map[string]string) (ids []string, last string) {
	s.t.Helper()
	for len(ids) < n {
		event, data, ok := s.event()
		if !ok {
			s.t.Fatalf("the stream ended after %d questions", len(ids))
		}
		id, _ := jsonrpc.GetString([]byte(data), "id")
		if method, _ := jsonrpc.GetString([]byte(data), "method"); method == mcp.MethodRootsList {
			schematest.Validate(s.t, mcp.Version20250326, "ListRootsRequest", []byte(data))
			ids = append(ids, id)
		} else {
			ended[id] += data
		}
		if last = event; last == "" {
			s.t.Errorf("an event without an id: %s", data)
		}
	}
	return ids, last
}

// finish reads the rest of a stream.
func (s *sseClient) finish(ended map[string]string) {
	s.t.Helper()
	for {
		_, data, ok := s.event()
		if !ok {
			return
		}
		id, _ := jsonrpc.GetString([]byte(data), "id")
		ended[id] += data
	}
}

// TestReplicasBatchAsks: the calls of a batch ask on its stream, each for itself. A client
// whose connection breaks then comes back to it on the other replica, and answers there,
// in a batch as well; no call is answered twice.
func TestReplicasBatchAsks(t *testing.T) {
	stack := newLegacyReplicas(t, speaking)
	heard := withRoots(stack)
	a := stack.on(t, 0, nil)
	a.initializeBatches()
	b := stack.on(t, 1, a)
	broken := stack.watched(t, a, 0)
	ended := map[string]string{}
	batch := openSSE(t, a, http.MethodPost, batchOfTwo, "")
	for range 2 {
		await(t, stack.session.started, "a tool")
		stack.session.proceed <- struct{}{}
	}
	ids, last := batch.asked(2, ended)
	batch.close()
	await(t, broken, "the connection's end")
	resumed := openSSE(t, b, http.MethodGet, "", last)
	answers := fmt.Sprintf(`[{"jsonrpc":"2.0","id":%q,"result":{"roots":[{"uri":"file:///1"}]}},{"jsonrpc":"2.0","id":%q,"result":{"roots":[{"uri":"file:///2"}]}}]`, ids[0], ids[1])
	if status, body := b.post(answers); status != http.StatusAccepted {
		t.Fatalf("answers: %d %s", status, body)
	}
	resumed.finish(ended)
	all := ""
	for _, id := range []string{"one", "two", "p"} {
		if n := strings.Count(ended[id], `"result"`); n != 1 || strings.Contains(ended[id], `"error"`) {
			t.Errorf("%s was answered with %s", id, ended[id])
		}
		all += ended[id]
	}
	if !strings.Contains(all, "file:///1") || !strings.Contains(all, "file:///2") {
		t.Errorf("the calls ended with %s", all)
	}
	for range 2 {
		if got := await(t, heard, "an answer"); !strings.HasPrefix(got, "file:///") {
			t.Errorf("the server heard %s", got)
		}
	}
}

// TestReplicasBatchAskedNobody: of the client of a batch that goes before it has anything
// to come back by, each call's server hears at once.
func TestReplicasBatchAskedNobody(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	heard := withRoots(stack)
	a := stack.on(t, 0, nil)
	a.initializeBatches()
	broken := stack.watched(t, a, 0)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() { // ends with the request
		defer close(left)
		if resp, err := a.do(ctx, http.MethodPost, batchOfTwo); err == nil {
			resp.Body.Close()
		}
	}()
	for range 2 {
		await(t, stack.session.started, "a tool")
	}
	leave()
	<-left
	await(t, broken, "the connection's end")
	for range 2 {
		stack.session.proceed <- struct{}{}
	}
	for range 2 {
		if got := await(t, heard, "an answer"); !strings.Contains(got, "the client has gone") {
			t.Errorf("the server heard %s", got)
		}
	}
}

// TestReplicasBatchNote: the requests of a batch that have no answer yet get one when
// their replica is lost, and the others no second one.
func TestReplicasBatchNote(t *testing.T) {
	stack := newLegacyReplicas(t, speaking)
	withRoots(stack)
	a := stack.on(t, 0, nil)
	a.initializeBatches()
	batch := openSSE(t, a, http.MethodPost, batchOfTwo, "")
	for range 2 {
		await(t, stack.session.started, "a tool")
	}
	stack.session.proceed <- struct{}{}
	ended := map[string]string{}
	ids, last := batch.asked(1, ended)
	stream, _, _ := parseEventID(last)
	waiting := func() string { // what the other replica knows
		s := stack.gates[1].sessions.store
		state, note, err := s.Since(t.Context(), a.session, stream, 0, func(int64, []byte) {})
		if err != nil || state != "open" {
			t.Fatalf("%s, %v", state, err)
		}
		return string(note)
	}
	settled(t, "the answer to the ping in the note", func() bool { return waiting() == `["one","two"]` })
	if status, body := a.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"roots":[{"uri":"file:///1"}]}}`, ids[0])); status != http.StatusAccepted {
		t.Fatalf("answer: %d %s", status, body)
	}
	settled(t, "one of two in the note", func() bool { return len(waiting()) == len(`["one"]`) })
	stack.session.proceed <- struct{}{}
	ids, _ = batch.asked(1, ended)
	a.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"roots":[{"uri":"file:///2"}]}}`, ids[0]))
	batch.finish(ended)
}

// TestBatchWithoutRequests: what asks for no answer is accepted, however long that takes,
// and never answered with a stream that says nothing.
func TestBatchWithoutRequests(t *testing.T) {
	stack := newLegacyReplicas(t, func(c *config.Config) { c.KeepAlive = time.Nanosecond })
	c := stack.on(t, 0, nil)
	c.initializeBatches()
	answers := strings.Repeat(`{"jsonrpc":"2.0","id":"nobody asked","result":{}},`, 100)
	for _, body := range []string{`[` + strings.TrimSuffix(answers, ",") + `]`, `[{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}]`} {
		if status, answer := c.post(body); status != http.StatusAccepted || answer != "" {
			t.Errorf("%d %s", status, answer)
		}
	}
}

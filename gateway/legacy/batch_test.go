package legacy_test

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
	"taskgate/internal/wiretest"
)

const (
	batchClient = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"2"}}}`
	batchOfTwo  = `[{"jsonrpc":"2.0","id":"one","method":"tools/call","params":{"name":"roots"}},{"jsonrpc":"2.0","id":"p","method":"ping"}]`
)

// initializeBatches begins a session of 2025-03-26 whose client has roots.
func (c *rawClient) initializeBatches() {
	c.t.Helper()
	if status, body := c.post(batchClient); status != http.StatusOK || c.session == "" {
		c.t.Fatalf("initialize: %d %s", status, body)
	}
}

// withRoots adds a tool that asks for the roots when it is told to go on, and says what it
// heard. 2025-03-26, the version with batches, knows no elicitation.
func withRoots(stack *legacyReplicas) {
	stack.server.AddTool(&sdk.Tool{Name: "roots", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			stack.session.started <- "roots"
			<-stack.session.proceed
			text := "nobody"
			if _, err := r.Session.ListRoots(ctx, nil); err != nil {
				text = "asked and refused: " + err.Error()
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil
		})
}

// TestBatchIsAnArray: a batch is answered with an array, when all of it is answered. A call
// in it blocks, though answers would be resumable by then, and what its server asks is
// refused.
func TestBatchIsAnArray(t *testing.T) {
	stack := newLegacyReplicas(t, func(c *config.Config) { c.ResumeAfter = time.Nanosecond })
	withRoots(stack)
	c := stack.on(t, 0, nil)
	c.initializeBatches()
	answer := make(chan string, 1)
	go func() {
		status, body := c.post(batchOfTwo)
		answer <- fmt.Sprint(status, " ", body)
	}()
	wiretest.Await(t, stack.session.started, "a tool")
	stack.session.proceed <- struct{}{}
	got := wiretest.Await(t, answer, "the answer")
	elems, batch, err := jsonrpc.Split([]byte(strings.TrimPrefix(got, "200 ")))
	if err != nil || !batch || len(elems) != 2 {
		t.Fatalf("answered %s", got)
	}
	if first := string(elems[0]); !strings.Contains(first, `"id":"one"`) || !strings.Contains(first, "asked and refused") {
		t.Errorf("the call was answered with %s", first)
	}
	if second := string(elems[1]); second != `{"jsonrpc":"2.0","id":"p","result":{}}` {
		t.Errorf("the ping was answered with %s", second)
	}
}

// TestBatchKeptAlive: a client that waits for long has its answers on a stream, each as an
// event, and without ids, since it cannot resume it.
func TestBatchKeptAlive(t *testing.T) {
	stack := newLegacyReplicas(t, func(c *config.Config) { c.KeepAlive, c.ResumeAfter = time.Millisecond, time.Nanosecond })
	withRoots(stack)
	c := stack.on(t, 0, nil)
	c.initializeBatches()
	batch := openSSE(t, c, http.MethodPost, batchOfTwo, "") // the stream is open before the call is answered
	wiretest.Await(t, stack.session.started, "a tool")
	stack.session.proceed <- struct{}{}
	for _, want := range []string{"one", "p"} {
		event, data, ok := batch.event()
		if id, _ := jsonrpc.GetString([]byte(data), "id"); !ok || id != want || event != "" {
			t.Errorf("event %q with %s, want the answer to %s", event, data, want)
		}
	}
	if _, data, ok := batch.event(); ok {
		t.Errorf("and then %s", data)
	}
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

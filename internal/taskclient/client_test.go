package taskclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// answering is a server that answers each request with the next of these bodies;
// one that begins with "event" or "data" is an event stream. ID is replaced by
// the request's.
func answering(t *testing.T, status int, bodies ...string) (*Client, *[]string) {
	t.Helper()
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(bodies) == 0 {
			http.Error(w, fmt.Sprintf("nothing to say: %v", err), http.StatusInternalServerError)
			return
		}
		seen = append(seen, fmt.Sprintf("%s %s %s %s", r.Header.Get("Mcp-Protocol-Version"), r.Header.Get("Mcp-Method"), r.Header.Get("Mcp-Name"), body))
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(bodies[0], "data") || strings.HasPrefix(bodies[0], "event") {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, bodies[0])
		bodies = bodies[1:]
	}))
	t.Cleanup(server.Close)
	return &Client{URL: server.URL, Tasks: true}, &seen
}

func TestRequest(t *testing.T) {
	c, seen := answering(t, 200, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[]}}`)
	var messages []Message
	c.Trace = func(m Message) { messages = append(messages, m) }
	result, task, err := c.CallTool(t.Context(), "echo", map[string]any{"a": 1})
	if err != nil || task != nil || string(result) != `{"resultType":"complete","content":[]}` {
		t.Fatalf("%s %v %v", result, task, err)
	}
	for _, want := range []string{
		"2026-07-28 tools/call echo ", `"io.modelcontextprotocol/tasks":{}`, `"arguments":{"a":1}`,
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28"`,
	} {
		if !strings.Contains((*seen)[0], want) {
			t.Errorf("no %s in %s", want, (*seen)[0])
		}
	}
	if len(messages) != 2 || !messages[0].Sent || messages[1].Status != 200 {
		t.Errorf("messages: %+v", messages)
	}
}

func TestEventStream(t *testing.T) {
	c, _ := answering(t, 200,
		"data: {\"method\":\"notifications/progress\",\"params\":{}}\n\n: comment\n\ndata: {\"id\":1,\"result\":{\"resultType\":\"task\",\"taskId\":\"t\"}}\n\n",
		"data: {\"method\":\"notifications/progress\"}\n\n")
	_, task, err := c.CallTool(t.Context(), "echo", nil)
	if err != nil || task == nil || task.ID != "t" {
		t.Fatalf("%v %v", task, err)
	}
	if _, _, err := c.CallTool(t.Context(), "echo", nil); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("a stream without an answer: %v", err)
	}
}

func TestErrors(t *testing.T) {
	c, _ := answering(t, 400, `{"id":1,"error":{"code":-32021,"message":"no","data":{"a":1}}}`, `{"id":1,"result":{}}`, `nonsense`)
	var answer *Error
	if _, err := c.Get(t.Context(), "t"); !errors.As(err, &answer) || answer.Code != -32021 || answer.Status != 400 || string(answer.Data) != `{"a":1}` {
		t.Errorf("an error: %v", err)
	}
	if _, err := c.Get(t.Context(), "t"); err == nil {
		t.Error("a result with HTTP status 400 is not an error")
	}
	if _, err := c.Get(t.Context(), "t"); err == nil {
		t.Error("nonsense is not an error")
	}
	if _, err := c.Get(t.Context(), "t"); err == nil {
		t.Error("plain text is not an error")
	}
	bad, _ := answering(t, 200, `{"id":1,"result":{"resultType":"task","taskId":"t"}}`, `{"id":1,"result":{"resultType":"strange"}}`)
	if _, err := bad.Get(t.Context(), "t"); err == nil {
		t.Error("a handle in answer to tasks/get is not an error")
	}
	if _, _, err := bad.CallTool(t.Context(), "echo", nil); err == nil {
		t.Error("a strange result type is not an error")
	}
}

func TestWait(t *testing.T) {
	working := `{"id":1,"result":{"resultType":"complete","taskId":"t","status":"working","pollIntervalMs":10}}`
	c, _ := answering(t, 200, working, working, `{"id":1,"result":{"resultType":"complete","taskId":"t","status":"failed","error":{"code":-32603,"message":"m"}}}`)
	states := 0
	end, err := c.Wait(t.Context(), "t", func(Task) { states++ })
	if err != nil || end.Status != Failed || end.Error.Code != -32603 || states != 3 {
		t.Errorf("%+v %v after %d states", end, err, states)
	}
	slow, _ := answering(t, 200, `{"id":1,"result":{"resultType":"complete","taskId":"t","status":"working","pollIntervalMs":60000}}`)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := slow.Wait(ctx, "t", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for too long: %v", err)
	}
}

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/redistest"
)

// parkingReplica is the configuration of a gateway that parks calls.
const parkingReplica = `
store: %s
heartbeat: 1s
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams:
  - {name: asker, path: /mcp, url: %s}
`

// startAsker serves a legacy server whose one tool asks for a name, and counts how
// often that is run.
func startAsker(t *testing.T) (url string, runs *atomic.Int32) {
	t.Helper()
	runs = new(atomic.Int32)
	server := sdk.NewServer(&sdk.Implementation{Name: "asker", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "ask", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			runs.Add(1)
			answer, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Mode: "form", Message: "who?",
				RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)})
			if err != nil {
				return nil, err
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint("hello ", answer.Content["name"])}}}, nil
		})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(web.CloseClientConnections) // a call whose gateway was killed waits for its answer for ever
	return web.URL, runs
}

// parkedAnswer is what a client without tasks gets to see of a call.
type parkedAnswer struct {
	Result struct {
		ResultType    string                     `json:"resultType"`
		InputRequests map[string]json.RawMessage `json:"inputRequests"`
		RequestState  string                     `json:"requestState"`
		Content       []struct{ Text string }    `json:"content"`
	}
	Error *struct {
		Code    int
		Message string
	}
}

// callAsker calls the tool, with what a retry adds, as a client without tasks.
func callAsker(t *testing.T, url, retry string) parkedAnswer {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","arguments":{}` + retry + `,"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "ask",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if i := strings.LastIndex(string(text), "data: "); i >= 0 {
		text = text[i+len("data: "):]
	}
	var a parkedAnswer
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return a
}

// answer is what a retry adds to the request.
func (a parkedAnswer) answer(t *testing.T) string {
	t.Helper()
	if a.Result.ResultType != "input_required" || len(a.Result.InputRequests) != 1 {
		t.Fatalf("was not asked: %+v", a)
	}
	for key := range a.Result.InputRequests {
		return fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept","content":{"name":"Ada"}}},"requestState":%q`, key, a.Result.RequestState)
	}
	return ""
}

// A client without tasks that a legacy server asked comes back to another replica: it
// gets its result, as long as the replica lives that runs the call, and an error
// otherwise. The tool is never run again (H2).
func TestParkedCallOnTheOtherReplica(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	server, runs := startAsker(t)
	yaml := fmt.Sprintf(parkingReplica, store.URL(), server)
	a, b := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)

	done := callAsker(t, b.url, callAsker(t, a.url, "").answer(t))
	if done.Error != nil || len(done.Result.Content) != 1 || done.Result.Content[0].Text != "hello Ada" {
		t.Errorf("on the other replica: %+v", done)
	}

	retry := callAsker(t, a.url, "").answer(t)
	a.Kill()
	begin := time.Now()
	if lost := callAsker(t, b.url, retry); lost.Error == nil || lost.Error.Code != -32603 {
		t.Errorf("after its replica was killed: %+v", lost)
	} else {
		t.Logf("told after %v: %s", time.Since(begin).Round(time.Millisecond), lost.Error.Message)
	}
	if again := callAsker(t, b.url, retry); again.Error == nil || again.Error.Code != -32602 {
		t.Errorf("asked again after that: %+v", again)
	}
	if n := runs.Load(); n != 2 {
		t.Errorf("the tool was run %d times for 2 calls", n)
	}
}

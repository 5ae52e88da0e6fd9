package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"taskgate/internal/proc"
)

// startNodeServer runs one of the scripts in testdata/node as a server.
func startNodeServer(t *testing.T, script string, env ...string) string {
	t.Helper()
	dir, addr := nodeDir(t), freeAddr(t)
	text, err := os.ReadFile(filepath.Join("testdata", "node", script))
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(addr, ":")
	start(t, addr, proc.Command{
		Name: script, Path: nodeBinary(dir), Dir: dir, Env: append(env, "PORT="+port),
		Args: []string{"--input-type=module", "--eval", string(text)},
	})
	return "http://" + addr + "/mcp"
}

// A server of the TypeScript SDK asks on the GET stream of its session, where its tool
// does not name the request. Its questions reach the client that called, be it a modern
// one without tasks or one of the SDK, also where the server answers calls in JSON.
func TestAskedOnTheGETStream(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	for name, env := range map[string][]string{"answers by a stream": nil, "answers in JSON": {"JSON_ONLY=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, "--upstream", startNodeServer(t, "ts1asks.mjs", env...))
			for range 3 { // one right after the other
				done := callAsker(t, g.url, callAsker(t, g.url, "").answer(t))
				if done.Error != nil || len(done.Result.Content) != 1 || done.Result.Content[0].Text != "hello Ada" {
					t.Errorf("a modern client got %+v", done)
				}
			}
			a := runNode(t, "ts1answers.mjs", "URL="+g.url, `CALL={"name":"all","arguments":{}}`)
			if got := textOf(t, a.Result); got != "Ada, hm, file:///r" {
				t.Errorf("the TypeScript client got %q", got)
			}
			if !slices.Equal(a.Methods, []string{"elicitation/create", "roots/list", "sampling/createMessage"}) {
				t.Errorf("it was asked %q", a.Methods)
			}
		})
	}
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

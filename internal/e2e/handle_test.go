package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/redistest"
)

// handling is the configuration of a gateway that gives clients without tasks a task
// all the same. Calls of count_words have one at once, which is soon gone.
const handling = `
store: %[1]s
key_prefix: %[2]s
heartbeat: 1s
upstreams:
  - name: slow
    path: /mcp
    url: %[3]s
    without_tasks: handle
    without_tasks_after: 400ms
    defaults: {tasks: auto, grace: 100ms, poll_interval: 100ms}
    tools:
      - {match: count_words, tasks: required, ttl: 1s}
  - {name: other, url: %[3]s, without_tasks: handle, without_tasks_after: 400ms}
`

// handlingReplicas are two such gateways in front of one server, with one Redis.
func handlingReplicas(t *testing.T, store *redistest.Server, prefix string, args ...string) (a, b *gateway) {
	t.Helper()
	yaml := fmt.Sprintf(handling, store.URL(), prefix, startServer(t, "slowserver", args...))
	return startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
}

// handledTools are those that a client without tasks sees.
var handledTools = []string{"count_words", "fail", "forecast", "research", "write", "task_result"}

// toldID finds the task in what a client is told of it.
func toldID(t *testing.T, text string) string {
	t.Helper()
	m := regexp.MustCompile(`the tool task_result of this server, arguments {"taskId":"([0-9a-f-]+)","turn":1}`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no task is told of in %q", text)
	}
	return m[1]
}

// goText is the text of a result of the Go SDK.
func goText(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) == 0 {
		t.Fatalf("no content in %+v", r)
	}
	return r.Content[0].(*mcp.TextContent).Text
}

// read calls task_result until the task has ended.
func (s *goSession) read(t *testing.T, id string) (result *mcp.CallToolResult, waits int) {
	t.Helper()
	for ; ; waits++ {
		r := s.call(t, "task_result", map[string]any{"taskId": id})
		if !strings.HasPrefix(goText(t, r), "status: ") {
			return r, waits
		}
	}
}

// plainAnswer is what the script plain.mjs saw.
type plainAnswer struct {
	Tools []struct {
		Name         string
		OutputSchema json.RawMessage
	}
	Calls []struct {
		Told   json.RawMessage
		Waits  int
		Result struct {
			Content           []struct{ Text string }
			StructuredContent json.RawMessage
			IsError           bool
		}
	}
	Progress []string
}

// Clients of the TypeScript SDKs, which know nothing of tasks and hold results against the output schemas
// that they were shown: a slow call is answered with a text, by which they get what the server's tool
// returned, also at another replica and at the endpoint of another server.
func TestTypeScriptHandle(t *testing.T) {
	t.Parallel()
	nodeDir(t)
	store := redistest.Start(t)
	for name, args := range map[string][]string{"legacy": nil, "modern": {"--stateless"}} {
		a, b := handlingReplicas(t, store, "ts-"+name, args...)
		for _, c := range []struct{ name, sdk, mode string }{{"1.32.2", "1", ""}, {"2.4.0, legacy", "2", "legacy"}, {"2.4.0, auto", "2", "auto"}} {
			t.Run(name+" server, "+c.name, func(t *testing.T) {
				t.Parallel()
				calls, err := json.Marshal([]any{
					map[string]any{"name": "forecast", "arguments": map[string]any{"city": "Oslo", "seconds": 3}},
					map[string]any{"name": "fail", "arguments": map[string]any{"seconds": 1}},
				})
				if err != nil {
					t.Fatal(err)
				}
				var got plainAnswer
				runNodeInto(t, &got, "plain.mjs", "URL="+a.url, "READER="+strings.Replace(b.url, "/mcp", "/other/mcp", 1), "SDK="+c.sdk, "MODE="+c.mode, "CALLS="+string(calls))
				checkPlain(t, got)
			})
		}
	}
}

func checkPlain(t *testing.T, a plainAnswer) {
	t.Helper()
	var names []string
	for _, tool := range a.Tools {
		names = append(names, tool.Name)
		if tool.OutputSchema != nil {
			t.Errorf("%s has an output schema", tool.Name)
		}
	}
	if !slices.Equal(names, handledTools) {
		t.Errorf("the tools are %q", names)
	}
	good, bad := a.Calls[0], a.Calls[1]
	toldID(t, textOf(t, good.Told))
	if good.Waits == 0 || string(good.Result.StructuredContent) != `{"city":"Oslo","temperatures":[16,12,17]}` || good.Result.IsError {
		t.Errorf("the result: %+v", good)
	}
	if !bad.Result.IsError || bad.Result.Content[0].Text != "the archive is closed today" {
		t.Errorf("the tool's error: %+v", bad)
	}
	if !slices.Contains(a.Progress, "day 3") {
		t.Errorf("progress while waiting: %q", a.Progress)
	}
}

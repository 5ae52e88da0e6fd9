package dialect_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// toolError is a task whose tool reports failure.
func toolError(t shim.Task) shim.Task {
	t.ToolError = true
	t.StatusMessage = "no such city"
	t.Outcome = &shim.Outcome{IsError: true, Result: json.RawMessage(`{"content":[{"type":"text","text":"no such city"}],"isError":true}`)}
	return t
}

// Each spelling of each status, as golden files.
func TestLegacyGolden(t *testing.T) {
	bare := func(t *shim.Task) { t.StatusMessage, t.PollInterval = "", 0 }
	for name, c := range map[string]struct {
		definition string
		got        json.RawMessage
	}{
		"created":      {"CreateTaskResult", dialect.Legacy.Created(base(shim.Working))},
		"created-bare": {"CreateTaskResult", dialect.Legacy.Created(with(base(shim.Working), bare))},
		"working":      {"GetTaskResult", dialect.Legacy.Got(base(shim.Working))},
		"input-required": {"GetTaskResult", dialect.Legacy.Got(with(base(shim.InputRequired), func(t *shim.Task) {
			t.Questions = []shim.Question{{Key: "q1", Method: "roots/list"}} // travel as requests (L31)
		}))},
		"completed": {"GetTaskResult", dialect.Legacy.Got(with(base(shim.Completed), func(t *shim.Task) {
			t.Outcome = &shim.Outcome{Result: json.RawMessage(`{"content":[]}`)}
		}))},
		"tool-error":  {"GetTaskResult", dialect.Legacy.Got(toolError(base(shim.Completed)))},
		"failed":      {"GetTaskResult", dialect.Legacy.Got(failed(`{"code":-32602,"message":"bad"}`))},
		"cancelled":   {"CancelTaskResult", dialect.Legacy.Got(base(shim.Cancelled))},
		"list-empty":  {"ListTasksResult", dialect.Legacy.Listed(nil, "")},
		"list":        {"ListTasksResult", dialect.Legacy.Listed([]shim.Task{base(shim.Working), toolError(base(shim.Completed))}, "")},
		"list-cursor": {"ListTasksResult", dialect.Legacy.Listed([]shim.Task{base(shim.Cancelled)}, `a"b`)},
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, "legacy", name, c.got)
			schematest.Validate(t, mcp.Version20251125, c.definition, c.got)
		})
	}
}

// The parameters of notifications/tasks/status are a whole task (L34).
func TestLegacyStatusNotification(t *testing.T) {
	for _, s := range []shim.Status{shim.Working, shim.InputRequired, shim.Completed, shim.Failed, shim.Cancelled} {
		n := jsonrpc.AppendNotification(nil, mcp.NotifyTaskStatus, dialect.Legacy.Got(base(s)))
		schematest.Validate(t, mcp.Version20251125, "TaskStatusNotification", n)
	}
}

// tasks/result answers what the call itself would have answered (L16–L19).
func TestLegacyResult(t *testing.T) {
	const related = `"io.modelcontextprotocol/related-task":{"taskId":"7d0f3c1e-0a5b-4c8e-9f21-3b6a52d1c0aa"}`
	done := func(result string) shim.Task {
		return with(base(shim.Completed), func(t *shim.Task) { t.Outcome = &shim.Outcome{Result: json.RawMessage(result)} })
	}
	for name, c := range map[string]struct {
		task         shim.Task
		result, fail string
	}{
		"a result": {task: done(`{ "content":[{"type":"text","text":"\u003cdone"}], "n":9007199254740993,"f":1.0,"e":1e3,"z":-0,"m":null,"o":{"b":1,"a":[ ]} }`),
			result: `{ "content":[{"type":"text","text":"\u003cdone"}], "n":9007199254740993,"f":1.0,"e":1e3,"z":-0,"m":null,"o":{"b":1,"a":[ ]},"_meta":{` + related + `} }`},
		"a result with metadata": {task: done(`{"_meta":{"keep":1.0},"content":[]}`),
			result: `{"_meta":{"keep":1.0,` + related + `},"content":[]}`},
		"the upstream's own task is nobody's business": {task: done(`{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"}},"content":[]}`),
			result: `{"_meta":{` + related + `},"content":[]}`},
		"a modern result": {task: done(`{"resultType":"complete","content":[]}`),
			result: `{"content":[],"_meta":{` + related + `}}`},
		"metadata that is none": {task: done(`{"content":[],"_meta":7}`), result: `{"content":[],"_meta":7}`},
		"a tool's own error": {task: toolError(base(shim.Completed)),
			result: `{"content":[{"type":"text","text":"no such city"}],"isError":true,"_meta":{` + related + `}}`},
		"an error":              {task: failed(`{"code":-32602,"message":"bad","data":{"n":1.0}}`), fail: `-32602 bad {"n":1.0}`},
		"cancelled":             {task: base(shim.Cancelled), fail: `-32603 task was cancelled `},
		"no outcome":            {task: base(shim.Failed), fail: `-32603 the outcome of the task is not available `},
		"an error that is none": {task: failed(`7`), fail: `-32603 the call failed `},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := dialect.Legacy.Result(c.task)
			got := ""
			if err != nil {
				got = fmt.Sprint(err.Code, " ", err.Message, " ", string(err.Data))
			}
			if string(result) != c.result || got != c.fail {
				t.Errorf("got %s, error %q; want %s, error %q", result, got, c.result, c.fail)
			}
		})
	}
}

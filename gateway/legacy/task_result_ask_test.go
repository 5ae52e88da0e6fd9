package legacy_test

import (
	"fmt"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// TestTaskResultAsks: a modern client without tasks, which was told of its task in words,
// is asked what that asks by the answer of the tool that waits for it (design.md 0.10),
// and comes back at either replica.
func TestTaskResultAsks(t *testing.T) {
	p := newParking(t, func(c *config.Config) {
		c.Upstreams[0].WithoutTasks, c.Upstreams[0].Defaults.Tasks = config.WithoutTasksHandle, config.TasksRequired
	})
	late := asked{caps: canForm, method: mcp.MethodToolsCall, params: `{"name":"late","arguments":{}}`}
	told := late.send(t, p.at[0], "")
	var text string
	content, _ := jsonrpc.Get(told.Result, "content")
	for block := range jsonrpc.Elements(content) {
		text, _ = jsonrpc.GetString(block, "text")
	}
	_, rest, _ := strings.Cut(text, `"taskId":"`)
	id, _, ok := strings.Cut(rest, `"`)
	if !ok {
		t.Fatalf("no handle: %s", told.Result)
	}
	close(p.hold)
	result := asked{caps: canForm, method: mcp.MethodToolsCall, params: fmt.Sprintf(`{"name":"task_result","arguments":{"taskId":%q}}`, id)}
	state, questions := result.park(t, p.at[1], "")
	if len(questions) != 1 || questions[0].method != mcp.MethodElicit {
		t.Fatalf("asked %v", questions)
	}
	again, same := result.park(t, p.at[0], "") // the first answer of the tool was lost
	if len(same) != 1 || same[0].key != questions[0].key {
		t.Errorf("asked again: %v, before %v", same, questions)
	}
	other := result
	other.params = strings.Replace(result.params, id[:8], "00000000", 1)
	if m := other.send(t, p.at[0], answering(state, "Eve", questions...)); m.Error == nil || m.Error.Code != mcp.CodeInvalidParams {
		t.Errorf("with the state of another task: %+v", m)
	}
	wantText(t, result.send(t, p.at[0], answering(again, "Ada", questions...)), "accept Ada")
	wantText(t, result.send(t, p.at[1], answering(state, "Bob", questions...)), "accept Ada")
	p.wantRuns(t, 1)
	wiretest.Await(t, p.ended, "the end of the call at the server")
}

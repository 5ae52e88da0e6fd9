package endpoint

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// A page of tools is changed where it has to be and nowhere else.
func TestWithTaskResult(t *testing.T) {
	var log bytes.Buffer
	page := func(edit func(*config.Upstream), params, result string) string {
		u := config.NewUpstream("up", "http://up.example/")
		u.WithoutTasks = config.WithoutTasksHandle
		u.Tools = []config.Rule{{Match: "q*", Tool: config.Tool{Tasks: config.TasksNever}}}
		if edit != nil {
			edit(u)
		}
		e := &Endpoint{Config: u, Log: slog.New(slog.NewTextHandler(&log, nil))}
		var got json.RawMessage
		for range 2 { // the log says it once
			got = e.WithTaskResult(t.Context(), json.RawMessage(params), json.RawMessage(result))
		}
		return strings.ReplaceAll(string(got), string(e.taskResultTool()), "OURS")
	}
	const tools = `{"tools":[ {"name":"a", "outputSchema":{"type":"object"},"x":1.0}, {"name":"q","outputSchema":{}}],"y":"\u003c"}`
	for name, c := range map[string]struct {
		edit                 func(*config.Upstream)
		params, result, want string
	}{
		"first page":         {nil, `{}`, tools, `{"tools":[{"name":"a","x":1.0},{"name":"q","outputSchema":{}},OURS],"y":"\u003c"}`},
		"null for a cursor":  {nil, `{"cursor":null}`, `{"tools":[]}`, `{"tools":[OURS]}`},
		"later page":         {nil, `{"cursor":""}`, `{"tools":[]}`, `{"tools":[]}`},
		"no params":          {nil, ``, `{"tools":[]}`, `{"tools":[OURS]}`},
		"taken name":         {nil, `{"cursor":"2"}`, `{"tools":[{"name":"task_result"}]}`, `{"tools":[]}`},
		"no list":            {nil, ``, `{"tools":{}}`, `{"tools":{}}`},
		"no tools":           {nil, ``, `{"x":1}`, `{"x":1}`},
		"block":              {func(u *config.Upstream) { u.WithoutTasks = config.WithoutTasksBlock }, ``, tools, tools},
		"nothing to convert": {func(u *config.Upstream) { u.Defaults.Tasks = config.TasksNever }, ``, tools, tools},
	} {
		if got := page(c.edit, c.params, c.result); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if n := strings.Count(log.String(), "the gateway's own tool has this name"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
}

package endpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
)

// A page of tools is changed where it has to be and nowhere else.
func TestWithTaskResult(t *testing.T) {
	var log bytes.Buffer
	handled := Client{Info: json.RawMessage(`{"name":"codex-mcp-client"}`)}
	page := func(edit func(*config.Upstream), c Client, params, result string) string {
		u := config.NewUpstream("up", "http://up.example/")
		u.WithoutTasks = config.WithoutTasksHandle
		u.Tools = []config.Rule{{Match: config.ByName("q*"), Tool: config.Tool{Tasks: config.TasksNever}}}
		if edit != nil {
			edit(u)
		}
		e := &Endpoint{Config: u, Global: config.Default(), Log: slog.New(slog.NewTextHandler(&log, nil))}
		var got json.RawMessage
		for range 2 { // the log says it once
			got = e.WithTaskResult(t.Context(), c, json.RawMessage(params), json.RawMessage(result))
		}
		return strings.ReplaceAll(string(got), string(e.taskResultTool(c)), "OURS")
	}
	auto := func(u *config.Upstream) { u.WithoutTasks = config.WithoutTasksAuto }
	const tools = `{"tools":[ {"name":"a", "outputSchema":{"type":"object"},"x":1.0}, {"name":"q","outputSchema":{}}],"y":"\u003c"}`
	for name, c := range map[string]struct {
		edit                 func(*config.Upstream)
		client               Client
		params, result, want string
	}{
		"first page":         {nil, handled, `{}`, tools, `{"tools":[{"name":"a","x":1.0},{"name":"q","outputSchema":{}},OURS],"y":"\u003c"}`},
		"null for a cursor":  {nil, handled, `{"cursor":null}`, `{"tools":[]}`, `{"tools":[OURS]}`},
		"later page":         {nil, handled, `{"cursor":""}`, `{"tools":[]}`, `{"tools":[]}`},
		"no params":          {nil, handled, ``, `{"tools":[]}`, `{"tools":[OURS]}`},
		"taken name":         {nil, handled, `{"cursor":"2"}`, `{"tools":[{"name":"task_result"}]}`, `{"tools":[]}`},
		"no list":            {nil, handled, ``, `{"tools":{}}`, `{"tools":{}}`},
		"no tools":           {nil, handled, ``, `{"x":1}`, `{"x":1}`},
		"block":              {func(u *config.Upstream) { u.WithoutTasks = config.WithoutTasksBlock }, handled, ``, tools, tools},
		"auto":               {auto, handled, ``, tools, `{"tools":[{"name":"a","x":1.0},{"name":"q","outputSchema":{}},OURS],"y":"\u003c"}`},
		"auto, unknown":      {auto, Client{}, ``, tools, tools},
		"auto, unknown, its": {auto, Client{}, ``, `{"tools":[{"name":"task_result"}]}`, `{"tools":[{"name":"task_result"}]}`},
		"declares tasks":     {nil, Client{Tasks: true}, ``, tools, tools},
		"declares, taken":    {nil, Client{Tasks: true}, ``, `{"tools":[{"name":"task_result"}]}`, `{"tools":[]}`},
		"nothing to convert": {func(u *config.Upstream) { u.Defaults.Tasks = config.TasksNever }, handled, ``, tools, tools},
	} {
		if got := page(c.edit, c.client, c.params, c.result); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if n := strings.Count(log.String(), "the gateway's own tool has this name"); n != 2 { // by each of two endpoints
		t.Errorf("said %d times:\n%s", n, log.String())
	}
}

// Who is told of tasks in words, and how late.
func TestHandleAfter(t *testing.T) {
	const auto, handle = config.WithoutTasksAuto, config.WithoutTasksHandle
	for _, c := range []struct {
		client   string
		mode     config.WithoutTasks
		after    time.Duration
		declares bool
		silent   bool // the gateway sends no progress
		want     time.Duration
	}{
		{client: "codex-mcp-client", mode: auto, want: 4 * time.Minute},
		{client: "gemini-cli-mcp-client", mode: auto, want: 9 * time.Minute},
		{client: "codex-mcp-client (via mcp-remote 0.1.38)", mode: auto, want: 4 * time.Minute},
		{client: "claude-code", mode: auto},
		{client: "opencode", mode: auto},
		{client: "qwen-cli-mcp-client-docs", mode: auto, want: 4 * time.Minute},
		{client: "else", mode: auto},
		{client: "codex-mcp-client", mode: auto, after: time.Minute, want: time.Minute},
		{client: "else", mode: auto, after: time.Minute},
		{client: "codex-mcp-client", mode: auto, silent: true, want: 4 * time.Minute},
		{client: "codex-mcp-client", mode: auto, declares: true},
		{client: "codex-mcp-client", mode: config.WithoutTasksBlock},
		{client: "gemini-cli-mcp-client", mode: handle, want: 9 * time.Minute},
		{client: "claude-code", mode: handle, want: 4 * time.Minute},
		{client: "opencode", mode: handle, want: 4 * time.Minute},
		{client: "opencode", mode: handle, silent: true, want: 45 * time.Second},
		{client: "qwen-cli-mcp-client-docs", mode: handle, want: 4 * time.Minute},
		{client: "else", mode: handle, want: 45 * time.Second},
		{client: "else", mode: handle, after: time.Minute, want: time.Minute},
		{client: "else", mode: handle, declares: true},
	} {
		e := &Endpoint{Config: config.NewUpstream("up", "http://up.example/"), Global: config.Default()}
		e.Config.WithoutTasks, e.Config.WithoutTasksAfter = c.mode, cmp.Or(c.after, config.Auto)
		if c.silent {
			e.Global.ProgressKeepAlive = 0
		}
		info := json.RawMessage(`{"name":"` + c.client + `","version":"1"}`)
		if got := e.HandleAfter(Client{Info: info, Tasks: c.declares}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The gateway's instructions stand after those of the server, whose bytes stay.
func TestWithInstructions(t *testing.T) {
	e := &Endpoint{Config: config.NewUpstream("up", "http://up.example/"), Global: config.Default()}
	e.Config.WithoutTasks = config.WithoutTasksHandle
	for result, want := range map[string]string{
		`{"a":1}`:                               `{"a":1,"instructions":"OURS"}`,
		`{"instructions":"","a":1}`:             `{"instructions":"OURS","a":1}`,
		`{"instructions":"Be \u003c.","a":1.0}`: `{"instructions":"Be \u003c.\n\nOURS","a":1.0}`,
	} {
		if got := strings.Replace(string(e.WithInstructions(Client{}, json.RawMessage(result))), instructions, "OURS", 1); got != want {
			t.Errorf("%s: %s", result, got)
		}
		if got := e.WithInstructions(Client{Tasks: true}, json.RawMessage(result)); string(got) != result {
			t.Errorf("to a client that takes tasks: %s", got)
		}
	}
}

// A wait that is too long is cut to the longest, and any turn is as good as none.
func TestReadTaskResultCall(t *testing.T) {
	e := &Endpoint{Config: config.NewUpstream("up", "http://up.example/"), Global: config.Default()}
	for args, want := range map[string]TaskResultCall{
		`{"taskId":"a"}`:                     {ID: "a", wait: unknownWait},
		`{"taskId":"a","waitSeconds":2.5e0}`: {ID: "a", wait: 2500 * time.Millisecond},
		`{"taskId":"a","waitSeconds":1e300}`: {ID: "a", wait: unknownWait},
		`{"taskId":"a","turn":7}`:            {ID: "a", wait: unknownWait, turn: 7},
		`{"taskId":"a","turn":"next"}`:       {ID: "a", wait: unknownWait},
	} {
		got, wrong, err := e.ReadTaskResultCall(Client{}, json.RawMessage(`{"arguments":`+args+`}`))
		if got != want || wrong != "" || err != nil {
			t.Errorf("%s: %+v, %q, %v", args, got, wrong, err)
		}
	}
}

// The tool reads tasks of other upstreams only where the same callers sign in, with the same tokens.
func TestReadsTasksOf(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*config.Config)
		want string
	}{
		"one auth":      {func(*config.Config) {}, "a b c"},
		"its own":       {func(c *config.Config) { c.Upstreams[0].Auth = &config.UpstreamAuth{} }, "a"},
		"another's own": {func(c *config.Config) { c.Upstreams[1].Auth = &config.UpstreamAuth{} }, "a c"},
		"other tokens": {func(c *config.Config) {
			c.PublicURL, c.Auth.JWT = "https://g.example", &config.JWT{Audiences: []string{"x", "https://g.example/b/mcp"}}
			c.Upstreams[1].Path = "/b/mcp"
		}, "a c"},
	} {
		global := config.Default()
		for _, up := range []string{"a", "b", "c"} {
			global.Upstreams = append(global.Upstreams, config.NewUpstream(up, "http://up.example/"))
		}
		c.edit(global)
		e := &Endpoint{Name: "a", Config: global.Upstreams[0], Global: global}
		if got := strings.Join(e.readsTasksOf(), " "); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

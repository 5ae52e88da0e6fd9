package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"taskgate/internal/mcp"
)

// jobExample is a file in examples/jobs, and a stand-in of the API behind its server.
type jobExample struct {
	script    string // of the server, below its packages
	env       func(api string) []string
	call      string                               // the call that starts a job
	arguments map[string]any                       // of it
	id        *regexp.Regexp                       // in the answer
	status    string                               // the call that asks for the job, with %s for its id
	over      *regexp.Regexp                       // in the answer of that to a job that is over
	api       func(asked int64, start bool) string // what the API answers to the start, and then to each question
	isStart   func(r *http.Request) bool
	result    string // is in the result
}

// asked is after how many questions the jobs of the stand-ins are over.
const asked = 3

func jobExamples() map[string]jobExample {
	until := func(running, over string) func(int64, bool) string {
		return func(n int64, start bool) string {
			if start || n < asked {
				return running
			}
			return over
		}
	}
	return map[string]jobExample{
		"firecrawl": {
			script: "firecrawl-mcp/dist/index.js",
			env:    func(api string) []string { return []string{"FIRECRAWL_API_KEY=fc-none", "FIRECRAWL_API_URL=" + api} },
			call:   "firecrawl_agent", arguments: map[string]any{"prompt": "who founded it"},
			id: regexp.MustCompile(`"id"\s*:\s*"(job-[^"]*)"`), status: `{"name":"firecrawl_agent_status","arguments":{"id":%q}}`, over: regexp.MustCompile(`"status"\s*:\s*"completed"`),
			isStart: func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == "/v2/agent" },
			api:     until(`{"success":true,"id":"job-1","status":"processing"}`, `{"success":true,"id":"job-1","status":"completed","data":{"founder":"Ada"}}`),
			result:  "Ada",
		},
		"replicate": {
			script: "replicate-mcp/index.js",
			env:    func(api string) []string { return []string{"REPLICATE_API_TOKEN=r8_none", "REPLICATE_BASE_URL=" + api} },
			call:   "create_predictions", arguments: map[string]any{"version": "abc", "input": map[string]any{"text": "Alice"}},
			id: regexp.MustCompile(`"id"\s*:\s*"(job-[^"]*)"`), status: `{"name":"get_predictions","arguments":{"prediction_id":%q}}`, over: regexp.MustCompile(`"status"\s*:\s*"succeeded"`),
			isStart: func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == "/predictions" },
			api:     until(`{"id":"job-1","status":"processing","output":null}`, `{"id":"job-1","status":"succeeded","output":"hello Alice"}`),
			result:  "hello Alice",
		},
		"minimax": {
			script: "minimax-mcp-js/build/index.js",
			env: func(api string) []string {
				return []string{"MINIMAX_API_KEY=none", "MINIMAX_API_HOST=" + api, "MINIMAX_RESOURCE_MODE=url"}
			},
			call: "generate_video", arguments: map[string]any{"prompt": "a cat", "asyncMode": true},
			id: regexp.MustCompile(`Task ID: (job-\S*)\.`), status: `{"name":"query_video_generation","arguments":{"taskId":%q}}`, over: regexp.MustCompile(`Success`),
			isStart: func(r *http.Request) bool { return r.URL.Path == "/v1/video_generation" },
			api: until(`{"task_id":"job-1","status":"Processing","base_resp":{"status_code":0}}`,
				`{"task_id":"job-1","status":"Success","file_id":"f1","file":{"download_url":"https://videos.example/cat.mp4"},"base_resp":{"status_code":0}}`),
			result: "https://videos.example/cat.mp4",
		},
	}
}

// TestExamplesOfJobs: each server of examples/jobs gives the same result to a model that polls by hand and to a client of
// the gateway that calls once, and has the tools and arguments that the file names.
func TestExamplesOfJobs(t *testing.T) {
	t.Parallel()
	dir := nodeDir(t)
	need(t, exists(filepath.Join(dir, "servers", "installed")), `what "make node" installs with TASKGATE_WHOLE=1`)
	for name, e := range jobExamples() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var started, polls atomic.Int64
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				start := e.isStart(r)
				if start {
					started.Add(1)
					polls.Store(0)
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, e.api(polls.Add(1), start))
			}))
			t.Cleanup(api.Close)
			env := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, e.env(api.URL)...)
			command := append([]string{nodeBinary(dir), filepath.Join(dir, "servers", "node_modules", e.script)}, e.moreArgs(t, name)...)
			byHand := e.callByHand(t, exec.Command(command[0], command[1:]...), env)
			if !strings.Contains(byHand, e.result) {
				t.Fatalf("by hand the result is %s", byHand)
			}
			file := e.fileFor(t, name, command, env)
			if out, err := exec.Command(filepath.Join(bin, "taskgate"), "check", "--connect", file).CombinedOutput(); err != nil {
				t.Errorf("check --connect: %v\n%s", err, out)
			}
			g := startGateway(t, "--config", file)
			list := string(listed(t, g))
			asks, _, _ := strings.Cut(strings.TrimPrefix(e.status, `{"name":"`), `"`)
			if !strings.Contains(list, `"`+e.call+`"`) || strings.Contains(list, `"`+asks+`"`) {
				t.Errorf("a client is shown %s", list)
			}
			task := callTask(t, g.client(true), e.call, e.arguments)
			if got := texts(t, waitFor(t, g.client(true), task.ID, "completed").Result); got != byHand {
				t.Errorf("the result of a task is\n%s\nand by hand it is\n%s", got, byHand)
			}
			params, _ := json.Marshal(map[string]any{"name": e.call, "arguments": e.arguments})
			if got := texts(t, begin(t, g).do(g, mcp.MethodToolsCall, string(params))); got != byHand {
				t.Errorf("the result of a call that blocks is\n%s\nand by hand it is\n%s", got, byHand)
			}
			if started.Load() != 3 {
				t.Errorf("%d jobs were started", started.Load())
			}
		})
	}
}

// callByHand has a model at the server itself start a job, and ask for it until it is over.
func (e jobExample) callByHand(t *testing.T, cmd *exec.Cmd, env []string) string {
	t.Helper()
	cmd.Env = env
	c := startWire(t, cmd)
	c.result(mcp.MethodInitialize, `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}`)
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	params, _ := json.Marshal(map[string]any{"name": e.call, "arguments": e.arguments})
	said := texts(t, c.result(mcp.MethodToolsCall, string(params)))
	id := e.id.FindStringSubmatch(said)
	if id == nil {
		t.Fatalf("the answer names no job: %s", said)
	}
	for range 2 * asked {
		if said = texts(t, c.result(mcp.MethodToolsCall, fmt.Sprintf(e.status, id[1]))); e.over.MatchString(said) {
			return said
		}
	}
	t.Fatalf("the job is not over: %s", said)
	return ""
}

// upstream is the only one in the file of the example.
func (e jobExample) upstream(t *testing.T, name string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "jobs", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Upstreams []map[string]any }
	if err := yaml.Load(text, &file); err != nil || len(file.Upstreams) != 1 {
		t.Fatal(file, err)
	}
	return file.Upstreams[0]
}

// moreArgs are the arguments that the example gives its server, after the name of its package.
func (e jobExample) moreArgs(t *testing.T, name string) (args []string) {
	for i, arg := range e.upstream(t, name)["args"].([]any) {
		if i > 1 {
			args = append(args, arg.(string))
		}
	}
	return args
}

// fileFor is the example with the server as it is installed here, and without its long pauses.
func (e jobExample) fileFor(t *testing.T, name string, command, env []string) string {
	t.Helper()
	u, vars := maps.Clone(e.upstream(t, name)), map[string]string{}
	for _, v := range env {
		key, value, _ := strings.Cut(v, "=")
		vars[key] = value
	}
	u["command"], u["args"], u["env"] = command[0], command[1:], vars
	u["defaults"] = map[string]any{"tasks": "always", "poll_interval": "100ms"}
	u["tools"].([]any)[0].(map[string]any)["job"].(map[string]any)["interval"] = (200 * time.Millisecond).String()
	text, err := json.Marshal(map[string]any{"store": "embedded", "upstreams": []any{u}})
	if err != nil {
		t.Fatal(err)
	}
	return configured(t, string(text))[1]
}

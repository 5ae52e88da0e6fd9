package endpoint

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
)

// Client decides how a slow call of a client is answered (design.md 0.10).
type Client struct {
	Info json.RawMessage // its clientInfo; nil if it sends none
	// Tasks says that the client declares tasks and is served them, or that it must not get any. Its slow
	// calls are answered without words about tasks.
	Tasks bool
}

// clientLimit is how long a client waits for an answer, less a margin.
type clientLimit struct {
	client string // the beginning of the name in its clientInfo
	wait   time.Duration
	hard   bool // progress does not extend it
}

// clientLimits are those of agents that internal/agents runs, each with its defaults.
var clientLimits = []clientLimit{
	{"codex-mcp-client", 4 * time.Minute, true},      // it gives up after 300 s
	{"gemini-cli-mcp-client", 9 * time.Minute, true}, // after 600 s, and after 300 s without a byte: comments come more often
	{"qwen-cli-mcp-client", 4 * time.Minute, true},   // after 600 s, and after 300 s without progress
	{"claude-code", 4 * time.Minute, false},          // after 300 s without progress
	{"opencode", 4 * time.Minute, false},             // after 60 s without progress
}

// losesInTasks are clients, by the beginning of the name in their clientInfo, that lose something in tasks: VS Code shows
// of a result with isError the first text only, and cancels no task (vscode #335229).
var losesInTasks = []string{"Visual Studio Code", "VSCodium", "Code - OSS"}

// ServesTasks reports whether a client is served tasks as it asks for them.
func ServesTasks(clientInfo json.RawMessage) bool {
	name, _ := jsonrpc.GetString(clientInfo, "name")
	return !slices.ContainsFunc(losesInTasks, func(begin string) bool { return strings.HasPrefix(name, begin) })
}

// runsTasks are clients, by the beginning of the name in their clientInfo, that run a tool as a task where the server says
// that it requires one, and do not declare tasks: they take that capability for tasks of their own. Source: the names in the
// build of @modelcontextprotocol/inspector 2.12.0.
var runsTasks = []string{"mcp-inspector", "inspector-cli"}

// RunsTasks reports whether a client calls a tool as a task where that is required, without declaring tasks.
func RunsTasks(clientInfo json.RawMessage) bool {
	name, _ := jsonrpc.GetString(clientInfo, "name")
	return slices.ContainsFunc(runsTasks, func(begin string) bool { return strings.HasPrefix(name, begin) })
}

// unknownWait is for any other client: common ones give up after 60 s.
const unknownWait = 45 * time.Second

// limitOf is how long a client may be expected to wait. If the gateway sends no progress, a client
// whose limit depends on progress counts as an unknown client.
func (e *Endpoint) limitOf(c Client) clientLimit {
	name, _ := jsonrpc.GetString(c.Info, "name")
	for _, l := range clientLimits {
		if strings.HasPrefix(name, l.client) && (l.hard || e.Global.ProgressKeepAlive > 0) {
			return l
		}
	}
	return clientLimit{wait: unknownWait}
}

// answersWithin is the longest time until a client gets an answer of task_result.
func (e *Endpoint) answersWithin(c Client) time.Duration {
	if after := e.Config.WithoutTasksAfter; after != config.Auto {
		return after
	}
	return e.limitOf(c).wait
}

// HandleAfter is the time after which a client's call becomes a task of which the client is told in
// words; 0 is never. Such a client is shown the tool that reads the task.
func (e *Endpoint) HandleAfter(c Client) time.Duration {
	mode := e.Config.WithoutTasks
	if c.Tasks || mode == config.WithoutTasksBlock || !e.Convertible() {
		return 0
	}
	if mode == config.WithoutTasksAuto && !e.limitOf(c).hard {
		return 0
	}
	return e.answersWithin(c)
}

// Departure says how a client has left a call of a tool with this policy, for the log. token says that it has sent a
// progress token, and now what happens to the call.
func (e *Endpoint) Departure(c Client, tool string, policy config.Tool, token bool, after time.Duration, now string) wire.Departure {
	d := wire.Departure{
		Upstream: e.Name, Tool: tool, Client: nameOf(c.Info), After: after, Now: now, Help: e.helpFor(c, policy, token),
	}
	if l := e.limitOf(c); l.client != "" && (l.hard || token) {
		d.Limit = l.wait
	}
	return d
}

// nameOf is what a client calls itself in its clientInfo, with its version.
func nameOf(info json.RawMessage) string {
	name, _ := jsonrpc.GetString(info, "name")
	version, _ := jsonrpc.GetString(info, "version")
	return strings.TrimSpace(name + " " + version)
}

// helpFor says what would have kept a client from giving up a slow call of a tool with this policy.
func (e *Endpoint) helpFor(c Client, policy config.Tool, token bool) string {
	if policy.Tasks == config.TasksNever {
		return "tasks: auto for this tool"
	}
	if c.Tasks {
		return "a shorter grace"
	}
	helps := []string{"a client that takes tasks"}
	if !token && !e.limitOf(c).hard && e.Global.ProgressKeepAlive > 0 {
		helps = append(helps, "a progress token")
	}
	if e.HandleAfter(c) == 0 {
		helps = append(helps, "without_tasks: handle")
	} else {
		helps = append(helps, "a shorter without_tasks_after")
	}
	return strings.Join(helps, ", or ")
}
